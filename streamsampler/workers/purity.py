"""Check that a trajectory depends on its seed alone: run it twice, before and after another trajectory.

The worker's own environment and agent are used, through stand-ins that note what passes between them. What is noted the
second time is compared at once with the first, so that the first difference shows where it comes from.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from streamsampler.protocol.messages import Checked, CheckOrder
from streamsampler.workers.base import Worker
from streamsampler.workers.explain import name_of_env
from streamsampler.workers.known_wrappers import files_of, kind_of, stateful_wrapper

__all__ = ["SECONDS", "TIMESTEPS", "Outcome", "check_purity", "is_checking"]

_checking: ContextVar[bool] = ContextVar("streamsampler_checking", default=False)

SECONDS = 0.2
"""With "warn": after that long no further reset or step begins."""

TIMESTEPS = 200
"""How many timesteps of a trajectory are run and compared."""

_LARGE = 4096
_SHOWN = 80

_WAYS_OUT = {
    "agent": (
        "The agent keeps something from one trajectory to the next, or draws from a generator that is not seeded: let "
        "its reset(seed=…), which is called at each trajectory's start, set back what it keeps and seed what it draws "
        "from; random, numpy.random and torch are seeded already"
    ),
    "environment": (
        "The environment or a wrapper keeps something from one trajectory to the next, or draws from a generator that "
        "is not seeded: let its reset set back what it keeps, and draw from self.np_random after "
        "super().reset(seed=seed); random, numpy.random and torch are seeded already"
    ),
}


class _Enough(BaseException):
    """A trajectory has as many timesteps as are compared."""


class _BrokenOff(BaseException):
    """The time is up, or the version may no longer run."""


class _Differs(BaseException):
    """A trajectory came out differently."""

    def __init__(self, culprit: str, text: str) -> None:
        super().__init__(text)
        self.culprit = culprit
        self.text = text


@dataclass
class Outcome:
    """The result of a check.

    Attributes:
        checked: What the answer says of it.
        spoiled: Whether environment and agent are to be replaced by new ones: they carry something, or raised.
    """

    checked: Checked
    spoiled: bool = False


@dataclass
class _Limits:
    """What ends a check early."""

    may_run: Callable[[], bool]
    until: float | None
    trajectories: int = 0
    timesteps: int = 0

    def look(self) -> None:
        """Raise if nothing more is to begin."""
        if (self.until is not None and perf_counter() >= self.until) or not self.may_run():
            raise _BrokenOff


@dataclass
class _Notes:
    """What passed through one stand-in: the first time it is kept, the second time compared.

    Attributes:
        trajectory: What to call the trajectory, or those of a vector environment.
        entries: What was kept.
        position: The entry that is compared next; -1 while entries are kept.
    """

    trajectory: str
    entries: list[tuple[str, Any]] = field(default_factory=list)
    position: int = -1

    def take(self, what: str, value: Any) -> None:
        """Keep a value, or compare it; `what` names it, and its timestep."""
        if self.position < 0:
            self.entries.append((what, _snapshot(value)))
            return
        kept_what, kept = self.entries[self.position] if self.position < len(self.entries) else ("", None)
        self.position += 1
        now = _snapshot(value)
        if kept_what != what:
            raise _Differs("environment", f"{self.trajectory} had another length")
        if not _same(kept, now):
            shown = [_shown(each) for each in (kept, now)]
            how = f"was {shown[0]} and then {shown[1]}" if all(shown) and shown[0] != shown[1] else "was another one"
            culprit = "agent" if what.startswith("action") else "environment"
            raise _Differs(culprit, f"{self.trajectory} came out differently: its {what} {how}")


class _StandIn:
    """Passes on what an environment is asked, and notes the answers.

    Args:
        env: The environment, or vector environment.
        notes: What passes through.
        limits: What ends the check.
    """

    def __init__(self, env: Any, notes: _Notes, limits: _Limits) -> None:
        self._env, self._notes, self._limits = env, notes, limits
        self._timestep = 0
        self._rows = _n_slots(env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **arguments: Any) -> Any:
        self._limits.look()
        self._limits.trajectories += self._rows
        result = self._env.reset(**arguments)
        self._notes.take("first observation", result[0])
        return result

    def step(self, action: Any) -> Any:
        if self._timestep >= TIMESTEPS:
            raise _Enough
        self._limits.look()
        self._notes.take(f"action at timestep {self._timestep}", action)
        result = self._env.step(action)
        self._limits.timesteps += self._rows
        for what, value in zip(("observation", "reward", "terminated", "truncated"), result, strict=False):
            self._notes.take(f"{what} after timestep {self._timestep}", value)
        self._timestep += 1
        return result


def is_checking() -> bool:
    """Return whether user code is being run for a check."""
    return _checking.get()


def check_purity(worker: Worker, order: CheckOrder, version: int, seeds_of: Callable[[range], list[int]]) -> Outcome:
    """Check that trajectories of a worker depend on their seeds alone.

    Args:
        worker: The worker, with its agent and its environments.
        order: What was checked before.
        version: The agent version in hand. The check ends when it may no longer run.
        seeds_of: Gives the seeds of trajectories.

    Returns:
        What the answer says of it, and whether agent and environment are to be replaced.

    Raises:
        KeyboardInterrupt: The user's.
    """
    envs = worker.environments()
    if not envs or not worker.can_rehearse:
        return Outcome(Checked(complete=True))
    kind, strict = kind_of(envs[0]), worker.context.check == "error"
    if kind == order.done:
        return Outcome(Checked(kind, complete=True))
    finding = next(filter(None, map(stateful_wrapper, envs)), "")
    # A check would write files of its own, over the user's or among them. Where it must be, all begins again after it.
    writes = bool(files_of(envs))
    if finding or (writes and not strict):
        return Outcome(Checked(kind, complete=True, finding=finding))
    began = perf_counter()
    until = None if strict else began + SECONDS - (order.seconds if kind == order.begun else 0.0)
    limits = _Limits(lambda: worker.row.may_run(version), until)
    spoiled = writes
    try:
        _compare(worker, envs, version, seeds_of, limits)
    except _BrokenOff:
        pass
    except _Differs as difference:
        finding, spoiled = _finding(difference, envs[0]), True
    except KeyboardInterrupt:
        raise
    except BaseException:  # no verdict: the rollout to come raises it again
        spoiled = True
    seconds = perf_counter() - began + (order.seconds if kind == order.begun else 0.0)
    complete = bool(finding) or worker.row.may_run(version) or (not strict and seconds >= SECONDS)
    return Outcome(Checked(kind, complete, limits.trajectories, limits.timesteps, seconds, finding), spoiled)


def _compare(worker: Worker, envs: Any, version: int, seeds_of: Callable[[range], list[int]], limits: _Limits) -> None:
    """Run a trajectory, another one, and the first one again; of several environments, one in each at a time."""
    n_slots = sum(map(_n_slots, envs))
    first, other = range(n_slots), range(n_slots, 2 * n_slots)

    def run(indices: range, notes: list[_Notes]) -> None:
        stand_ins = [_StandIn(env, each, limits) for env, each in zip(envs, notes, strict=True)]
        token = _checking.set(True)
        try:
            worker.rehearse(version, indices, seeds_of(indices), stand_ins)
        except _Enough:
            pass
        finally:
            _checking.reset(token)

    names = [f"one of trajectories 0 to {n_slots - 1}"] if len(envs) < n_slots else map("trajectory {}".format, first)
    notes = [_Notes(name) for name in names]
    run(first, notes)
    run(other, [_Notes("") for _ in envs])
    for each in notes:
        each.position = 0
    run(first, notes)


def _n_slots(env: Any) -> int:
    return int(env.num_envs) if isinstance(env, VectorEnv) else 1


def _finding(difference: _Differs, env: Any) -> str:
    return (
        f"{name_of_env(env)} was run twice from the same seed, before and after another trajectory, and "
        f"{difference.text}. So batches differ with the number of workers and with timing. "
        f"{_WAYS_OUT[difference.culprit]}. (check=None switches this check off)"
    )


def _shown(value: Any) -> str:
    if isinstance(value, _Digest):
        return ""
    text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    return text if len(text) <= _SHOWN else ""


@dataclass(frozen=True)
class _Digest:
    """What is kept of a large array."""

    shape: tuple[int, ...]
    dtype: str
    digest: bytes


def _snapshot(value: Any) -> Any:
    """Return a copy of what an environment or an agent gave, which may be used again by it; a digest if it is large."""
    if isinstance(value, dict):
        return {key: _snapshot(child) for key, child in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map(_snapshot, value))
    if isinstance(value, np.ndarray) and value.dtype != object:
        if value.nbytes <= _LARGE:
            return value.copy()
        digest = hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=16).digest()
        return _Digest(value.shape, value.dtype.str, digest)
    if isinstance(value, np.generic | int | float | str | bytes | None):
        return value
    try:
        return _snapshot(np.asarray(value)) if hasattr(value, "__array__") else copy.deepcopy(value)
    except Exception:
        return None  # what cannot be copied is no verdict


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        # Their bytes: a NaN is the same as itself.
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    try:
        return bool(one == other)
    except Exception:
        return True  # what cannot be compared is no verdict
