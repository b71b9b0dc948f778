"""What do stragglers cost? Eight workers whose steps take heavy-tailed times, one of them four times slower.

python benchmarks/stragglers.py [--quick]

The limit is the sum of the workers' own speeds: what bare loops reach that never wait for each other. The batches hold
200 trajectories, 25 for each worker.
"""

from typing import Any

from harness.lineup import BARE, PEERS, ours
from harness.question import Goal, Question, throughput
from workloads import WORKLOADS


def notes(results: dict[str, Any]) -> list[str]:
    """Say what share of the sleeping times alone was reached."""
    workload = WORKLOADS["stragglers"]
    assert workload.ideal is not None
    ideal = workload.ideal(workload.n_processes)
    shares = [
        f"{name} {result['speed']['median'] / ideal:.3f}"
        for name, result in results["stragglers"].items()
        if "speed" in result
    ]
    return [f"Of {ideal:,.0f} timesteps per second, which the mean sleeping times alone allow: {', '.join(shares)}."]


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
