"""From which cost of a step on are workers worth their messages, where the caller chooses the actions?

python -m benchmarks step_costs [--quick]

32 CartPoles whose steps take 0 to 200 µs more: all in the caller's process, in Gymnasium's SyncVectorEnv and in this
library's `vector_env()`; and in two worker processes, stepped together with `vector_env()` and with `EnvManager.step`,
or in halves, of which the caller waits for one while the other one is stepped. Compared is the speed by the clock with
that of SyncVectorEnv.
"""

from __future__ import annotations

from benchmarks.harness.question import Question, throughput
from benchmarks.harness.running import Contender

N_ENVS, N_WORKERS = 32, 2
LIMIT = Contender("sync_vector_env_32", "async_vector_env", {"n_envs": N_ENVS, "kind": "sync"})
IN_WORKERS = {"n_envs": N_ENVS, "n_workers": N_WORKERS}
QUESTION = Question(
    name="step_costs",
    title="32 environments by the cost of a step: in the caller's process, and in two workers",
    workloads=["cost_0", "cost_10", "cost_25", "cost_50", "cost_100", "cost_200"],
    contenders=[
        LIMIT,
        Contender("ours_vector_env_32", "async_vector_env", {"n_envs": N_ENVS, "kind": "ours"}),
        Contender("ours_vector_env_32_in_2", "async_vector_env", {**IN_WORKERS, "kind": "ours"}),
        Contender("ours_synchronous_32", "ours_stepping", IN_WORKERS),
        Contender("ours_asynchronous_32", "ours_stepping", {**IN_WORKERS, "asynchronous": True, "least": N_ENVS // 2}),
    ],
    limit=LIMIT.name,
    label="times as fast as SyncVectorEnv",
    rounds=10,
)


if __name__ == "__main__":
    throughput(QUESTION)
