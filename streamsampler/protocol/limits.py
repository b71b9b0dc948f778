"""Limits of time, memory and restarts that few users change: the argument `limits` of samplers and managers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from streamsampler.core.errors import UsageError, positive, positive_seconds
from streamsampler.core.keywords import suggesting

Quota = int | Literal["auto"] | None
"""How many losses end no call; "auto" depends on the number of workers, and None is any number."""


@suggesting()
@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits whose defaults fit most programs: the argument `limits` of samplers, managers, `evaluate` and `compare`.

    For example `MultiprocessingSampler(agent, env, limits=Limits(close_timeout=30.0))`. A sampler or manager refuses a
    limit that it cannot keep.

    Attributes:
        construction_timeout: Seconds that a worker may take from its start to its first reset, for an update, and to
            send a report. None for 60 or `step_timeout` (of managers `reset_timeout`, too), whichever is longer; for no
            limit where there is no `step_timeout`. Needs worker processes.
        close_timeout: Seconds that all workers together may take to close their environments and to run the exit
            handlers (`atexit`) that were registered in them, at the end and when a worker is replaced. Then they are
            killed. A worker that does not begin within a second is killed, too. Where the tasks of a suite share
            workers, also the seconds that a worker may take to close the environment of a task before it makes that of
            another one. Needs worker processes.
        restart_window: Seconds within which `max_restarts` counts; None for the whole life of the sampler or manager.
        max_lifetime_restarts: How many workers are replaced in the whole life; None for any number of losses that are
            not equal (three times the same exception in one trajectory is an error), and "auto" for 100 with up to
            eight workers, in proportion with more.
        max_worker_memory: Bytes of private memory above which a worker is replaced between two tickets (see
            `stats.replaced`), which does not count as a loss; None for no limit. Needs the engine "processes" or Ray.

    Raises:
        UsageError: A value cannot work.
    """

    construction_timeout: float | None = None
    close_timeout: float = 5.0
    restart_window: float | None = 60.0
    max_lifetime_restarts: Quota = "auto"
    max_worker_memory: int | None = None

    def __post_init__(self) -> None:
        check_quota("max_lifetime_restarts", self.max_lifetime_restarts)
        for name in ("restart_window", "construction_timeout"):
            if getattr(self, name) is not None:
                positive_seconds(name, getattr(self, name))
        positive_seconds("close_timeout", self.close_timeout)
        if self.max_worker_memory is not None:
            positive("max_worker_memory", self.max_worker_memory)


def check_quota(name: str, quota: Any) -> None:
    """Refuse a value that is no quota of losses."""
    if quota not in (None, "auto") and (isinstance(quota, bool) or not isinstance(quota, int) or quota < 0):
        raise UsageError(f'{name} must be an integer of at least 0, None for any number, or "auto", got {quota!r}')


LIMITS = tuple(each.name for each in fields(Limits))
"""The names of all limits."""
DEFAULT_LIMITS = Limits()


def limits_of(given: Any, owner: str, lacks: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the argument `limits` as a dict by name; refuse those that its owner lacks, with the reasons."""
    if not isinstance(given, Limits):
        raise UsageError(f"limits must be a Limits, such as Limits(close_timeout=30.0), got {given!r}")
    limits = {name: getattr(given, name) for name in LIMITS}
    for name, reason in (lacks or {}).items():
        if limits[name] != getattr(DEFAULT_LIMITS, name):
            raise UsageError(f"{owner} takes no limits.{name}: {reason}. Leave it out")
    return limits
