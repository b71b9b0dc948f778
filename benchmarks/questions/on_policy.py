"""What does an on-policy iteration cost? 1000-step trajectories, small batches, new parameters each time.

python -m benchmarks on_policy [--quick]

It also measures the CPU time per delivered timestep, and the delay from the call to
each worker's first step under the new parameters.

Trajectories are kept whole, so two workers that get trajectories of different lengths end at different times. `bound`
says what that alone leaves of the bare loop's speed: trajectories of the workload's lengths, begun in order by
whichever worker is free, without any other cost. No sampler that does not know the lengths in advance can do better.
"""

import random
import statistics
from typing import Any

from benchmarks.harness.lineup import THROUGHPUT, ours
from benchmarks.harness.question import Goal, Question, throughput

SHORTEST, LONGEST = 200, 1000


def bound(batch: int, n_workers: int, calls: int = 2000) -> float:
    """Simulate list scheduling, and return the share of the workers' time that is spent on delivered timesteps."""
    rng = random.Random(0)
    delivered = spent = 0
    for _ in range(calls):
        free = [0] * n_workers
        length = 0
        while length < batch:
            trajectory = rng.randint(SHORTEST, LONGEST)
            earliest = free.index(min(free))
            free[earliest] += trajectory
            length += trajectory
        delivered, spent = delivered + length, spent + max(free)
    return delivered / (n_workers * spent)


def notes(results: dict[str, Any]) -> list[str]:
    """Report the delays, and the bound."""
    said = []
    for workload, contenders in results.items():
        for name, result in contenders.items():
            delays = [
                sorted(delay)
                for answer in result.get("rounds", [])
                for delay in (answer or {}).get("delays", [])
                if delay
            ]
            if delays:
                first = statistics.median(delay[0] for delay in delays)
                last = statistics.median(delay[-1] for delay in delays)
                said.append(
                    f"{workload}, {name}: from the call to the first step under the new parameters "
                    f"{1e3 * first:.2f} ms, of the last worker {1e3 * last:.2f} ms (medians of {len(delays)} calls)"
                )
    said += [
        f"on_policy_varied: the lengths alone leave {bound(batch, 2):.3f} of the bare loop with batches of {batch:,}"
        for batch in (2_000, 4_000)
    ]
    return said


QUESTION = Question(
    "on_policy",
    "On-policy iterations: whole trajectories, new parameters for each batch",
    ["on_policy", "on_policy_varied"],
    THROUGHPUT,
    [
        Goal("on_policy", "ours", 0.92),
        Goal("on_policy", "ours", 0.91, key="cpu_share"),
        Goal("on_policy_varied", "ours", 0.85),
        # Above `bound`, but it is as small a batch as the other workload's, and says what that costs.
        Goal("on_policy_varied", "ours_batch_2000", 0.85),
        Goal("on_policy_varied", "ours", 0.91, key="cpu_share"),
    ],
    {"on_policy_varied": [ours("ours_batch_2000", batch=2000)]},
    notes=notes,
)

if __name__ == "__main__":
    throughput(QUESTION)
