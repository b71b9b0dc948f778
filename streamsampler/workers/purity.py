"""Check that a trajectory depends on its seed alone: run it twice, before and after another trajectory.

Stand-ins record the values between environment and agent; the first difference identifies its source. Infos may contain
clock readings: keys which also differ between two runs in new environments are excluded.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from streamsampler.core.awaiting import then
from streamsampler.data.trees import same
from streamsampler.workers.base import Worker
from streamsampler.workers.explain import is_interrupt, name_of_env
from streamsampler.workers.known_wrappers import files_of, kind_of, stateful_wrapper

_checking: ContextVar[bool] = ContextVar("streamsampler_checking", default=False)

_LARGE = 4096
_SHOWN = 80


class _Missing:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _Missing()
_CLOCK = (".episode.t", ".episode._t")
ENV_INFO, AGENT_INFO = "info", "agent info"

InfoKey = tuple[str, str]
"""The kind, "info" (the environment's) or "agent info", and the key; dots separate nested keys."""


class _EnoughTimesteps(BaseException):
    """Ends a trajectory at the maximum number of compared timesteps."""


class CheckStopped(BaseException):
    """Ends a check when its time is over or its version may no longer run."""


class DifferentRun(BaseException):
    """Reports a trajectory with two different outcomes.

    Attributes:
        culprit: The place of the first difference: "agent" or "environment".
        text: A description.
    """

    def __init__(self, culprit: str, text: str) -> None:
        super().__init__(text)
        self.culprit = culprit
        self.text = text


@dataclass
class Trace:
    """Holds the values between environment and agent of the first run, to compare those of the second.

    Attributes:
        entries: Trajectory, name with timestep, and value.
        position: The next entry to compare; -1 while recording.
        infos: Values in infos, by key, trajectory and time.
    """

    entries: list[tuple[str, str, Any]] = field(default_factory=list)
    position: int = -1
    infos: dict[tuple[InfoKey, str, str], Any] = field(default_factory=dict)

    def record_or_compare(self, trajectory: str, what: str, value: Any) -> None:
        """Record a trajectory's value, or raise `DifferentRun` if it differs from the recorded value."""
        now = _snapshot(value)
        if self.position < 0:
            self.entries.append((trajectory, what, now))
            return
        *about, kept = self.entries[self.position] if self.position < len(self.entries) else ("", "", None)
        self.position += 1
        if about != [trajectory, what]:
            raise DifferentRun("environment", f"{trajectory} had another length")
        if not _same(kept, now):
            culprit = "agent" if what.startswith("action") else "environment"
            raise DifferentRun(culprit, f"{trajectory} came out differently: its {what} {_how(kept, now)}")

    def record_info(self, trajectory: str, whose: str, when: str, info: Any, path: str = "") -> None:
        if not isinstance(info, dict):
            return
        for key, value in info.items():
            name = f"{path}{key}"
            if isinstance(value, dict):
                self.record_info(trajectory, whose, when, value, f"{name}.")
            elif not f".{name}".endswith(_CLOCK):
                self.infos[(whose, name), trajectory, when] = _snapshot(value)

    def info_differences(self, other: Trace) -> dict[InfoKey, DifferentRun]:
        """Return the keys of infos which differ in another run, each with its first difference."""
        found: dict[InfoKey, DifferentRun] = {}
        for place in self.infos | other.infos:
            key, trajectory, when = place
            kept, now = (each.infos.get(place, _MISSING) for each in (self, other))
            if key not in found and not _same(kept, now):
                what = f"{trajectory} came out differently: its {key[0]} {key[1]!r} {when}"
                found[key] = DifferentRun(
                    "agent" if key[0] == AGENT_INFO else "environment", f"{what} {_how(kept, now)}"
                )
        return found


class _StandIn:
    """Passes calls on to an environment, records the results, and counts in `run`."""

    def __init__(self, env: Any, trajectory: str, trace: Trace, run: _Run) -> None:
        self._env, self._run = env, run
        self._record, self._record_info = (
            partial(trace.record_or_compare, trajectory),
            partial(trace.record_info, trajectory),
        )
        self._timestep = 0
        self._rows = n_slots_of(env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **arguments: Any) -> Any:
        self._run.check_may_run()
        self._run.trajectories += self._rows
        return then(self._env.reset(**arguments), self._record_reset)

    def _record_reset(self, result: Any) -> Any:
        self._record("first observation", result[0])
        self._record_info(ENV_INFO, "of the reset", *result[1:2])
        return result

    def step(self, action: Any) -> Any:
        if self._timestep >= TIMESTEPS:
            raise _EnoughTimesteps
        self._run.check_may_run()
        self._record(f"action at timestep {self._timestep}", action)
        return then(self._env.step(action), self._record_step)

    def _record_step(self, result: Any) -> Any:
        self._run.timesteps += self._rows
        for what, value in zip(("observation", "reward", "terminated", "truncated"), result, strict=False):
            self._record(f"{what} after timestep {self._timestep}", value)
        self._record_info(ENV_INFO, f"after timestep {self._timestep}", *result[4:5])
        self._timestep += 1
        return result

    def take_agent_info(self, timestep: int, info: Any, row: int | None = None) -> None:
        """Record an info of the agent: of a single row, or of all rows as arrays."""
        of_row = "" if row is None else f" of row {row}"
        self._record_info(AGENT_INFO, f"at timestep {timestep}{of_row}", info)


def is_checking() -> bool:
    return _checking.get()


def n_slots_of(env: Any) -> int:
    return int(env.num_envs) if isinstance(env, VectorEnv) else 1


def _how(kept: Any, now: Any) -> str:
    shown = [_shown(each) for each in (kept, now)]
    return f"was {shown[0]} and then {shown[1]}" if all(shown) and shown[0] != shown[1] else "was another one"


def _shown(value: Any) -> str:
    if isinstance(value, _Digest):
        return ""
    text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    return text if len(text) <= _SHOWN else ""


@dataclass(frozen=True)
class _Digest:
    shape: tuple[int, ...]
    dtype: str
    digest: bytes


def _snapshot(value: Any) -> Any:
    """Return a copy of a value, or a digest if it is large."""
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
        return None  # a value which cannot be copied counts as equal


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        # As bytes, so that NaN equals NaN.
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    try:
        return bool(one == other) or same(one, other)
    except Exception:
        return True  # values which cannot be compared count as equal


SECONDS = 0.2
"""With "warn", the check calls no reset or step after this time."""

TIMESTEPS = 200
"""Maximum number of timesteps of a trajectory to run and compare."""

WAYS_OUT = {
    "agent": (
        "The agent carries state from a trajectory to the next, or draws from an unseeded generator: its "
        "reset(seed=…), called at each trajectory's start, must clear the state and seed the generator; random, "
        "numpy.random and torch are seeded already"
    ),
    "environment": (
        "The environment or a wrapper carries state from a trajectory to the next, or draws from an unseeded "
        "generator: its reset must clear the state, and draws must come from self.np_random after "
        "super().reset(seed=seed); random, numpy.random and torch are seeded already"
    ),
}
"""Advice for a difference, by the place where it was first seen."""


@dataclass
class PurityCheck:
    """Holds the result of a worker's check of a kind of environment.

    Attributes:
        kind: The classes and the id of the environment; empty if nothing was checked.
        complete: Whether the check is finished; otherwise it resumes with the remaining time.
        seconds: Its duration, including earlier attempts.
        finding: The problem with advice, or empty.
        unstable: A warning of infos which differ from run to run in any case, or empty.
        spoiled: Whether environment and agent must be replaced, since they carry state or raised.
    """

    kind: str = ""
    complete: bool = True
    seconds: float = 0.0
    trajectories: int = 0
    timesteps: int = 0
    finding: str = ""
    unstable: str = ""
    spoiled: bool = False


def check_purity(
    worker: Worker, version: int, seeds_of: Callable[[range], list[int]], before: PurityCheck
) -> PurityCheck:
    """Check that a worker's trajectories depend on their seeds alone; an already checked kind is skipped.

    Unless the worker's `check` is "error", no reset or timestep starts more than `SECONDS` after the first.
    """
    envs = worker.environments()
    if not envs or not worker.can_rehearse:
        return PurityCheck()
    kind, strict = kind_of(envs[0]), worker.context.check == "error"
    has_begun = kind == before.kind
    if has_begun and before.complete:
        return PurityCheck(kind)
    finding = next(filter(None, map(stateful_wrapper, envs)), "")
    # A check would write files over the user's or among them. With "error" it runs all the same, and environment and
    # agent are replaced afterwards.
    writes = bool(files_of(envs))
    if finding or (writes and not strict):
        return PurityCheck(kind, finding=finding)
    began = perf_counter() - (before.seconds if has_begun else 0.0)
    found = PurityCheck(kind, spoiled=writes)
    run = _Run(worker, version, seeds_of, until=None if strict else began + SECONDS)
    try:
        run.check()
    except CheckStopped:
        pass
    except DifferentRun as difference:
        found.finding, found.spoiled = _finding(difference, envs[0]), True
    except BaseException as error:
        if is_interrupt(error):
            raise
        found.spoiled = True  # not a finding: the next rollout raises the same error
    found.seconds = perf_counter() - began
    time_is_up = not strict and found.seconds >= SECONDS
    found.complete = bool(found.finding) or time_is_up or worker.row.may_run(version)
    found.trajectories, found.timesteps = run.trajectories, run.timesteps
    found.unstable = _warning(run.unstable, envs[0])
    found.spoiled |= run.has_renewed
    return found


@dataclass
class _Run:
    """Runs a check, counts, and stops at the time `until`.

    Attributes:
        unstable: Infos which differ from run to run in any case.
        has_renewed: Whether agent and environments were replaced during the check.
    """

    worker: Worker
    version: int
    seeds_of: Callable[[range], list[int]]
    until: float | None
    trajectories: int = 0
    timesteps: int = 0
    unstable: set[InfoKey] = field(default_factory=set)
    has_renewed: bool = False

    def check_may_run(self) -> None:
        """Raise `CheckStopped` if no further reset or step may start."""
        if (self.until is not None and perf_counter() >= self.until) or not self.worker.row.may_run(self.version):
            raise CheckStopped

    def check(self) -> None:
        """Run the first trajectory, the second, and the first again; raise `DifferentRun` if the first differs."""
        first = self._trajectories(0, Trace())
        self._trajectories(1, Trace())
        again = self._trajectories(0, Trace(first.entries, position=0))
        differing = first.info_differences(again)
        if differing:
            self.unstable = self._unstable()
        for key, difference in differing.items():
            if key not in self.unstable:
                raise difference

    def _unstable(self) -> set[InfoKey]:
        """Return the infos which differ even if new environments run the trajectory first, thus without memory."""
        found = []
        for _ in range(2):
            self.worker.context.rebuild()
            self.has_renewed = True
            found.append(self._trajectories(0, Trace()))
        return set(found[0].info_differences(found[1]))

    def _trajectories(self, number: int, trace: Trace) -> Trace:
        """Run the first or second trajectory of each environment; return their trace."""
        worker, envs = self.worker, self.worker.environments()
        n_slots = sum(map(n_slots_of, envs))
        names = [f"trajectory {slot}" for slot in range(n_slots)]
        if len(envs) < n_slots:
            names = [f"one of trajectories 0 to {n_slots - 1}"]
        stand_ins = [_StandIn(worker.stepped(env), name, trace, self) for env, name in zip(envs, names, strict=True)]
        indices = range(number * n_slots, (number + 1) * n_slots)
        # Shows progress on the board between long resets, so that the worker does not seem to hang.
        worker.row.words[worker.row.timesteps_word] = self.timesteps
        token = _checking.set(True)
        try:
            worker.rehearse(self.version, indices, self.seeds_of(indices), stand_ins)
        except _EnoughTimesteps:
            pass
        finally:
            _checking.reset(token)
        return trace


def _warning(unstable: set[InfoKey], env: Any) -> str:
    if not unstable:
        return ""
    named = " and ".join(f"its {whose} {key!r}" for whose, key in sorted(unstable))
    return (
        f"{name_of_env(env)} was made twice and run from the same seed, and {named} differed, as clock "
        "readings do: these values differ between equal runs; no other difference was found"
    )


def _finding(difference: DifferentRun, env: Any) -> str:
    return (
        f"{name_of_env(env)} was run twice from the same seed, before and after another trajectory, and "
        f"{difference.text}. So batches differ with the number of workers and with timing. "
        f"{WAYS_OUT[difference.culprit]}. (check=None switches this check off)"
    )
