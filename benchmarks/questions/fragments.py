"""What do fragments of episodes that go on cost, against whole trajectories of the same length?

Trajectories of 128 and 500 timesteps in batches of 32,000, whole ones truncated there, with CartPole-v1 and with steps
that do nothing: there a call's own work shows the most.

python -m benchmarks fragments [--quick]
"""

from benchmarks.harness.lineup import BARE, ours
from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.harness.running import Contender

NAMES, LENGTHS = ("cheap_500", "still"), (128, 500)


def both(length: int) -> list[Contender]:
    """Return the contenders of whole trajectories and of fragments of a length."""
    settings = {"trajectories": 32_000 // length, "length": length}
    return [ours(f"ours_whole_{length}", **settings), ours(f"ours_fragments_{length}", fragments=True, **settings)]


QUESTION = Question(
    "fragments",
    "Fragments of episodes that go on, against whole trajectories of the same length",
    NAMES,
    [BARE, *(it for length in LENGTHS for it in both(length))],
    [
        Goal(name, f"ours_fragments_{length}", 0.97, of=f"ours_whole_{length}", key="cpu_share")
        for name in NAMES
        for length in LENGTHS
    ],
)

if __name__ == "__main__":
    throughput(QUESTION)
