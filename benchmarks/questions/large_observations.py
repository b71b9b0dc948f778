"""What do large observations cost? uint8 of 4x84x84, 50 µs of work per step.

python -m benchmarks large_observations [--quick]

Each contender but the bare loops that store nothing reads every byte of what it delivers, within the measured time.
"""

from benchmarks.harness.lineup import THROUGHPUT
from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.harness.running import Contender

STORING = Contender("bare_storing", "bare", {"storing": "fresh"})
REUSED = Contender("bare_storing_reused", "bare", {"storing": "reused"})
UNCOPIED = Contender("least_uncopied", "least", {"copied": False})
ANEW = Contender("least_uncopied_anew", "least", {"copied": False, "anew": True})

QUESTION = Question(
    "large_observations",
    "Large observations: uint8 4x84x84, 50 µs of work per step",
    ["pixels"],
    [STORING, REUSED, UNCOPIED, ANEW, *THROUGHPUT],
    [
        Goal("pixels", "ours", 0.90),
        Goal("pixels", "ours", 0.96, of="bare_storing"),
        Goal("pixels", "ours", 2.0, of="futures_by_hand"),
    ],
)

if __name__ == "__main__":
    throughput(QUESTION)
