"""What does parallel collection cost where a step takes a few microseconds? CartPole-v1 with a small numpy agent.

And what does it cost to watch the workers for hangs and for memory, while nothing happens to them? And what, to talk to
them over queues of Python's own `multiprocessing`?

python -m benchmarks cheap_steps [--quick]
"""

from benchmarks.harness.lineup import QUEUES, THROUGHPUT, ours
from benchmarks.harness.question import Goal, Question, throughput

QUESTION = Question(
    "cheap_steps",
    "Cheap steps: CartPole-v1, small numpy agent",
    ["cheap_20", "cheap_500"],
    [*THROUGHPUT, ours("ours_watched", watched=True), QUEUES],
    [
        Goal("cheap_20", "ours", 0.93),
        Goal("cheap_500", "ours", 0.93),
        Goal("cheap_500", "ours_watched", 0.99, of="ours"),
        Goal("cheap_20", "ours_queues", 0.95, of="ours"),
        Goal("cheap_500", "ours_queues", 0.95, of="ours"),
    ],
)

if __name__ == "__main__":
    throughput(QUESTION)
