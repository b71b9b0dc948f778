"""How fast is `RaySampler`, next to worker processes, to RLlib's env runners and to actors by hand?

    python -m benchmarks ray [--quick]

Needs `pip install ray`, and the peers `ray` and `rllib`. All have a cluster of their own on this machine. RLlib and
the actors by hand return fragments of trajectories of 1,000 timesteps that they do not seed. Where trajectories are
short, to seed them takes a fifth of the time: there the goal is what actors by hand reach that seed theirs.
"""

from benchmarks.harness.lineup import BARE, PEERS, ours
from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.harness.running import Contender

RAY = ours("ours_ray", engine="ray")
SEEDED = Contender("ray_by_hand_seeded", "ray_by_hand", {"seeded": True}, peer=True)
_OTHERS = ("rllib", "ray_by_hand")
_SHARED = ("cheap_20", "cheap_500", "steps_10ms", "pixels")

QUESTION = Question(
    "ray",
    "Ray: actors of RaySampler, worker processes, RLlib's env runners, actors by hand",
    [*_SHARED, "walks_10ms"],
    [BARE, ours(), RAY, *(peer for peer in PEERS if peer.name in _OTHERS)],
    [
        *(Goal(workload, "ours_ray", 0.90, of="ours") for workload in ("steps_10ms", "walks_10ms")),
        *(Goal(workload, "ours_ray", 1.0, of="rllib") for workload in _SHARED),
        *(Goal(workload, "ours_ray", 1.0, of="ray_by_hand") for workload in _SHARED if workload != "cheap_20"),
        Goal("cheap_20", "ours_ray", 1.0, of=SEEDED.name),
    ],
    extra={"cheap_20": [SEEDED]},
    seconds=3.0,
    rounds=5,
)

if __name__ == "__main__":
    throughput(QUESTION)
