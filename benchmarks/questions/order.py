"""What does `order="index"` cost against `order="arrival"`? Batches of 50 trajectories for each worker.

python -m benchmarks order [--quick]
"""

from benchmarks.harness.lineup import BARE, ours
from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.harness.running import Contender
from benchmarks.problems.workloads import WORKLOADS

PER_WORKER = 50


def both(workload: str) -> list[Contender]:
    """Return the contenders of both orders, for so many trajectories a call."""
    trajectories = PER_WORKER * WORKLOADS[workload].n_processes
    return [ours(f"ours_{order}", order=order, trajectories=trajectories) for order in ("index", "arrival")]


NAMES = ("cheap_20", "on_policy_varied", "stragglers")
QUESTION = Question(
    "order",
    'order="index" against order="arrival": 50 trajectories for each worker in a batch',
    NAMES,
    [BARE],
    [Goal(name, "ours_index", 0.97, of="ours_arrival") for name in NAMES],
    {name: both(name) for name in NAMES},
    seconds=3.0,
)

if __name__ == "__main__":
    throughput(QUESTION)
