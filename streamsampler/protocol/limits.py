"""Define the argument `limits` of samplers and managers: time, memory and restarts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from streamsampler.core.errors import UsageError, positive, positive_seconds
from streamsampler.core.keywords import suggesting

Quota = int | Literal["auto"] | None
"""Most losses before an error; "auto" depends on the number of workers, None is any number."""


@suggesting()
@dataclass(frozen=True, kw_only=True)
class Limits:
    """Set limits that few programs change: the argument `limits` of samplers, managers, `evaluate` and `compare`.

    For example `MultiprocessingSampler(agent, env, limits=Limits(close_timeout=30.0))`. Samplers and managers refuse
    limits without effect on them.

    Attributes:
        construction_timeout: Seconds for a worker to start and finish its first reset, to apply an update, and to send
            a report. None for 60 or `step_timeout` (of managers also `reset_timeout`), whichever is longer; no limit
            without a `step_timeout`. Needs worker processes.
        close_timeout: Seconds for all workers together to close their environments and run their exit handlers
            (`atexit`), at the end and when a worker is replaced. Then they are killed; a worker that does not start
            closing within a second is killed, too. If tasks of a suite share workers, also the seconds to close a
            task's environment before making the next. Needs worker processes.
        restart_window: Seconds within which `max_restarts` counts; None for the whole life of the sampler or manager.
        max_lifetime_restarts: Most workers replaced in the whole life. "auto" is 100 with up to eight workers, and in
            proportion with more. None is any number, but the same exception three times in a trajectory is an error.
        max_worker_memory: Bytes of private memory above which a worker is replaced between two tickets (see
            `stats.replaced`), which is no loss; None for no limit. Needs the engine "processes" or Ray.

    Raises:
        UsageError: A value is out of range.
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
    """Raise a UsageError unless `quota` is a number of losses, None or "auto"."""
    if quota not in (None, "auto") and (isinstance(quota, bool) or not isinstance(quota, int) or quota < 0):
        raise UsageError(f'{name} must be an integer of at least 0, None for any number, or "auto", got {quota!r}')


LIMITS = tuple(each.name for each in fields(Limits))
"""The names of all limits."""
DEFAULT_LIMITS = Limits()


def limits_of(given: Any, owner: str, lacks: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the argument `limits` as a dict; raise a UsageError for those its owner `lacks`, with reasons."""
    if not isinstance(given, Limits):
        raise UsageError(f"limits must be a Limits object, such as Limits(close_timeout=30.0), got {given!r}")
    limits = {name: getattr(given, name) for name in LIMITS}
    for name, reason in (lacks or {}).items():
        if limits[name] != getattr(DEFAULT_LIMITS, name):
            raise UsageError(f"{owner} takes no limits.{name}: {reason}. Omit it")
    return limits
