"""How much of their time do the environments of `VecWorker` stand idle? With 2 workers, and with 8.

python -m benchmarks lanes [--quick]

The workers are processes that sleep in place of their environments' and the agent's work, 5 to 20 times as long, so 8
of them run side by side on few cores; tickets take as much longer. The limit is the batched loop, whose environments
are never idle; it sleeps the same way. What recording and sending cost does not show here: `torch_mlp` measures that.
"""

from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.harness.running import Contender
from benchmarks.problems.workloads import WORKLOADS

__all__ = ["N_ENVS", "lane_contenders"]

N_ENVS = {"lanes_cartpole": 32, "lanes_cheetah": 8, "lanes_on_policy": 8}
GOALS = {"lanes_cartpole": (0.96, 0.90), "lanes_cheetah": (0.95, 0.73), "lanes_on_policy": (0.77, 0.36)}
N_WORKERS = (2, 8)


def lane_contenders(workload: str, n_workers: int) -> list[Contender]:
    """Return the batched loop and this library with so many workers; those with 2 have plain names."""
    n_envs, more = N_ENVS[workload], "" if n_workers == N_WORKERS[0] else f"_{n_workers}"
    settings = {"vec": n_envs, "slowed": WORKLOADS[workload].slowed}
    return [
        Contender(f"bare{more}", "batched_bare", {"n_envs": n_envs}, n_processes=n_workers),
        Contender(f"ours{more}", "ours", settings, n_processes=n_workers),
    ]


QUESTION = Question(
    "lanes",
    "Several environments in each of 2 and 8 workers, simulated by sleeping",
    list(N_ENVS),
    [],
    [
        Goal(workload, name, goal, of=limit)
        for workload, goals in GOALS.items()
        for goal, (limit, name) in zip(goals, (("bare", "ours"), ("bare_8", "ours_8")), strict=True)
    ],
    {workload: [it for n in N_WORKERS for it in lane_contenders(workload, n)] for workload in N_ENVS},
    seconds=4.0,
    rounds=4,
)

if __name__ == "__main__":
    throughput(QUESTION)
