"""How fast is `RaySampler`, next to worker processes, to RLlib's env runners and to actors by hand?

    python -m benchmarks ray [--quick]

Needs the extra `ray` here, and the peers `ray` and `rllib`. All have a cluster of their own on this machine. RLlib and
the actors by hand return fragments of trajectories of 1,000 timesteps that they do not seed.
"""

from benchmarks.harness.lineup import BARE, PEERS, ours
from benchmarks.harness.question import Goal, Question, throughput

RAY = ours("ours_ray", engine="ray")
_OTHERS = ("rllib", "ray_by_hand")
_SHARED = ("cheap_20", "cheap_500", "steps_10ms", "pixels")

QUESTION = Question(
    "ray",
    "Ray: actors of RaySampler, worker processes, RLlib's env runners, actors by hand",
    [*_SHARED, "walks_10ms"],
    [BARE, ours(), RAY, *(peer for peer in PEERS if peer.name in _OTHERS)],
    [
        *(Goal(workload, "ours_ray", 0.90, of="ours") for workload in ("steps_10ms", "walks_10ms")),
        *(Goal(workload, "ours_ray", 1.0, of=other) for workload in _SHARED for other in _OTHERS),
    ],
    seconds=3.0,
    rounds=5,
)

if __name__ == "__main__":
    throughput(QUESTION)
