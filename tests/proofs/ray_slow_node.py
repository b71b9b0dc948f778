"""One node of a cluster of Ray becomes slow, and idle workers of the others run its tickets as well. Needs `ray`.

Three nodes on this machine with one, two and two workers, whose steps sleep. Between two calls the steps of one node
become 30 times longer. The next call is timed with copies of late tickets; and with none, for which the sampler has no
option. Five workers have 12 turns, three of them 20: 1.67 times as many.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from streamsampler import RaySampler
from streamsampler.protocol.in_flight import Copies
from tests.proofs.ray_nodes import ThreeNodes

__all__ = ["prove"]

N_TRAJECTORIES, LENGTH, SECONDS, SLOWER = 60, 20, 5e-3, 30
N_ROUNDS = {"short": 1, "long": 5}
MOST, LEAST_GAIN = 2.2, 1.3


class Sleeping(gymnasium.Env[Any, Any]):
    """Sleeps in each step, longer on the node whose id is in the file."""

    def __init__(self, path: Path) -> None:
        import ray

        self.observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._path, self._node, self._t = path, ray.get_runtime_context().get_node_id(), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        time.sleep(SECONDS * (SLOWER if self._path.read_text() == self._node else 1))
        return np.zeros(1, np.float32), 1.0, self._t == LENGTH, False, {}


def zero(_: Any) -> int:
    """Return action 0."""
    return 0


def timed(sampler: Any) -> tuple[float, Any]:
    """Obtain a batch; return how many seconds that took, and the batch."""
    began = time.perf_counter()
    batch = sampler.obtain_trajectories(N_TRAJECTORIES)
    return time.perf_counter() - began, batch


def slowed_down(nodes: ThreeNodes, path: Path, copying: AbstractContextManager[Any]) -> tuple[float, Any]:
    """Return how many times longer a call takes with a slow node than the one before, and its batch."""
    import ray

    path.write_text("")
    with RaySampler(zero, partial(Sleeping, path), n_workers=5, seed=1, ray_address=nodes.address) as sampler, copying:
        timed(sampler)
        fast, _ = timed(sampler)
        path.write_text(next(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != nodes.head))
        slow, batch = timed(sampler)
        return slow / fast, batch


def prove(scale: str) -> None:
    """Measure calls with and without copies.

    Args:
        scale: "short": once. "long": five times.

    Raises:
        AssertionError: Copies gain less than they should, or change a batch.
    """
    ratios: dict[str, list[float]] = {"with copies": [], "without": []}
    with ThreeNodes() as nodes, tempfile.TemporaryDirectory() as folder:
        for _ in range(N_ROUNDS[scale]):
            batches = []
            for name, found in ratios.items():
                no_copies = mock.patch.object(Copies, "take", return_value=None)
                copying = no_copies if name == "without" else nullcontext()
                ratio, batch = slowed_down(nodes, Path(folder) / "slow", copying)
                found.append(ratio)
                batches.append(batch)
            assert batches[0] == batches[1]
    medians = {name: statistics.median(found) for name, found in ratios.items()}
    for name, found in ratios.items():
        print(f"a slow node, {name}: {medians[name]:.2f} times as long ({', '.join(f'{one:.2f}' for one in found)})")
    assert medians["with copies"] <= MOST
    assert medians["without"] >= LEAST_GAIN * medians["with copies"]
