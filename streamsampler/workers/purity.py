"""Check that a trajectory depends on its seed alone: run it twice, before and after another trajectory.

The worker's own environment and agent are used, through stand-ins that note what passes between them. What is noted the
second time is compared at once with the first, so that the first difference shows where it comes from. Infos are
compared at the end: what differs there may be read off a clock. Then new environments run the trajectory first, twice,
and what differs between these, too, is no memory.
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

# ----------------------------------------------------------------------
# Note what passes between an environment and an agent, and compare it with another run of the same trajectories.


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
"""Whose info it is, "info" of the environment or "agent info", and the key; dots are between nested keys."""


class _Enough(BaseException):
    """A trajectory has as many timesteps as are compared."""


class BrokenOff(BaseException):
    """The time is up, or the version may no longer run."""


class DifferentRun(BaseException):
    """A trajectory came out differently.

    Attributes:
        culprit: Where the difference was first seen: "agent" or "environment".
        text: What was different.
    """

    def __init__(self, culprit: str, text: str) -> None:
        super().__init__(text)
        self.culprit = culprit
        self.text = text


@dataclass
class Trace:
    """What passed through the stand-ins: the first time it is kept, the second time compared.

    Attributes:
        entries: What was kept: of which trajectory, what it is, with its timestep, and the value.
        position: The entry that is compared next; -1 while entries are kept.
        infos: What was in infos, by key, trajectory and when that was; see `info_differences`.
    """

    entries: list[tuple[str, str, Any]] = field(default_factory=list)
    position: int = -1
    infos: dict[tuple[InfoKey, str, str], Any] = field(default_factory=dict)

    def keep_or_compare(self, trajectory: str, what: str, value: Any) -> None:
        """Keep a value of a trajectory, or compare it; `what` names it, and its timestep.

        Raises:
            Difference: It is another value than the one that was kept.
        """
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

    def take_info(self, trajectory: str, whose: str, when: str, info: Any, path: str = "") -> None:
        """Keep what is in an info, except what `RecordEpisodeStatistics` reads off the clock."""
        if not isinstance(info, dict):
            return
        for key, value in info.items():
            name = f"{path}{key}"
            if isinstance(value, dict):
                self.take_info(trajectory, whose, when, value, f"{name}.")
            elif not f".{name}".endswith(_CLOCK):
                self.infos[(whose, name), trajectory, when] = _snapshot(value)

    def info_differences(self, other: Trace) -> dict[InfoKey, DifferentRun]:
        """Return in which keys of infos another run of the trajectories differs, each with its first difference."""
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
    """Passes on what an environment is asked, and notes the answers.

    Args:
        env: The environment, or vector environment.
        trajectory: What to call the trajectory, or those of a vector environment.
        trace: Notes what passes through.
        run: Is told what is about to begin, and ended.
    """

    def __init__(self, env: Any, trajectory: str, trace: Trace, run: _Run) -> None:
        self._env, self._run = env, run
        self._note, self._take_info = partial(trace.keep_or_compare, trajectory), partial(trace.take_info, trajectory)
        self._timestep = 0
        self._rows = n_slots_of(env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **arguments: Any) -> Any:
        self._run.look()
        self._run.trajectories += self._rows
        return then(self._env.reset(**arguments), self._note_reset)

    def _note_reset(self, result: Any) -> Any:
        self._note("first observation", result[0])
        self._take_info(ENV_INFO, "of the reset", *result[1:2])
        return result

    def step(self, action: Any) -> Any:
        if self._timestep >= TIMESTEPS:
            raise _Enough
        self._run.look()
        self._note(f"action at timestep {self._timestep}", action)
        return then(self._env.step(action), self._note_step)

    def _note_step(self, result: Any) -> Any:
        self._run.timesteps += self._rows
        for what, value in zip(("observation", "reward", "terminated", "truncated"), result, strict=False):
            self._note(f"{what} after timestep {self._timestep}", value)
        self._take_info(ENV_INFO, f"after timestep {self._timestep}", *result[4:5])
        self._timestep += 1
        return result

    def take_agent_info(self, timestep: int, info: Any, row: int | None = None) -> None:
        """Note an info of the agent: of one row, or those of all rows in arrays."""
        of_row = "" if row is None else f" of row {row}"
        self._take_info(AGENT_INFO, f"at timestep {timestep}{of_row}", info)


def is_checking() -> bool:
    """Return whether user code is being run for a check."""
    return _checking.get()


def n_slots_of(env: Any) -> int:
    """Return how many trajectories run side by side in an environment."""
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
        return bool(one == other) or same(one, other)
    except Exception:
        return True  # what cannot be compared is no verdict


# ----------------------------------------------------------------------


SECONDS = 0.2
"""With "warn": after that long no further reset or step begins."""

TIMESTEPS = 200
"""How many timesteps of a trajectory are run and compared."""

WAYS_OUT = {
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
"""What to do where a trajectory came out differently, by where that was first seen."""


@dataclass
class PurityCheck:
    """What a worker knows after it has checked one kind of environment.

    Attributes:
        kind: The classes and the id of the environment; empty where nothing was checked.
        complete: Whether the check is done; otherwise it goes on with what is left of its time.
        seconds: What it took, with what an earlier attempt took.
        trajectories: How many trajectories were begun.
        timesteps: Their timesteps.
        finding: What is wrong, with the way out; empty where nothing was found.
        unstable: What to warn of because it differs from run to run, whatever was run before; empty for nothing.
        spoiled: Whether environment and agent are to be replaced by new ones: they carry something, or raised.
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
    """Check that trajectories of a worker depend on their seeds alone.

    No reset or timestep begins later than `SECONDS` after the first one, unless the worker's `check` is "error".

    Args:
        worker: The worker, with its agent and its environments.
        version: The agent version in hand. The check ends when it may no longer run.
        seeds_of: Gives the seeds of trajectories.
        before: What the worker checked last: a kind of environment whose check is complete is not checked again.

    Raises:
        BaseException: What interrupts it; see `is_interrupt`.
    """
    envs = worker.environments()
    if not envs or not worker.can_rehearse:
        return PurityCheck()
    kind, strict = kind_of(envs[0]), worker.context.check == "error"
    has_begun = kind == before.kind
    if has_begun and before.complete:
        return PurityCheck(kind)
    finding = next(filter(None, map(stateful_wrapper, envs)), "")
    # A check would write files of its own, over the user's or among them. Where it must be, all begins again after it.
    writes = bool(files_of(envs))
    if finding or (writes and not strict):
        return PurityCheck(kind, finding=finding)
    began = perf_counter() - (before.seconds if has_begun else 0.0)
    found = PurityCheck(kind, spoiled=writes)
    run = _Run(worker, version, seeds_of, until=None if strict else began + SECONDS)
    try:
        run.check()
    except BrokenOff:
        pass
    except DifferentRun as difference:
        found.finding, found.spoiled = _finding(difference, envs[0]), True
    except BaseException as error:
        if is_interrupt(error):
            raise
        found.spoiled = True  # no verdict: the rollout to come raises it again
    found.seconds = perf_counter() - began
    time_is_up = not strict and found.seconds >= SECONDS
    found.complete = bool(found.finding) or time_is_up or worker.row.may_run(version)
    found.trajectories, found.timesteps = run.trajectories, run.timesteps
    found.unstable = _warning(run.unstable, envs[0])
    found.spoiled |= run.has_renewed
    return found


@dataclass
class _Run:
    """A check that goes on.

    Attributes:
        worker: The worker.
        version: The agent version in hand.
        seeds_of: Gives the seeds of trajectories.
        until: The time after which no further reset or step begins; None for any.
        trajectories: How many trajectories were begun.
        timesteps: How many timesteps were run.
        unstable: Which infos differ from run to run, whatever was run before.
        has_renewed: Whether agent and environments were replaced on the way.
    """

    worker: Worker
    version: int
    seeds_of: Callable[[range], list[int]]
    until: float | None
    trajectories: int = 0
    timesteps: int = 0
    unstable: set[InfoKey] = field(default_factory=set)
    has_renewed: bool = False

    def look(self) -> None:
        """Raise if nothing more is to begin.

        Raises:
            BrokenOff: Nothing is.
        """
        if (self.until is not None and perf_counter() >= self.until) or not self.worker.row.may_run(self.version):
            raise BrokenOff

    def check(self) -> None:
        """Run the first trajectory, the second one, and the first one again; look at infos that differ.

        Raises:
            Difference: The first trajectory came out differently.
            BrokenOff: It was broken off.
        """
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
        """Return which infos differ where new environments run the trajectory first: in these there is no memory."""
        found = []
        for _ in range(2):
            self.worker.context.rebuild()
            self.has_renewed = True
            found.append(self._trajectories(0, Trace()))
        return set(found[0].info_differences(found[1]))

    def _trajectories(self, number: int, trace: Trace) -> Trace:
        """Run the first or the second trajectory, of several environments one in each at a time; return their trace."""
        worker, envs = self.worker, self.worker.environments()
        n_slots = sum(map(n_slots_of, envs))
        names = [f"trajectory {slot}" for slot in range(n_slots)]
        if len(envs) < n_slots:
            names = [f"one of trajectories 0 to {n_slots - 1}"]
        stand_ins = [_StandIn(worker.stepped(env), name, trace, self) for env, name in zip(envs, names, strict=True)]
        indices = range(number * n_slots, (number + 1) * n_slots)
        # So the board changes from one long reset of a trajectory to the next, and the worker does not seem to hang.
        worker.row.words[worker.row.timesteps_word] = self.timesteps
        token = _checking.set(True)
        try:
            worker.rehearse(self.version, indices, self.seeds_of(indices), stand_ins)
        except _Enough:
            pass
        finally:
            _checking.reset(token)
        return trace


def _warning(unstable: set[InfoKey], env: Any) -> str:
    if not unstable:
        return ""
    named = " and ".join(f"its {whose} {key!r}" for whose, key in sorted(unstable))
    return (
        f"{name_of_env(env)} was made twice and run from the same seed, and {named} differed, as what is read off a "
        "clock does: batches differ in that from run to run, and in nothing else that was seen"
    )


def _finding(difference: DifferentRun, env: Any) -> str:
    return (
        f"{name_of_env(env)} was run twice from the same seed, before and after another trajectory, and "
        f"{difference.text}. So batches differ with the number of workers and with timing. "
        f"{WAYS_OUT[difference.culprit]}. (check=None switches this check off)"
    )
