"""What do trajectories of 5 to 20 timesteps cost? CartPole-v1, truncated, with a small numpy agent.

python -m benchmarks short_trajectories [--quick]
"""

from benchmarks.harness.lineup import THROUGHPUT
from benchmarks.harness.question import Goal, Question, throughput

QUESTION = Question(
    "short_trajectories",
    "Short trajectories: 5 to 20 timesteps",
    ["short"],
    THROUGHPUT,
    [Goal("short", "ours", 0.88)],
)

if __name__ == "__main__":
    throughput(QUESTION)
