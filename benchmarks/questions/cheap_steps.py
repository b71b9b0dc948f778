"""What does parallel collection cost where a step takes a few microseconds? CartPole-v1 with a small numpy agent.

And what does it cost to watch the workers for hangs and for memory, while nothing happens to them?

python -m benchmarks cheap_steps [--quick]
"""

from benchmarks.harness.lineup import THROUGHPUT, ours
from benchmarks.harness.question import Goal, Question, throughput

QUESTION = Question(
    "cheap_steps",
    "Cheap steps: CartPole-v1, small numpy agent",
    ["cheap_20", "cheap_500"],
    [*THROUGHPUT, ours("ours_watched", watched=True)],
    [
        Goal("cheap_20", "ours", 0.93),
        Goal("cheap_500", "ours", 0.93),
        Goal("cheap_500", "ours_watched", 0.99, of="ours"),
    ],
)

if __name__ == "__main__":
    throughput(QUESTION)
