"""What do stragglers cost? Eight workers whose steps take heavy-tailed times, one of them four times slower.

python -m benchmarks stragglers [--quick]

The limit is the sum of the workers' own speeds: what bare loops reach that never wait for each other. The batches hold
200 trajectories, 25 for each worker. `bound` says what their ends alone leave: trajectories begun in order by whichever
worker is free, without any other cost, the slow one only as long as the others would take longer without it.
"""

import heapq
import math
import random
import statistics
from typing import Any

from benchmarks.harness.lineup import BARE, PEERS, ours
from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.problems.workloads import WORKLOADS

TRAJECTORIES, LENGTH, SECONDS, SLOWNESS = 200, 20, 2e-3, 4.0


def bound(n_workers: int, calls: int = 500) -> float:
    """Simulate list scheduling, and return the share of the ideal."""
    rng = random.Random(0)
    each = LENGTH * SECONDS
    spent = []
    for _ in range(calls):
        free = [(0.0, worker) for worker in range(n_workers)]
        left, end = TRAJECTORIES, 0.0
        while left:
            now, worker = heapq.heappop(free)
            slowness = SLOWNESS if worker == 0 else 1.0
            if slowness > 1.0 and slowness * each > left * each / (n_workers - 1):
                continue
            took = slowness * sum(rng.lognormvariate(math.log(SECONDS) - 0.5, 1.0) for _ in range(LENGTH))
            heapq.heappush(free, (now + took, worker))
            left, end = left - 1, max(end, now + took)
        spent.append(end)
    return TRAJECTORIES * each / (n_workers - 1 + 1 / SLOWNESS) / statistics.mean(spent)


def notes(results: dict[str, Any]) -> list[str]:
    """Report the shares of what the sleeping times alone allow."""
    workload = WORKLOADS["stragglers"]
    assert workload.ideal is not None
    ideal = workload.ideal(workload.n_processes)
    shares = [
        f"{name} {result['speed']['median'] / ideal:.3f}"
        for name, result in results["stragglers"].items()
        if "speed" in result
    ]
    return [
        f"Of {ideal:,.0f} timesteps per second, which the mean sleeping times alone allow: {', '.join(shares)}.",
        f"stragglers: the ends of batches alone leave {bound(workload.n_processes):.3f} of the bare loop",
    ]


QUESTION = Question(
    "stragglers",
    "Stragglers: heavy-tailed steps, one of eight workers four times slower",
    ["stragglers"],
    [BARE, ours(), ours("ours_arrival", order="arrival"), *(peer for peer in PEERS if not peer.name.endswith("_2"))],
    [Goal("stragglers", "ours", 0.97), Goal("stragglers", "ours_arrival", 0.97)],
    seconds=4.0,
    rounds=4,
    notes=notes,
)

if __name__ == "__main__":
    throughput(QUESTION)
