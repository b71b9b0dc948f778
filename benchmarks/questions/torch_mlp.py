"""What does parallel collection cost with a torch MLP 2x64 as the agent? CartPole-v1 and HalfCheetah-v5.

python -m benchmarks torch_mlp [--quick]     # needs torch and gymnasium[mujoco]

Next to the loop over one environment there is the loop over several with batched actions, the limit for `VecWorker`.
That loop has no batches. Ours end with whole trajectories, and a batch that leaves environments without one is
slower: `_whole` is that loop with such batches. `_ten` has batches with ten trajectories for each environment of two
workers, and `_blocks` runs them in blocks, as agents need whose rows depend on one another.
"""

from benchmarks.harness.lineup import QUEUES, THROUGHPUT, ours
from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.harness.running import Contender


def several(n_envs: int, *variants: Contender) -> list[Contender]:
    """Return this library and the bare loop with so many environments in a process, and variants of this library."""
    return [
        Contender(f"batched_bare_{n_envs}", "batched_bare", {"n_envs": n_envs}),
        Contender(f"batched_bare_{n_envs}_whole", "batched_bare", {"n_envs": n_envs, "whole": True}),
        ours(f"ours_vec_{n_envs}", vec=n_envs),
        *variants,
    ]


def ten(n_envs: int, length: int) -> Contender:
    """Return this library with batches that have ten trajectories for each environment of two workers."""
    return ours(f"ours_vec_{n_envs}_ten", vec=n_envs, batch=10 * 2 * n_envs * length)


QUESTION = Question(
    "torch_mlp",
    "A torch MLP 2x64: CartPole-v1 and HalfCheetah-v5",
    ["mlp_cartpole", "mlp_cartpole_500", "mlp_cheetah"],
    [*THROUGHPUT, QUEUES],
    [
        goal
        for workload in ("mlp_cartpole", "mlp_cartpole_500")
        for goal in (
            Goal(workload, "ours", 0.92),
            Goal(workload, "ours_queues", 0.95, of="ours"),
            Goal(workload, "ours_vec_32", 4.0),
            Goal(workload, "ours_vec_32", 0.92, of="batched_bare_32"),
        )
    ]
    + [Goal("mlp_cartpole_500", "ours_vec_32_ten", 0.92, of="batched_bare_32")]
    + [Goal("mlp_cheetah", "ours", 0.97)]
    + [Goal("mlp_cheetah", "ours_vec_8_ten", 0.92, of="batched_bare_8")],
    {
        "mlp_cartpole": several(32, ours("ours_vec_32_blocks", vec=32, block_size=8 * 32)),
        "mlp_cartpole_500": several(32, ten(32, length=500)),
        "mlp_cheetah": several(8, ten(8, length=1000)),
    },
)

if __name__ == "__main__":
    throughput(QUESTION)
