"""What does it cost to step environments in the caller's process, without workers?

python -m benchmarks one_process [--quick]

Eight CartPoles with a NumPy agent: this library's `vector_env()` next to Gymnasium's SyncVectorEnv, and its `sb3_env()`
next to Stable-Baselines3's DummyVecEnv with its Monitor. Compared is the CPU time of a timestep with that of a bare
loop that steps eight environments and records nothing.
"""

from __future__ import annotations

from benchmarks.harness.question import Question, throughput
from benchmarks.harness.running import Contender

N_ENVS = 8
LIMIT = Contender("batched_bare_8", "batched_bare", {"n_envs": N_ENVS})
QUESTION = Question(
    name="one_process",
    title="Environments stepped in the caller's process, by CPU time",
    workloads=["cheap_500"],
    contenders=[
        LIMIT,
        Contender("ours_vector_env_8", "async_vector_env", {"n_envs": N_ENVS, "kind": "ours"}),
        Contender("sync_vector_env_8", "async_vector_env", {"n_envs": N_ENVS, "kind": "sync"}),
        Contender("ours_sb3_env_8", "sb3_subproc", {"n_envs": N_ENVS, "kind": "ours"}, peer=True),
        Contender("sb3_dummy_8", "sb3_subproc", {"n_envs": N_ENVS, "kind": "dummy"}, peer=True),
    ],
    limit=LIMIT.name,
    label="share of the timesteps of a bare loop in two processes",
    rounds=10,
)


if __name__ == "__main__":
    throughput(QUESTION)
