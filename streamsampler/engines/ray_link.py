"""Attach to a Ray cluster, start actors and call them; for the engine of Ray. Needs `pip install ray`."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import ray
from ray.runtime_env import RuntimeEnv
from ray.util.placement_group import placement_group, remove_placement_group

from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.core.settings import hash_seed
from streamsampler.engines.linked import EngineLink, shown_stacks
from streamsampler.engines.ray_worker import GROUPS, Hello, RaySetup, RayWorker, versions
from streamsampler.protocol.messages import Continue, Exit, Message, Start

_LOOK_SECONDS = 4.0  # for a machine to answer at a port
_RELEASE_SECONDS = 3  # for Ray to free the resources of an ended actor
_OPTIONS = (
    *("num_cpus", "num_gpus", "memory", "resources"),
    *("accelerator_type", "label_selector", "scheduling_strategy"),
)


@dataclass(frozen=True)
class Demand:
    """The workers' needs of a cluster."""

    n_workers: int
    options: Mapping[str, Any] = field(default_factory=dict)  # for each worker; see `RaySampler`

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping) or not set(self.options) <= set(_OPTIONS):
            raise UsageError(
                f"worker_resources must be a dict with keys among {', '.join(_OPTIONS)}, got {self.options!r}"
            )
        for name, amount in self.amounts().items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
                raise UsageError(f"worker_resources: {name} must be a number of at least 0, got {amount!r}")

    def amounts(self) -> dict[str, Any]:
        """Return a worker's amount of each resource, by Ray's names."""
        given = {"CPU": self.options.get("num_cpus", 1), "GPU": self.options.get("num_gpus", 0)}
        given["memory"] = self.options.get("memory", 0)
        return {**given, **self.options.get("resources", {})}

    def __str__(self) -> str:
        return ", ".join(f"{amount:g} {name}" for name, amount in self.amounts().items() if amount) or "nothing"

    def check(self) -> None:
        """Check that the cluster has room, now or as soon as Ray has freed the resources of ended actors.

        All resources are reserved together, and returned at once.
        """
        bundle = {name: amount for name, amount in self.amounts().items() if amount}
        if not bundle or self.options.get("scheduling_strategy") is not None:  # perhaps with reserved room
            return
        group = placement_group(self.n_workers * [bundle])
        try:
            if not group.wait(_RELEASE_SECONDS):
                raise SamplerError(
                    f"the Ray cluster has no room for {self.n_workers} workers: each needs {self}, and "
                    f"{self.in_use()}. Use fewer workers, ask for less in worker_resources, add nodes, or wait until "
                    "other programs end (see `ray status`)"
                )
        finally:
            remove_placement_group(group)

    def in_use(self) -> str:
        """Describe the cluster's total and free amounts of the needed resources."""
        names = self.amounts()
        has, free = (_listed(amounts, names) for amounts in (ray.cluster_resources(), ray.available_resources()))
        return f"the cluster has {has} in all, {free} free"


def _listed(has: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{has.get(name, 0.0):g} {name}" for name, amount in names.items() if amount)


_lock = threading.Lock()
_leases: set[Lease] = set()
_is_ours = False  # whether this module has called `ray.init`


class Lease:
    """The use of this process's cluster; the last release ends a cluster that was started here."""

    def __init__(self) -> None:
        self._job = ray.get_runtime_context().get_job_id()

    @property
    def valid(self) -> bool:
        """Whether this process is still attached; other code may have called `ray.shutdown`."""
        return bool(ray.is_initialized() and ray.get_runtime_context().get_job_id() == self._job)

    def release(self) -> None:
        """End the use; may be repeated."""
        global _is_ours
        with _lock:
            if self not in _leases:
                return
            _leases.discard(self)
            if _is_ours and not _leases:
                _is_ours = False
                if self.valid:
                    ray.shutdown()


def attach(address: str | None, demand: Demand) -> Lease:
    """Attach this process to a cluster, or start a cluster; check that it has room.

    Args:
        address: `host:port`, "auto" for a running cluster of this machine, "local" to start a cluster; None for this
            process's cluster, or the variable RAY_ADDRESS, or else "local".
        demand: The workers' needs.

    Raises:
        UsageError: The address is invalid, or this process is attached to another cluster.
        SamplerError: No cluster is found or can be started, or it has no room.
    """
    global _is_ours
    with _lock:
        if ray.is_initialized():
            _check_same(address)
        else:
            _leases.clear()  # other code called `ray.shutdown`
            _init(address or os.environ.get("RAY_ADDRESS") or "local", demand)
            _is_ours = True
        lease = Lease()
        _leases.add(lease)
    try:
        demand.check()
    except BaseException:
        lease.release()
        raise
    return lease


def _check_same(address: str | None) -> None:
    if address in (None, "auto"):
        return
    here = str(ray.get_runtime_context().gcs_address)
    if address == "local" or _resolved(str(address)) != _resolved(here):
        raise UsageError(
            f"ray_address={address!r}, but this process is attached to the Ray cluster at {here} already: leave "
            "ray_address out, or call ray.shutdown() first"
        )


def _resolved(address: str) -> tuple[str, int]:
    """Return IP address and port of `host:port`; raise a UsageError if that is invalid or unknown."""
    host, _, port = address.rpartition(":")
    try:
        return socket.gethostbyname(host.strip("[]")), int(port)
    except (OSError, ValueError) as error:
        raise UsageError(
            f'ray_address must be "host:port", as `ray start` shows it, "auto" or "local", got {address!r}: {error}'
        ) from error


def _init(address: str, demand: Demand) -> None:
    options: dict[str, Any] = {}
    if address == "local":
        n_cpus = max(len(os.sched_getaffinity(0)), math.ceil(demand.n_workers * demand.amounts()["CPU"]))
        options = {"num_cpus": n_cpus, "include_dashboard": False}
        if not demand.amounts()["GPU"]:
            options["num_gpus"] = 0
    elif address != "auto":
        _check_listening(address)
    try:
        with _quiet():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (Exception, SystemExit) as error:
        with contextlib.suppress(Exception):
            ray.shutdown()  # parts started before the failure
        what = "no Ray cluster could be started" if address == "local" else f"cannot attach to Ray at {address}"
        raise SamplerError(f"{what}: {' '.join(str(error).split()) or type(error).__name__}") from error


def _check_listening(address: str) -> None:
    """Check that a program listens at an address: Ray itself would try for minutes."""
    try:
        socket.create_connection(_resolved(address), timeout=_LOOK_SECONDS).close()
    except OSError as error:
        raise SamplerError(
            f"no Ray cluster answers at {address}: {error}. Start a cluster with `ray start --head --port=PORT` and "
            "use the address it prints, or omit ray_address to start a cluster on this machine"
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Stop Ray's usage reports and warnings."""
    names = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    before = {name: os.environ.get(name) for name in names}
    for name, value in names.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                del os.environ[name]


_MOST_SECONDS = 1.0
"""Most seconds to wait for the end of a killed actor."""

_STACKS_SECONDS = 1.0

_ACTOR = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups=GROUPS)(RayWorker)


class Kind(Enum):
    """The purpose of a call of an actor's method."""

    HELLO = "hello"
    END = "end"
    TALK = "talk"
    LOOK = "look"


Post = Callable[["RayLink", Kind, int, "Future[Any]"], None]


class RayLink(EngineLink):
    """An actor, and the unfinished calls of its methods.

    Nothing here waits for the actor: each call's future reports its result to the engine, in a thread of Ray's. `post`
    receives the link, kind and number of a call, and its future.
    """

    def __init__(self, number: int, options: Mapping[str, Any], post: Post) -> None:
        super().__init__(number)
        self.hello: Hello | None = None  # the worker's first message
        self.dying: str | None = None  # reason of its death, while its last answers may still arrive
        self.deadline = 0.0  # when they are no longer awaited
        self.said: dict[int, Any] = {}  # results of calls ahead of an unfinished earlier call, by number
        self.unanswered = 0  # tickets
        self.closing = False  # whether the worker has received an `Exit`
        self._post = post
        self._place = self._next_place = 0  # numbers of messages sent, and of calls done
        self._exit_place = -1
        self._looking = False
        self._end: Future[Any] = Future()
        self._actor = _ACTOR.options(**options).remote(number)
        self._call(Kind.HELLO, self._actor.hello)

    def _call(self, kind: Kind, method: Any, *arguments: Any, place: int = -1) -> Future[Any]:
        future: Future[Any] = method.remote(*arguments).future()
        future.add_done_callback(partial(self._post, self, kind, place))
        return future

    def run(self, hello: Hello, setup: RaySetup) -> None:
        """Let the worker run, after its `hello`."""
        self.hello = hello
        self._end = self._call(Kind.END, self._actor.run, setup)

    def send(self, message: Message) -> None:
        if isinstance(message, Start | Continue):
            self.unanswered += len(message.tickets)
        elif isinstance(message, Exit):
            self._exit_place = self._place
        self._call(Kind.TALK, self._actor.talk, self._place, message, place=self._place)
        self._place += 1

    def take_next(self) -> tuple[bytes | None, list[Any]] | None:
        """Return the result of the next call in order, a row of the board and answers; None before it arrives.

        The last result is from `run`.
        """
        if self._next_place not in self.said:
            return None
        self.closing = self.closing or self._next_place == self._exit_place
        self._next_place += 1
        row, said = self.said.pop(self._next_place - 1)
        return row, said

    def note_end(self, returned: Any) -> None:
        """Record the result of `run`, after all other calls."""
        self.said[self._place] = returned
        self._place += 1

    @property
    def is_silent(self) -> bool:
        """Whether all calls are done."""
        return self._next_place == self._place

    def look(self) -> None:
        """Request the worker's row of the board, unless a request is pending."""
        if not self._looking and not self.ended:
            self._looking = True
            self._call(Kind.LOOK, self._actor.look)

    def note_look(self) -> None:
        """Record that the requested row arrived, or never will."""
        self._looking = False

    def abandon_older(self, version: int) -> None:
        self._actor.abandon_older.remote(version)

    def request_progress(self) -> None:
        self._actor.request_progress.remote()

    @property
    def pid(self) -> int:
        """The worker's process id, on its own machine; 0 before it has started."""
        return 0 if self.hello is None else self.hello.pid

    def ends_within(self, timeout: float) -> bool:
        return bool(wait([self._end], max(0.0, timeout)).done)

    def last_row(self) -> bytes | None:
        """Return the worker's row of the board from its end; None if it was lost, or has not ended."""
        if not self._end.done() or self._end.exception() is not None:
            return None
        row: bytes = self._end.result()[0]
        return row

    def kill(self, *, gently: bool = False) -> None:
        del gently
        with contextlib.suppress(Exception):  # Ray itself may be gone
            ray.kill(self._actor)

    def stacks(self) -> str:
        with contextlib.suppress(Exception):
            text = ray.get(self._actor.stacks.remote(), timeout=_STACKS_SECONDS)
            threads = shown_stacks(text, ["/site-packages/ray/", "/threading.py"]).split("\n\n")
            return "\n\n".join(thread for thread in threads if " File " in thread)
        return "(it did not answer: it is stopped or lost, or native code holds the interpreter's lock)"

    def close(self, timeout: float) -> None:
        """Kill the actor, and wait for its end if it has run."""
        if not self.ended:
            self.kill()
        self.ended = True
        if self.hello is not None:
            self.ends_within(min(timeout, _MOST_SECONDS))


_START_SECONDS = 60.0  # for workers to start
_PREPARED_SECONDS = 600.0  # the same if Ray installs packages or fetches files before


def _with_hash_seed(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Return a runtime environment with the workers' hash seed, unless it sets its own."""
    return {**runtime_env, "env_vars": {"PYTHONHASHSEED": hash_seed(), **(runtime_env.get("env_vars") or {})}}


_PREPARING = {"pip", "uv", "conda", "container", "image_uri", "working_dir", "py_modules"}
_MOST_FAILED = 3  # starts in a row


class Starts:
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
        self._trouble: SamplerError | None = None
        self._deadline = math.inf

    def new(self, worker: int) -> RayLink:
        """Return the link to a new actor; raise a UsageError if Ray refuses its options."""
        try:
            return RayLink(worker, self._options, self._post)
        except (TypeError, ValueError) as error:
            raise UsageError(f"Ray refuses worker_resources or runtime_env: {error}") from error

    def begin(self, worker: int) -> None:
        """Start the replacement of a dead worker."""
        self._next[worker] = self.new(worker)

    def again(self, link: RayLink) -> None:
        """Replace an actor that ended before it ran, unless that happened too often."""
        self._failed += 1
        if self._failed > _MOST_FAILED:
            self._failed = 0
            self._next.pop(link.number, None)
            self._trouble = SamplerError(f"worker {link.number} could not be started: it {link.dying}")
        else:
            self.begin(link.number)

    def is_ready(self, worker: int) -> bool:
        """Return whether a dead worker's replacement has started; start it if necessary."""
        if worker not in self._next:
            self.begin(worker)
        return self._next[worker].hello is not None

    def replacement_for(self, worker: int) -> RayLink:
        """Return the link to a dead worker's replacement, started or not."""
        return self._next.pop(worker) if worker in self._next else self.new(worker)

    @property
    def links(self) -> Collection[RayLink]:
        """The replacements not yet in use."""
        return self._next.values()

    def greet(self, link: RayLink, hello: Hello) -> None:
        """Let a started actor run, if its versions are those of this process."""
        here = versions()
        named = [(name, there, here.get(name)) for name, there in hello.versions.items()]
        differ = [f"{name} {there}, here {ours}" for name, there, ours in named if there != ours]
        if differ:
            self._next.pop(link.number, None)
            self._trouble = SamplerError(
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

    def raise_trouble(self) -> None:
        """Raise the pending error, or an error after too long a wait."""
        trouble, self._trouble = self._trouble, None
        if trouble is None and time.monotonic() >= self._deadline:
            self._deadline = math.inf
            trouble = self.late(len(self._next))
        if trouble is not None:
            raise trouble

    def late(self, n_missing: int) -> SamplerError:
        """Return the error of `n_missing` actors that have not started in time."""
        return SamplerError(
            f"{n_missing} of {self._demand.n_workers} workers have not started within {self.seconds:g} s in the Ray "
            f"cluster: each needs {self._demand}, and {self._demand.in_use()}. `ray list actors` and the nodes' logs "
            "may show the reason"
        )
