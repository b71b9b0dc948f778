"""What does it cost to take trajectories one by one from `stream()`, instead of in batches?

python -m benchmarks streams [--quick]
"""

import statistics
from typing import Any

from benchmarks.harness.lineup import BARE, OURS, ours
from benchmarks.harness.question import Goal, Question, throughput

NAMES = ("cheap_20", "cheap_500", "pixels")


def notes(results: dict[str, Any]) -> list[str]:
    """Report what a trajectory costs the parent."""
    said = []
    for workload, contenders in results.items():
        for name in ("ours", "ours_stream"):
            found = [
                1e6 * answer["parent_cpu"] / answer["trajectories"]
                for answer in contenders.get(name, {}).get("rounds", [])
                if answer and answer["trajectories"]
            ]
            if found:
                said.append(f"{workload}, {name}: {statistics.median(found):.0f} µs of the parent's CPU per trajectory")
    return said


QUESTION = Question(
    "streams",
    "Trajectories one by one: `stream()`",
    NAMES,
    [BARE, OURS, ours("ours_stream", stream=True)],
    [Goal(name, "ours_stream", 0.9, of="ours", key="cpu_share") for name in NAMES],
    rounds=10,
    notes=notes,
)

if __name__ == "__main__":
    throughput(QUESTION)
