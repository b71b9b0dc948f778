"""What do filters of observations and rewards cost, and hooks? A torch MLP 2x64 on CartPole-v1 and HalfCheetah-v5.

python -m benchmarks filters [--quick]     # needs torch and gymnasium[mujoco]

CartPole-v1's trajectories are short, about 22 timesteps without filters and 21 with them: each one has a summary of its
own, which is merged into the statistics between calls. Those of HalfCheetah-v5 have 1000 timesteps. The hooks count
timesteps, and give one metric for each trajectory.
"""

from benchmarks.harness.lineup import BARE, OURS, ours
from benchmarks.harness.question import Goal, Question, throughput

NAMES = ("mlp_cartpole", "mlp_cheetah")

QUESTION = Question(
    "filters",
    "Filters (`RunningNorm` and `RunningReturnNorm`), and hooks that count",
    NAMES,
    [
        BARE,
        OURS,
        ours("ours_filters", filters="both"),
        ours("ours_hooks", hooks=True),
        ours("ours_vec_8", vec=8),
        ours("ours_vec_8_filters", vec=8, filters="both"),
        ours("ours_vec_8_hooks", vec=8, hooks=True),
    ],
    [
        goal
        for name in NAMES
        for goal in (
            Goal(name, "ours_filters", 0.95, of="ours", key="cpu_share"),
            Goal(name, "ours_vec_8_filters", 0.95, of="ours_vec_8", key="cpu_share"),
        )
    ],
)

if __name__ == "__main__":
    throughput(QUESTION)
