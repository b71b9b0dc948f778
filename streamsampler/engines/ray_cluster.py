"""Attach this process to a Ray cluster, or start a cluster. Needs `pip install ray`."""

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
        """Check the cluster's room, now or as soon as Ray has freed the resources of ended actors.

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
        names = self.amounts()
        has, free = (_listed(amounts, names) for amounts in (ray.cluster_resources(), ray.available_resources()))
        return f"the cluster has {has} in all, {free} free"


def _listed(has: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{has.get(name, 0.0):g} {name}" for name, amount in names.items() if amount)


_lock = threading.Lock()
_leases: set[Lease] = set()
_is_ours = False  # whether this module has called `ray.init`


class Lease:
    """The use of this process's cluster; the last release ends a cluster started here."""

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
    """Attach this process to a cluster, or start a cluster; check its room.

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
    """Return IP address and port of `host:port`; raise a UsageError for an invalid or unknown address."""
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
    """Check for a program at an address: Ray itself would try for minutes."""
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
