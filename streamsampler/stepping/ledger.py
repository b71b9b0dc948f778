"""Keep account of the requests to environments: which are open, answered, or await their caller. Pure: no I/O."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import ProtocolError
from streamsampler.core.times import Times
from streamsampler.core.timing import Collector, Measured, ScriptTimes, collecting
from streamsampler.data.statistics import Aggregation, Stats
from streamsampler.stepping.call_errors import CallPendingError, ResetFirstError

# ----------------------------------------------------------------------
# What a manager of environments did, in numbers.


# ----------------------------------------------------------------------
# Where the time of a process with environments goes, measured there.


IN_STEP: Final = 0
_IN_RESET: Final = 1
_TIMED_AS = ("step", "reset")


class WorkerReport(NamedTuple):
    """What a process did since its last report.

    Attributes:
        worker: The worker number.
        times: Where its time went.
        timesteps: How many timesteps its environments ran.
        timed: What they measured, by phase; None for nothing.
    """

    worker: int
    times: Times
    timesteps: int
    timed: Measured | None


class _Resetting:
    """Takes a block for a reset; see `EnvTimes`."""

    def __init__(self, times: EnvTimes) -> None:
        self._times = times
        self._began = 0.0

    def __enter__(self) -> None:
        self._began, self._times.phase[0] = perf_counter(), _IN_RESET

    def __exit__(self, *_: object) -> None:
        self._times.reset_seconds += perf_counter() - self._began
        self._times.phase[0] = IN_STEP


class EnvTimes:
    """Adds up the time of environments, between two reports.

    Args:
        worker: The worker number.

    Attributes:
        phase: One word: `IN_STEP`, or that it is a reset, for what environments time themselves.
        resetting: Takes a block for a reset: `with times.resetting: …`.
        timesteps: How many timesteps were run.
        reset_seconds: What resets took, and making environments anew.
        env_seconds: What resets and steps took.
        busy_seconds: The same, and what was done to receive actions and send results.
    """

    def __init__(self, worker: int) -> None:
        self.phase = [IN_STEP]
        self.resetting = _Resetting(self)
        self._worker = worker
        self._collector = Collector(self.phase, 0, _TIMED_AS)
        self._clear()

    def _clear(self) -> None:
        self.timesteps = 0
        self.reset_seconds = self.env_seconds = self.busy_seconds = 0.0
        self._began = perf_counter()

    def collecting(self) -> collecting:
        """Collect what environments time."""
        return collecting(self._collector)

    @property
    def seconds(self) -> float:
        """How long ago the last report was."""
        return perf_counter() - self._began

    def take(self) -> WorkerReport:
        """Return what was added up, and begin again."""
        busy = max(self.busy_seconds, self.env_seconds)
        times = Times(
            reset=self.reset_seconds, step=max(0.0, self.env_seconds - self.reset_seconds),
            sending=busy - self.env_seconds, idle=max(0.0, self.seconds - busy),
        )  # fmt: skip
        report = WorkerReport(self._worker, times, self.timesteps, self._collector.take())
        self._clear()
        return report


# ----------------------------------------------------------------------


@dataclass
class ManagerStats(Stats):
    """What a manager did in its whole life: `Stats` of a sampler, in which a trajectory is an episode.

    `kept_trajectories` are episodes whose end was handed out, `failed_trajectories` those that ended because their
    environment failed, and `abandoned_trajectories` those that a reset by the caller cut short. `kept_timesteps` are
    all that were handed out, `abandoned_timesteps` those whose results a reset discarded, and `lost_timesteps` those
    that were run to restore environments. `episodes` stays empty, since a manager adds up no rewards. `seconds` is the
    time since the launch, of all launches together; `workers` has what workers last said, which is at most about a
    second old for those that are at work.

    Attributes:
        failures: How often an environment raised, or a worker died or hung.
        restored: Environments that were made what they were.
        not_restored: Environments that could not be, so that their episodes ended.
    """

    failures: int = 0
    restored: int = 0
    not_restored: int = 0
    _launched_at: float | None = None

    @classmethod
    def for_workers(cls, n_workers: int) -> ManagerStats:
        """Return empty accounts."""
        return cls(workers=[Times()] * n_workers, worker_timesteps=[0] * n_workers, script=ScriptTimes())

    def tick(self, *, running: bool) -> None:
        """Add the time since the last call, and begin to count, or stop."""
        now = time.monotonic()
        if self._launched_at is not None:
            self.seconds += now - self._launched_at
        self._launched_at = now if running else None

    def take_worker(self, report: WorkerReport) -> None:
        """Add what a worker says of its time."""
        self.reports += 1
        self.workers[report.worker] = self.workers[report.worker].plus(report.times)
        self.worker_timesteps[report.worker] += report.timesteps
        if report.timed is not None:
            self.take_measured(report.worker, report.timed)

    def take_results(self, timesteps: NDArray[np.int64], ended: NDArray[np.bool_], failed: NDArray[np.bool_]) -> None:
        """Add results that are handed out.

        Args:
            timesteps: (K,) the number of each in its episode; 0 for a reset.
            ended: (K,) whether the episode ended.
            failed: (K,) whether it ended because its environment failed.
        """
        n_failed = int(np.count_nonzero(failed))
        self.kept_timesteps += int(np.count_nonzero(timesteps)) - n_failed
        self.kept_trajectories += int(np.count_nonzero(ended)) - n_failed
        self.failed_trajectories += n_failed

    def take_infos(self, batch: Any, how: dict[str, Aggregation]) -> dict[str, float]:  # type: ignore[override]
        """Add values that environments report in infos: `manager.stats.take_infos(steps, {"crashes": "sum"})`.

        Args:
            batch: `Steps`.
            how: See `Stats.take_infos`, as the rest.
        """
        return super().take_infos(_InfosOf(batch.infos), how)


@dataclass(frozen=True)
class _InfosOf:
    env_infos: Any


# ----------------------------------------------------------------------


# ----------------------------------------------------------------------
# The states of an environment that is stepped from the parent, and what the parent may ask of it. Pure: no I/O.
#
# ```text
#             RESET              BEGAN           SENT                 STEPPED
#   VOID ─────────────▶ RESETTING ─────▶ READY ────────▶ STEPPING ───────────────▶ READY
#                        ▲   ▲                              │  │
#                  RESET │   │ RESET                  ENDED │  │ REACHED_LIMIT
#                        │   └───────── NEEDS_RESET ◀───────┘  └────────▶ FINISHED
#                     FAILED ◀── BROKE, from any state with an environment
# ```
#
# An environment has at most one open request: a reset (RESETTING) or a step (STEPPING). A request is open until its
# result is handed to the caller, or discarded because the caller asked for a reset meanwhile. CLOSED is reached from
# every state, and left again by a launch.
#
# A step that ends an episode is STEPPED where the environment resets itself, and ENDED where the caller has to do
# that.


class EnvState(Enum):
    """What the parent knows of an environment."""

    __hash__ = object.__hash__  # quicker in a dict: that of enums is a function in Python

    VOID = "void"  # there is no episode yet
    RESETTING = "resetting"  # a reset is open
    READY = "ready"  # awaits an action
    STEPPING = "stepping"  # a step is open
    NEEDS_RESET = "needs reset"  # the episode has ended, and the caller is to reset the environment
    FINISHED = "finished"  # has run as many episodes as it was to run
    FAILED = "failed"  # raised, died, hung or was abnormal; a reset recovers it
    CLOSED = "closed"


class EnvEvent(Enum):
    """What changes the state of an environment."""

    __hash__ = object.__hash__

    RESET = "a reset was requested"
    BEGAN = "the result of a reset was handed out"
    SENT = "an action was sent"
    STEPPED = "the result of a step was handed out"
    ENDED = "the result of a step that ended the episode was handed out, and the caller resets"
    REACHED_LIMIT = "the result of the last step of the last episode was handed out"
    DISCARDED = "the result of an open request was thrown away"
    BROKE = "the environment failed"
    CLOSED = "the environment was closed"
    LAUNCHED = "the environment was made"


_S, _E = EnvState, EnvEvent
_READY = EnvState.READY  # an enum's member costs 100 ns to look up on Python 3.11

# All legal transitions. What is not here raises.
_TRANSITIONS: dict[EnvState, dict[EnvEvent, EnvState]] = {
    _S.VOID: {_E.RESET: _S.RESETTING, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.RESETTING: {_E.BEGAN: _S.READY, _E.DISCARDED: _S.NEEDS_RESET, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.READY: {_E.RESET: _S.RESETTING, _E.SENT: _S.STEPPING, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.STEPPING: {
        _E.STEPPED: _S.READY,
        _E.ENDED: _S.NEEDS_RESET,
        _E.REACHED_LIMIT: _S.FINISHED,
        _E.DISCARDED: _S.NEEDS_RESET,
        _E.BROKE: _S.FAILED,
        _E.CLOSED: _S.CLOSED,
    },
    _S.NEEDS_RESET: {_E.RESET: _S.RESETTING, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.FINISHED: {_E.RESET: _S.RESETTING, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.FAILED: {_E.RESET: _S.RESETTING, _E.CLOSED: _S.CLOSED},
    _S.CLOSED: {_E.LAUNCHED: _S.VOID},
}


def next_state(state: EnvState, event: EnvEvent) -> EnvState:
    """Return the state after `event`.

    Raises:
        ProtocolError: The event is not allowed in this state.
    """
    try:
        return _TRANSITIONS[state][event]
    except KeyError:
        raise ProtocolError(f"{event.name} is not allowed in state {state.name}") from None


# ----------------------------------------------------------------------


_OPEN = (EnvState.RESETTING, EnvState.STEPPING)
_WHAT_TO_DO = {
    EnvState.VOID: "call reset() first, which begins its episode",
    EnvState.RESETTING: "call recv() for the result of its reset first",
    EnvState.STEPPING: "its last action has no result yet: call recv() first",
    EnvState.NEEDS_RESET: "its episode has ended: call reset(env_ids=[{}])",
    EnvState.FINISHED: "it has run max_episodes episodes: reset(env_ids=[{}]) lets it run as many again",
    EnvState.FAILED: "it failed: call reset(env_ids=[{}])",
    EnvState.CLOSED: "call launch() first",
}


class Ledger:
    """The state of each environment, and the results that have arrived and are not handed out yet.

    Args:
        n_envs: How many environments there are.

    Attributes:
        states: The state of each environment.
        arrived: Environments whose results may be handed out, in the order in which they arrived.
        waiting: Environments whose open request has no answer yet.
    """

    def __init__(self, n_envs: int) -> None:
        self.states = [EnvState.VOID] * n_envs
        self.arrived: dict[int, None] = {}  # an ordered set
        self.waiting: set[int] = set()

    def in_states(self, *states: EnvState) -> list[int]:
        """Return the environments in any of some states."""
        return [env_id for env_id, state in enumerate(self.states) if state in states]

    @property
    def n_open(self) -> int:
        """How many requests are open: those without an answer, and those whose results were not handed out."""
        return len(self.waiting) + len(self.arrived)

    def refuse_busy(self, env_ids: Iterable[int]) -> None:
        """Raise if one of the environments does not await an action.

        Raises:
            UsageError: The first such environment, its state, and what to do. Also an error of Gymnasium.
        """
        for env_id in env_ids:
            state = self.states[env_id]
            if state is not _READY:
                message = (
                    f"environment {env_id} awaits no action, it is {state.name}: {_WHAT_TO_DO[state].format(env_id)}"
                )
                raise CallPendingError(message, "send") if state in _OPEN else ResetFirstError(message)

    def request(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        """Open a request for each of the environments: `EnvEvent.SENT` or `EnvEvent.RESET`.

        Raises:
            ProtocolError: One of them has an open request, or is closed; nothing is changed then.
        """
        self._change(env_ids, event)
        self.waiting.update(env_ids)

    def _change(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        """Change the states of environments, or raise and change none."""
        states = self.states
        after = {state: next_state(state, event) for state in {states[env_id] for env_id in env_ids}}
        for env_id in env_ids:
            states[env_id] = after[states[env_id]]

    def answer(self, env_ids: Sequence[int]) -> None:
        """Record that the results of open requests have arrived.

        Raises:
            ProtocolError: One of the environments has no request without an answer.
        """
        if not self.waiting.issuperset(env_ids):
            unknown = sorted(set(env_ids) - self.waiting)
            raise ProtocolError(f"environments {unknown} answered, and have no request without an answer")
        self.waiting.difference_update(env_ids)
        self.arrived.update(dict.fromkeys(env_ids))

    def hand_out(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        """Close the requests of environments whose results are handed to the caller, or discarded.

        Args:
            env_ids: The environments.
            event: `EnvEvent.BEGAN`, `STEPPED`, `ENDED`, `REACHED_LIMIT`, `BROKE` or `DISCARDED`.

        Raises:
            ProtocolError: A result has not arrived, or the event is not that of its request; nothing is changed then.
        """
        arrived = self.arrived
        if missing := [env_id for env_id in env_ids if env_id not in arrived]:
            raise ProtocolError(f"environments {missing} have no result to hand out")
        self._change(env_ids, event)
        for env_id in env_ids:
            del arrived[env_id]

    def fail(self, env_ids: Iterable[int]) -> None:
        """Record that environments failed: whatever they were asked for has no result any more."""
        for env_id in env_ids:
            if self.states[env_id] is not EnvState.FAILED:
                self.states[env_id] = next_state(self.states[env_id], EnvEvent.BROKE)
            self.waiting.discard(env_id)
            self.arrived.pop(env_id, None)

    def mend(self) -> None:
        """Let the accounts agree where a call was interrupted: what is open, and has not arrived, is waited for."""
        opened = set(self.in_states(*_OPEN))
        self.arrived = {env_id: None for env_id in self.arrived if env_id in opened}
        self.waiting = opened - self.arrived.keys()

    def close(self) -> None:
        """Close all environments, and forget what was open."""
        self.states = [
            state if state is EnvState.CLOSED else next_state(state, EnvEvent.CLOSED) for state in self.states
        ]
        self.waiting.clear()
        self.arrived.clear()

    def launch(self) -> None:
        """Let closed environments be without an episode again."""
        self.states = [next_state(state, EnvEvent.LAUNCHED) for state in self.states]
