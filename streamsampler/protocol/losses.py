"""Decide whether the tickets of a lost worker run again. Pure: times are arguments.

A worker that died, hung, or raised an exception named in `Policy.restart_on` is a loss. Other workers run its tickets
again, from the same seeds. `Losses` counts losses against two quotas. Above either, the call ends with an error that
lists all. Where a quota is None, equal losses end the call instead: a failure repeated three times is a function of the
seed, and would repeat forever.
"""

from __future__ import annotations

import math
import re
import signal
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from streamsampler.core.errors import SpentQuota, UsageError, positive_seconds
from streamsampler.protocol.hangs import HangWatch
from streamsampler.protocol.limits import Limits, Quota, check_quota
from streamsampler.protocol.messages import Phase
from streamsampler.protocol.task_sections import TaskName

OnFailure = Literal["raise", "drop"]
Doing = Literal["steps", "constructs", "closes"]
"""A worker's activity, by its time limit: anything within trajectories, anything as slow as construction, or closing a
task's environment.
"""

_RESTARTS, _LIFETIME_RESTARTS, _WORKERS = 10, 100, 8
"""Default quotas, for up to `_WORKERS` workers: with more workers, each as likely to die, more die."""

_IN_ALL = "limits.max_lifetime_restarts"  # as users set it
_REMEMBERED = 100

_EQUAL, _EQUAL_BY_CHANCE = 2, 9
"""Most equal losses before an error if a quota is None: workers killed from outside may meet the same killer again."""

LEAST_CONSTRUCTION_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Policy(Limits):
    """The response to losses: the limits, and further arguments of `Sampler`."""

    max_restarts: Quota = "auto"
    restart_on: tuple[type[BaseException], ...] = ()
    on_failure: OnFailure = "raise"
    step_timeout: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_quota("max_restarts", self.max_restarts)
        if self.step_timeout is not None:
            positive_seconds("step_timeout", self.step_timeout)
        if self.on_failure not in ("raise", "drop"):
            raise UsageError(f'on_failure must be "raise" or "drop", got {self.on_failure!r}')
        types = self.restart_on
        if not isinstance(types, tuple) or not all(isinstance(t, type) and issubclass(t, BaseException) for t in types):
            raise UsageError(f"restart_on must be a tuple of exception types, got {types!r}")

    @property
    def drops(self) -> bool:
        return self.on_failure != "raise"

    def restarts_on(self, kinds: tuple[str, ...]) -> bool:
        """Whether an exception counts as a loss, by the names of its class and bases (see `messages.Failure`)."""
        return any(f"{kind.__module__}.{kind.__qualname__}" in kinds for kind in self.restart_on)

    def watch(self, *, closes: bool = False) -> HangWatch | None:
        """Return the watch for hangs, with a limit for each `Doing`, or None.

        Args:
            closes: Whether workers close environments within calls.
        """
        construction, has_limits = self.construction_timeout, self.step_timeout is not None
        if construction is None:
            construction = max(LEAST_CONSTRUCTION_SECONDS, self.step_timeout or 0.0) if has_limits else math.inf
        limits: dict[Hashable, float] = {"steps": self.step_timeout or math.inf, "constructs": construction}
        if closes:
            limits["closes"] = self.close_timeout
        return None if min(limits.values()) == math.inf else HangWatch(limits)


@dataclass(frozen=True, slots=True)
class LossKind:
    """The common features of equal losses."""

    subject: str  # "trajectory 7", "environment 3", or what `unready` returns
    cause: Hashable  # class and line of an exception, or cause of a death
    by_chance: bool = False  # whether the cause may be outside, such as a signal
    of_call: bool = False  # whether the subject exists in a single call


def unready(worker: int) -> str:
    return f"worker {worker} before it became ready"


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss."""

    worker: int
    what: str  # the end of a sentence: "was killed by SIGKILL"
    phase: Phase  # the worker's last known phase
    trajectory: int | None  # None outside trajectories
    version: int | None  # None if the worker had not started on the call
    seconds: float  # since the sampler was made
    exitcode: int | None = None  # negative for a signal; None if unknown or not dead
    stack: str = ""  # the Python stacks of a hung worker, if known
    hung: bool = False  # whether the worker was killed for lack of progress
    hopeless: bool = False  # whether a new worker would be lost, too, so none is started
    likeness: LossKind | None = None  # None if a similar loss would be chance
    task: TaskName | None = None  # if workers run several
    in_closing: bool = False  # of that task's environment; see `WorkerFault.costs_nothing_in`

    def __str__(self) -> str:
        where = "" if self.trajectory is None else f" in trajectory {self.trajectory}"
        if self.task is not None:
            where += f" of {self.task}"
        elif self.version is not None and where:
            where += f" of agent version {self.version}"
        return f"worker {self.worker} {self.what} while {self.phase}{where}"


@dataclass
class Losses:
    """A sampler's losses."""

    policy: Policy
    n_workers: int = 1
    incidents: deque[Loss] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))  # since the last error
    _recent: deque[float] = field(default_factory=deque)
    _n: int = 0
    _equal: dict[LossKind, int] = field(default_factory=dict)

    def begin_call(self) -> None:
        if self._equal:
            self._equal = {likeness: n for likeness, n in self._equal.items() if not likeness.of_call}

    @property
    def has_equal(self) -> bool:
        return bool(self._equal)

    def forget(self, subject: str) -> None:
        """Forget the equal losses of a subject after its success."""
        if self._equal:
            self._equal = {likeness: n for likeness, n in self._equal.items() if likeness.subject != subject}

    def count(self, incident: Loss) -> SpentQuota | None:
        """Count a loss; return the quota it exceeds, or None.

        After an exceeded quota or a hopeless loss the count starts at 0 again.
        """
        self.incidents.append(incident)
        self._n += 1
        window = self.policy.restart_window
        if window is not None:
            # This loss may precede the last counted, the latest so far.
            now = max(incident.seconds, self._recent[-1]) if self._recent else incident.seconds
            self._recent.append(now)
            while self._recent[0] <= now - window:
                self._recent.popleft()
        repeated = None if incident.likeness is None else self._repeated(incident.likeness)
        spent = None if incident.hopeless else self._spent() or repeated
        if spent is not None or incident.hopeless:
            self._recent.clear()
            self._equal.clear()
            self._n = 0
        return spent

    def _repeated(self, likeness: LossKind) -> SpentQuota | None:
        n = self._equal[likeness] = self._equal.get(likeness, 0) + 1
        quotas = {"max_restarts": self.policy.max_restarts, _IN_ALL: self.policy.max_lifetime_restarts}
        unlimited = [name for name, quota in quotas.items() if quota is None]
        given = [quota for quota in quotas.values() if isinstance(quota, int)]
        if not unlimited or n <= max([_EQUAL_BY_CHANCE if likeness.by_chance else _EQUAL, *given]):
            return None
        return SpentQuota(n, f" of {likeness.subject}", unlimited[0], None)

    def _spent(self) -> SpentQuota | None:
        window = self.policy.restart_window
        recent, within = (self._n, "") if window is None else (len(self._recent), f" within {window:g} s")
        most = self._most(self.policy.max_restarts, _RESTARTS)
        if most is not None and recent > most:
            return SpentQuota(recent, within, "max_restarts", most)
        most_ever = self._most(self.policy.max_lifetime_restarts, _LIFETIME_RESTARTS)
        if most_ever is not None and self._n > most_ever:
            return SpentQuota(self._n, " in all", _IN_ALL, most_ever)
        return None

    def _most(self, quota: Quota, default: int) -> int | None:
        if quota == "auto":
            return max(default, math.ceil(default * self.n_workers / _WORKERS))
        return quota

    def history(self) -> tuple[Loss, ...]:
        history = tuple(self.incidents)
        self.incidents.clear()
        return history


class LossesByTask(dict[TaskName | None, Losses]):
    """Counts the losses of each task separately, as a sampler of that task alone would.

    Losses under None are the sampler's own: before work on a ticket, or with a single task.
    """

    def __init__(self, policy: Policy, n_workers: int) -> None:
        super().__init__()
        self._policy, self._n_workers = policy, n_workers

    def __missing__(self, task: TaskName | None) -> Losses:
        losses = self[task] = Losses(self._policy, self._n_workers)
        return losses

    def begin_call(self) -> None:
        for losses in self.values():
            losses.begin_call()

    def forget(self, subject: str) -> None:
        for losses in self.values():
            losses.forget(subject)


def cause_of_exception(kind: str, traceback: str) -> tuple[str, str]:
    """Return an exception's class and innermost line, if known: equal exceptions agree in both."""
    frames = _FRAME.findall(traceback)
    return kind, frames[-1] if frames else ""


_FRAME = re.compile(r'^ *File "(.*", line \d+)', re.MULTILINE)

_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}


def was_killed(exitcode: int | None) -> bool:
    """Whether a process may have been killed from outside: by a signal without a fault of its own, or unknown."""
    if exitcode is None:
        return True
    return exitcode < 0 and -exitcode not in [getattr(signal, name, None) for name in _FAULTS]


def cause_of_death(exitcode: int | None) -> str:
    """Return the meaning of an exit code, as the end of a sentence."""
    if exitcode is None:
        return "ended with an unknown exit code"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hints = {
        "SIGKILL": " (often the kernel, when memory is short)",
        "SIGSEGV": " (a fault in native code)",
        "SIGABRT": " (native code called abort)",
        "SIGBUS": " (often a full file system or shared memory)",
    }
    return f"was killed by {name}{hints.get(name, '')}"
