"""A cluster of Ray loses nodes while it samples, and the batches are those of one process. Needs the extra `ray`.

Three nodes on this machine. In the middle of each call one of them, never the head, is killed with all its
actors, by a worker that tells so: while a trajectory is under way, and just after a report was sent. Another node is
added before the next call. The workers on the head wait until that has happened, so that no call ends before.

Then one node becomes slow between two calls, its steps 30 times longer: idle workers of the others run copies of its
tickets. Five workers have 12 turns, three of them 20: 1.67 times as many. The next call is timed with copies; and with
none, for which the sampler has no option.
"""

from __future__ import annotations

import fcntl
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from streamsampler import Limits, LocalSampler, RaySampler
from streamsampler.protocol.copies import Copies
from tests.proofs.digests import digest_of
from tests.ray_clusters import start_head

__all__ = ["Armed", "ThreeNodes", "Walk", "prove"]

LENGTH = 20
SMALL, LARGE = 4, 100_000
"""Numbers in an observation. A trajectory of the large ones has 16 MB, which lie in the object store of the node."""
SECONDS, SLOWER, MOST, LEAST_GAIN = 5e-3, 30, 2.2, 1.3


class Armed:
    """Where a worker on a node that is to be killed says so, and where the workers of the head wait for that.

    Args:
        folder: A folder that all processes see.
    """

    def __init__(self, folder: str) -> None:
        self._flag, self._gate, self._pipe = (os.path.join(folder, name) for name in ("armed", "gate", "pipe"))

    def prepare(self) -> None:
        """Make the pipe and the gate."""
        os.mkfifo(self._pipe)
        Path(self._gate).touch()

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Let a worker say where it is; until the end of the block, workers of the head wait."""
        # The pipe is open before the flag can be seen: what is said while nobody has it open is lost, and all would
        # wait at the gate for ever. For writing, too, or to open it would wait for the first who says something.
        with open(self._gate, "r+b") as gate, open(self._pipe, "r+b", buffering=0) as self._heard:
            fcntl.flock(gate, fcntl.LOCK_EX)
            os.set_blocking(self._heard.fileno(), False)
            self._heard.readall()  # what was said too late for the call before
            os.set_blocking(self._heard.fileno(), True)
            Path(self._flag).touch()
            try:
                yield
            finally:
                Path(self._flag).unlink(missing_ok=True)

    def say(self, node: str) -> None:
        """Say which node a worker is on, if somebody listens."""
        with suppress(OSError):
            pipe = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, f"{node}\n".encode())
            os.close(pipe)

    def await_node(self) -> str:
        """Return the id of the node of the first worker that says where it is, within `armed`."""
        return self._heard.readline().decode().strip()

    def meet(self, head: str, *, has_reported: bool) -> None:
        """Say where this worker is, if nobody has; on the head, wait until the node is gone."""
        if not os.path.exists(self._flag):
            return
        import ray

        node = ray.get_runtime_context().get_node_id()
        if node != head:
            if not has_reported:
                return
            try:
                os.rename(self._flag, self._flag + "-taken")
            except FileNotFoundError:
                return
            self.say(node)
        with open(self._gate, "rb") as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)


class Walk(gymnasium.Env[Any, Any]):
    """A random walk of twenty steps; in the middle of a trajectory it meets the others."""

    def __init__(self, folder: str, head: str, size: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._armed, self._head, self._n_ended = Armed(folder), head, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._t = self.np_random.normal(size=self.observation_space.shape), 0
        return self._state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._state = self._state + (float(action) - 0.5) * self.np_random.normal()
        if self._t == LENGTH // 2 and self._head:
            self._armed.meet(self._head, has_reported=self._n_ended > 0)
        ended = self._t == LENGTH
        self._n_ended += ended
        return self._state, float(self._state[0]), False, ended, {}


class Sleeping(Walk):
    """Sleeps in each step, longer on the node whose id is in the file."""

    def __init__(self, path: Path) -> None:
        import ray

        super().__init__("", "", 1)
        self._path, self._node = path, ray.get_runtime_context().get_node_id()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(SECONDS * (SLOWER if self._path.read_text() == self._node else 1))
        return super().step(action)


class ThreeNodes:
    """A cluster of three nodes on this machine: a context manager.

    Attributes:
        address: The cluster's address.
        head: The id of the head.
    """

    MEMORY = 256 << 20

    def __init__(self) -> None:
        # Sockets allow a path of 107 bytes only. Ray does not delete its logs.
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")
        options = {"num_cpus": 1, "include_dashboard": False, "temp_dir": self._folder.name}
        self._cluster = start_head(object_store_memory=self.MEMORY, **options)
        self.address: str = self._cluster.address
        self.head: str = self._cluster.head_node.node_id
        self._nodes: dict[str, Any] = {}
        for _ in range(2):
            self.add()

    def add(self) -> None:
        """Add a node with room for two workers."""
        node = self._cluster.add_node(num_cpus=2, wait=True, object_store_memory=self.MEMORY)
        self._nodes[node.node_id] = node

    def kill(self, name: str) -> None:
        """Kill a node and all that runs there."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def __enter__(self) -> ThreeNodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()
        self._folder.cleanup()


def call(nodes: ThreeNodes, armed: Armed, sampler: Any, n_trajectories: int) -> Any:
    """Obtain a batch, and meanwhile kill a node, as soon as a worker there says where it is."""
    killed: list[str] = []

    def kill() -> None:
        with armed.armed():
            ready.set()
            if node := armed.await_node():
                nodes.kill(node)
                killed.append(node)

    ready = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    ready.wait()
    try:
        batch = sampler.obtain_trajectories(n_trajectories)
    finally:
        armed.say("")  # if the call failed, nobody else does
        killer.join()
    assert killed, "no worker was in the middle of a trajectory outside of the head"
    return batch


def check(nodes: ThreeNodes, size: int, n_trajectories: int, n_calls: int) -> int:
    """Lose a node in each call, and compare; return how many workers were started again."""
    with tempfile.TemporaryDirectory() as folder, LocalSampler("random", Walk(folder, "", size), seed=3) as local:
        armed = Armed(folder)
        armed.prepare()
        limits: dict[str, Any] = {
            "max_restarts": None,
            "limits": Limits(max_lifetime_restarts=None),
            "step_timeout": None,
        }
        env = partial(Walk, folder, nodes.head, size)
        with RaySampler("random", env, n_workers=5, seed=3, ray_address=nodes.address, **limits) as sampler:
            for number in range(n_calls):
                batch = call(nodes, armed, sampler, n_trajectories)
                assert digest_of([batch]) == digest_of([local.obtain_trajectories(n_trajectories)]), number
                nodes.add()
            return sampler.stats.restarts


def slowed_down(nodes: ThreeNodes, path: Path, copying: AbstractContextManager[Any]) -> tuple[float, Any]:
    """Return how many times longer a call takes with a slow node than the one before, and its batch."""
    import ray

    path.write_text("")
    seconds = []
    env = partial(Sleeping, path)
    with RaySampler(lambda _: 0, env, n_workers=5, seed=1, ray_address=nodes.address) as sampler, copying:
        for slow in (False, False, True):
            if slow:
                others = (node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != nodes.head)
                path.write_text(next(others))
            began = time.perf_counter()
            batch = sampler.obtain_trajectories(60)
            seconds.append(time.perf_counter() - began)
    return seconds[2] / seconds[1], batch


def prove(scale: str) -> None:
    """Lose nodes in two calls with large reports, or in three times five calls with both; then let nodes be slow."""
    short = scale == "short"
    ratios: dict[str, list[float]] = {"with copies": [], "without": []}
    with ThreeNodes() as nodes, tempfile.TemporaryDirectory() as folder:
        for size in [LARGE] if short else [SMALL, LARGE] * 3:
            restarts = check(nodes, size, 40, 2 if short else 5)
            print(f"{8 * size * LENGTH:,} bytes a trajectory: a node lost in each call, {restarts} workers restarted")
        for _ in range(1 if short else 5):
            batches = []
            for name, found in ratios.items():
                none = mock.patch.object(Copies, "assign", return_value=None)
                ratio, batch = slowed_down(nodes, Path(folder, "slow"), none if name == "without" else nullcontext())
                found.append(ratio)
                batches.append(batch)
            assert batches[0] == batches[1], "copies change a batch"
    medians = {name: statistics.median(found) for name, found in ratios.items()}
    print(f"a slow node: {medians} times as long ({ratios})")
    assert medians["with copies"] <= MOST
    assert medians["without"] >= LEAST_GAIN * medians["with copies"]
