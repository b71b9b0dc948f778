"""What does `VecWorker` cost with environments that are vectorised natively? CartPole-v1, 32 to 1,024 copies.

python -m benchmarks native [--quick]     # EnvPool and JAX take part where they are installed

The limit is the loop that steps such an environment with batched actions, and records nothing. Each workload has 256
copies, the first one also 32 and 1,024. Where trajectories have different lengths, copies are silent at the ends of
blocks, which get longer within a call; all blocks of `_blocks` have 16 trajectories for each copy.
"""

from benchmarks.harness.lineup import ours
from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.harness.running import Contender

__all__ = ["GOALS", "WORKLOAD", "both"]

WORKLOAD = "native_cartpole_500"
GOALS = {32: 0.75, 256: 0.60, 1024: 0.45}
"""By the number of copies: this library's share of the bare environment."""
SHORT, SHORT_GOAL = "native_cartpole_20", 0.35
"""The same with trajectories of 20 timesteps, of 256 copies."""


def both(n_envs: int) -> list[Contender]:
    """Return the bare loop and this library with so many copies."""
    return [
        Contender(f"bare_{n_envs}", "batched_bare", {"native": n_envs}),
        ours(f"ours_{n_envs}", native=n_envs),
    ]


BARE = Contender("bare", "batched_bare", {"native": 256})

QUESTION = Question(
    "native",
    "Natively vectorised environments: CartPole-v1 in NumPy, by EnvPool, and in JAX",
    [WORKLOAD, SHORT, "native_envpool", "native_jax"],
    [BARE, ours(native=256)],
    [
        Goal(WORKLOAD, "ours", GOALS[256], key="cpu_share"),
        Goal(SHORT, "ours", SHORT_GOAL, key="cpu_share"),
        *(Goal(WORKLOAD, f"ours_{n}", GOALS[n], of=f"bare_{n}", key="cpu_share") for n in (32, 1024)),
    ],
    {
        WORKLOAD: [*both(32), *both(1024)],
        SHORT: [ours("ours_blocks", native=256, block_size=16 * 256)],
    },
    rounds=10,
)

if __name__ == "__main__":
    throughput(QUESTION)
