"""The Ray cluster that workers live in: attach to one, or start one; say what it lacks. Needs `pip install ray`."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from streamsampler.core.errors import SamplerError, UsageError

_LOOK_SECONDS = 4.0  # that a machine may take to answer at a port
_RELEASE_SECONDS = 3  # that Ray may take to count as free what an actor had that has ended
_OPTIONS = (
    *("num_cpus", "num_gpus", "memory", "resources"),
    *("accelerator_type", "label_selector", "scheduling_strategy"),
)


@dataclass(frozen=True)
class Demand:
    """What workers need of a cluster.

    Attributes:
        n_workers: How many workers there are.
        options: What Ray is asked for each of them; see `worker_resources` of `RaySampler`.
    """

    n_workers: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping) or not set(self.options) <= set(_OPTIONS):
            raise UsageError(f"worker_resources must be a dict with keys among {', '.join(_OPTIONS)}; {self.options!r}")
        for name, amount in self.amounts().items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
                raise UsageError(f"worker_resources: {name} must be a number of at least 0, got {amount!r}")

    def amounts(self) -> dict[str, Any]:
        """Return how much a worker needs of each resource, by Ray's names."""
        given = {"CPU": self.options.get("num_cpus", 1), "GPU": self.options.get("num_gpus", 0)}
        given["memory"] = self.options.get("memory", 0)
        return {**given, **self.options.get("resources", {})}

    def __str__(self) -> str:
        return ", ".join(f"{amount:g} {name}" for name, amount in self.amounts().items() if amount) or "nothing"

    def check(self) -> None:
        """Raise an error if the cluster has no room; what has just ended may be free soon.

        All that the workers need is reserved together, which Ray does as soon as it is free, and given back at once.

        Raises:
            SamplerError: There is no room.
        """
        bundle = {name: amount for name, amount in self.amounts().items() if amount}
        if not bundle or self.options.get("scheduling_strategy") is not None:  # which may be room that is reserved
            return
        group = placement_group(self.n_workers * [bundle])
        try:
            if not group.wait(_RELEASE_SECONDS):
                raise SamplerError(
                    f"the Ray cluster has no room for {self.n_workers} workers, of which each needs {self}: "
                    f"{self.in_use()}; see `ray status`; take fewer workers, ask for less in worker_resources, add "
                    "nodes, or wait for what else runs there"
                )
        finally:
            remove_placement_group(group)

    def in_use(self) -> str:
        """Return what the cluster has of what workers need, and what of that is free."""
        names = self.amounts()
        has, free = (_listed(amounts, names) for amounts in (ray.cluster_resources(), ray.available_resources()))
        return f"it has {has}, of which {free} is free"


def _listed(has: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{has.get(name, 0.0):g} {name}" for name, amount in names.items() if amount)


# ---------------------------------------------------------------------- attaching

_lock = threading.Lock()
_leases: set[Lease] = set()
_is_ours = False  # whether this module has called `ray.init`


class Lease:
    """The use of the cluster that this process is attached to; the last one to be released ends what was started."""

    def __init__(self) -> None:
        self._job = ray.get_runtime_context().get_job_id()

    @property
    def valid(self) -> bool:
        """Whether this process is still attached; somebody else may have called `ray.shutdown`."""
        return bool(ray.is_initialized() and ray.get_runtime_context().get_job_id() == self._job)

    def release(self) -> None:
        """Release it; may be repeated."""
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
    """Attach this process to a cluster, or start one; check that it has room.

    Args:
        address: `host:port`, "auto" for a cluster that runs on this machine, "local" to start one; None for what this
            process is attached to already, or the variable RAY_ADDRESS says, or else "local".
        demand: What the workers need.

    Raises:
        UsageError: This is no address, or this process is attached to another cluster.
        SamplerError: There is no cluster, none can be started, or it has no room.
    """
    global _is_ours
    with _lock:
        if ray.is_initialized():
            _check_same(address)
        else:
            _leases.clear()  # somebody else called `ray.shutdown`
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
    """Return the numbers of `host:port`.

    Raises:
        UsageError: It is none, or the host is unknown.
    """
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
            ray.shutdown()  # what was started before it failed
        what = "no Ray cluster could be started" if address == "local" else f"cannot attach to Ray at {address}"
        raise SamplerError(f"{what}: {' '.join(str(error).split()) or type(error).__name__}") from error


def _check_listening(address: str) -> None:
    """Check that there is a program at an address: Ray itself would try for minutes."""
    try:
        socket.create_connection(_resolved(address), timeout=_LOOK_SECONDS).close()
    except OSError as error:
        raise SamplerError(
            f"no Ray cluster at {address}: {error}; start a cluster with `ray start --head --port=PORT`, take the "
            "address that it shows, or leave ray_address out to start one on this machine"
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let Ray report nothing about its use, and print nothing on its way."""
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
