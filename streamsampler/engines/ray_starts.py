"""Start actors of Ray, replace dead actors, and explain failed starts. Needs `pip install ray`."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from typing import Any

from ray.runtime_env import RuntimeEnv

from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.core.settings import hash_seed
from streamsampler.engines.ray_cluster import Demand
from streamsampler.engines.ray_link import Post, RayLink
from streamsampler.engines.ray_worker import Hello, RaySetup, versions

_START_SECONDS = 60.0  # for workers to start
_PREPARED_SECONDS = 600.0  # the same if Ray installs packages or fetches files before


def _with_hash_seed(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Return a runtime environment with the workers' hash seed, unless it sets its own."""
    return {**runtime_env, "env_vars": {"PYTHONHASHSEED": hash_seed(), **(runtime_env.get("env_vars") or {})}}


_PREPARING = {"pip", "uv", "conda", "container", "image_uri", "working_dir", "py_modules"}
_MOST_FAILED = 3  # starts in a row


class ActorStarts:
    """Starts actors, replaces dead actors, and explains failed starts.

    Raises a UsageError if the runtime environment has keys unknown to Ray.
    """

    def __init__(self, setup: RaySetup, demand: Demand, runtime_env: Mapping[str, Any] | None, post: Post) -> None:
        if unknown := set(runtime_env or ()) - RuntimeEnv.known_fields:  # which Ray would ignore
            raise UsageError(f"runtime_env has keys unknown to Ray: {', '.join(sorted(unknown))}")
        self._setup = setup
        self._demand = demand
        self._options = {"num_cpus": 1, **demand.options}
        self._options["runtime_env"] = _with_hash_seed(runtime_env or {})
        # Most seconds for actors to start.
        self.seconds = _PREPARED_SECONDS if _PREPARING.intersection(runtime_env or ()) else _START_SECONDS
        self._post = post
        self._next: dict[int, RayLink] = {}
        self._failed = 0
        self._error: SamplerError | None = None
        self._deadline = math.inf

    def new(self, worker: int) -> RayLink:
        """Return the link to a new actor; raise a UsageError if Ray refuses its options."""
        try:
            return RayLink(worker, self._options, self._post)
        except (TypeError, ValueError) as error:
            raise UsageError(f"Ray refuses worker_resources or runtime_env: {error}") from error

    def start(self, worker: int) -> None:
        """Start the replacement of a dead worker."""
        self._next[worker] = self.new(worker)

    def retry(self, link: RayLink) -> None:
        """Replace an actor after its end before it ran, unless this happened too often."""
        self._failed += 1
        if self._failed > _MOST_FAILED:
            self._failed = 0
            self._next.pop(link.number, None)
            self._error = SamplerError(f"worker {link.number} could not be started: it {link.dying}")
        else:
            self.start(link.number)

    def is_ready(self, worker: int) -> bool:
        """Return whether a dead worker's replacement has started; start it if necessary."""
        if worker not in self._next:
            self.start(worker)
        return self._next[worker].hello is not None

    def replacement_for(self, worker: int) -> RayLink:
        """Return the link to a dead worker's replacement, started or not."""
        return self._next.pop(worker) if worker in self._next else self.new(worker)

    @property
    def links(self) -> Collection[RayLink]:
        """The replacements not yet in use."""
        return self._next.values()

    def accept(self, link: RayLink, hello: Hello) -> None:
        """Let a started actor run, if its versions are those of this process."""
        here = versions()
        named = [(name, there, here.get(name)) for name, there in hello.versions.items()]
        differ = [f"{name} {there}, here {ours}" for name, there, ours in named if there != ours]
        if differ:
            self._next.pop(link.number, None)
            self._error = SamplerError(
                f"node {hello.host} of the Ray cluster has other versions ({'; '.join(differ)}), so batches may "
                "differ: install the same versions there, or request them with runtime_env={'pip': [...]}"
            )
            return
        self._failed = 0
        link.run(hello, self._setup)

    def seconds_left(self, *, idle: bool) -> float:
        """Return the seconds left for actors to start; `idle` if no other event can come."""
        if not idle or all(link.hello is not None for link in self._next.values()):
            self._deadline = math.inf
        elif self._deadline == math.inf:
            self._deadline = time.monotonic() + self.seconds
        return self._deadline - time.monotonic()

    def raise_error(self) -> None:
        """Raise the pending error, or an error after too long a wait."""
        error, self._error = self._error, None
        if error is None and time.monotonic() >= self._deadline:
            self._deadline = math.inf
            error = self.late(len(self._next))
        if error is not None:
            raise error

    def late(self, n_missing: int) -> SamplerError:
        """Return the error of `n_missing` actors not started in time."""
        return SamplerError(
            f"{n_missing} of {self._demand.n_workers} workers have not started within {self.seconds:g} s in the Ray "
            f"cluster: each needs {self._demand}, and {self._demand.in_use()}. `ray list actors` and the nodes' logs "
            "may show the reason"
        )
