"""Start actors, and find the reason where they do not start; for the engine of Ray."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from typing import Any

import ray
from ray.runtime_env import RuntimeEnv

from streamsampler.engines.ray_cluster import Demand
from streamsampler.engines.ray_link import Post, RayLink
from streamsampler.engines.ray_worker import Hello, RaySetup, versions
from streamsampler.errors import SamplerError, UsageError

__all__ = ["ROOM_SECONDS", "Starts", "check_names"]

ROOM_SECONDS = 5.0
"""After this time workers that have not started are looked into."""

_START_SECONDS = 60.0  # that workers may take to start where there is room
_PREPARED_SECONDS = 600.0  # the same where Ray installs packages or fetches files for them first
_PREPARING = {"pip", "uv", "conda", "container", "image_uri", "working_dir", "py_modules"}
_MOST_FAILED = 3  # starts in a row


def check_names(runtime_env: Mapping[str, Any]) -> None:
    """Look for what Ray would ignore in a runtime environment.

    Raises:
        UsageError: There is something.
    """
    unknown = sorted(map(str, set(runtime_env) - RuntimeEnv.known_fields))
    if unknown:
        known = sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_"))
        raise UsageError(f"runtime_env has {', '.join(unknown)}, but Ray knows {', '.join(known)}")


class Starts:
    """The actors that are started in the place of dead ones, and what holds for the start of each.

    Args:
        setup: What all workers are given.
        demand: What they need of the cluster.
        runtime_env: Ray's runtime environment for them, if there is one.
        post: See `RayLink`.
    """

    def __init__(self, setup: RaySetup, demand: Demand, runtime_env: Mapping[str, Any] | None, post: Post) -> None:
        self._setup = setup
        self._demand = demand
        self._options = {"num_cpus": 1, **demand.options}
        if runtime_env:
            self._options["runtime_env"] = dict(runtime_env)
        self._seconds = _PREPARED_SECONDS if _PREPARING.intersection(runtime_env or ()) else _START_SECONDS
        self._node = ray.get_runtime_context().get_node_id()
        self._post = post
        self._next: dict[int, RayLink] = {}
        self._failed = 0
        self._trouble: SamplerError | None = None
        self._idle_since = self._next_look = math.inf

    def new(self, worker: int) -> RayLink:
        """Return the link to a new actor.

        Raises:
            UsageError: Ray refuses what it is asked for.
        """
        try:
            return RayLink(worker, self._options, self._node, self._post)
        except (TypeError, ValueError) as error:
            raise UsageError(f"Ray refuses worker_resources or runtime_env: {error}") from error

    def begin(self, worker: int) -> None:
        """Start an actor that is to take the place of a dead one."""
        self._next[worker] = self.new(worker)

    def again(self, link: RayLink) -> None:
        """Start another actor instead of one that ended before it ran, unless that happened too often."""
        self._failed += 1
        if self._failed > _MOST_FAILED:
            self._failed = 0
            self._next.pop(link.number, None)
            self._trouble = SamplerError(f"worker {link.number} could not be started: it {link.dying}")
        else:
            self.begin(link.number)

    def is_ready(self, worker: int) -> bool:
        """Return whether an actor has started in the place of a dead one; start one if none is on its way."""
        if worker not in self._next:
            self.begin(worker)
        return self._next[worker].hello is not None

    def take(self, worker: int) -> RayLink:
        """Return the link to the actor that takes the place of a dead one, whether or not it has started."""
        return self._next.pop(worker) if worker in self._next else self.new(worker)

    @property
    def links(self) -> Collection[RayLink]:
        """The actors that have not yet taken the places of dead ones."""
        return self._next.values()

    def greet(self, link: RayLink, hello: Hello) -> None:
        """Let an actor run that has started, if it understands what it is sent."""
        here = versions()
        named = [(name, there, here.get(name)) for name, there in hello.versions.items()]
        differ = [f"{name} {there}, here {ours}" for name, there, ours in named if there != ours]
        if differ:
            self._next.pop(link.number, None)
            self._trouble = SamplerError(
                f"the node {hello.host} of the Ray cluster has other versions ({'; '.join(differ)}), with which "
                "batches may differ: install the same ones there, or name them in runtime_env={'pip': [...]}"
            )
            return
        self._failed = 0
        link.run(hello, self._setup)

    # ------------------------------------------------------------------ where nothing starts

    def seconds_idle(self, *, idle: bool) -> float:
        """Return for how many more seconds nothing may happen.

        Args:
            idle: Whether nothing can happen but that an actor starts.
        """
        if not idle or not self._next:
            self._idle_since = self._next_look = math.inf
            return math.inf
        if self._idle_since == math.inf:
            self._idle_since = time.monotonic()
            self._next_look = self._idle_since + ROOM_SECONDS
        return self._next_look - time.monotonic()

    def raise_trouble(self) -> None:
        """Raise what went wrong; in particular, if nothing could happen for too long.

        Raises:
            SamplerError: It says why an actor cannot start, such as what the cluster lacks.
        """
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + ROOM_SECONDS
            self.check([link for link in self._next.values() if link.hello is None], now - self._idle_since)

    def check(self, missing: Collection[RayLink], waited: float) -> None:
        """Raise an error if actors cannot start, or take too long.

        Args:
            missing: Those that have not started.
            waited: Seconds since they could have.

        Raises:
            SamplerError: The cluster has no room for them, or they do not start although it has.
        """
        if missing:
            self._demand.check()
        if missing and waited >= self._seconds:
            raise SamplerError(
                f"{len(missing)} of {self._demand.n_workers} workers have not started within {self._seconds:g} s in "
                f"the Ray cluster, of which each needs {self._demand}: {self._demand.in_use()}; `ray list actors` and "
                "the logs of the nodes say more"
            )

    @property
    def limits(self) -> tuple[float, float]:
        """After how many seconds to look for the reason, and to give up."""
        return ROOM_SECONDS, self._seconds
