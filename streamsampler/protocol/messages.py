"""Define the messages between sampler and worker: frozen dataclasses, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from streamsampler.core.by_position import by_position
from streamsampler.core.errors import Phase
from streamsampler.core.fingerprints import Fingerprint
from streamsampler.core.times import Times
from streamsampler.core.timing import Measured

__all__ = [
    "NEVER_AGAIN", "Answer", "Checked", "Continue", "Dropped", "Exit", "Failure", "Message", "Phase", "Report", "Start",
    "Stop", "Ticket",
]  # fmt: skip


NEVER_AGAIN = 2**62
"""As the oldest version that workers may run: they abandon every rollout."""


class Ticket(NamedTuple):
    """Trajectories of an agent version for a worker to run, in order.

    Attributes:
        version: A number that grows with each call: the agent version. With `staleness`, older agent versions may
            follow; then `Start.resets` has the agent version.
        indices: The trajectory indices; never empty.
        block: How many of them may influence each other; the last block may have fewer.
    """

    version: int
    indices: range
    block: int = 1


@by_position
@dataclass(frozen=True, slots=True)
class Checked:
    """Report a worker's examination of a new environment.

    Attributes:
        trajectories: Trajectories started for the run-twice check.
        timesteps: Their timesteps.
        files: Files written by wrappers of the environment.
    """

    trajectories: int = 0
    timesteps: int = 0
    files: tuple[str, ...] = ()


@by_position
@dataclass(frozen=True, slots=True)
class Start:
    """Update the agent and the environment, then run the tickets.

    Payloads are in the engine's form; None changes nothing.

    Attributes:
        version: The agent version of all tickets.
        tickets: At least 1.
        agent: A new agent.
        parameters: New parameters of the agent.
        env: A new environment.
        settings: Settings of the sampler's process, and levels of its loggers (`core.settings.ProcessSettings`,
            `workers.logs.Levels`).
        check: Whether to run the run-twice check first.
        resets: Seeds, options and version of the trajectories (`workers.resets.Resets`).
        filters: New filters (`filters.Filters`).
        continued_version: Version at the start of the fragments to continue in this worker; 0 for none. Others end.
        tasks: Agents and environments of several tasks (`workers.task_loops.TaskTable`).
    """

    version: int
    tickets: tuple[Ticket, ...]
    agent: Any = None
    parameters: Any = None
    env: Any = None
    settings: Any = None
    check: bool = False
    resets: Any = None
    filters: Any = None
    continued_version: int = 0
    tasks: Any = None


@by_position
@dataclass(frozen=True, slots=True)
class Continue:
    """Add these tickets."""

    tickets: tuple[Ticket, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Discard the remaining tickets."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Close the environment and end."""


Message = Start | Continue | Stop | Exit


_NO_TIME = Times()


class Dropped(NamedTuple):
    """A trajectory of a ticket, dropped because it raised.

    Attributes:
        position: Its position in the ticket.
        phase: The worker's phase.
        error: The exception in a line.
    """

    position: int
    phase: str
    error: str


@by_position
@dataclass(frozen=True, slots=True)
class Report:
    """Answer a ticket that was run to its end, or abandoned.

    Attributes:
        ticket: The ticket.
        abandoned: Whether it was abandoned, without rollouts.
        n_trajectories: Finished trajectories, delivered or not.
        n_timesteps: Their timesteps.
        n_abandoned: Abandoned rollouts, 0 or 1 per environment.
        abandoned_timesteps: Their timesteps.
        seconds: The worker's time since its last answer, by phase.
        dropped: The ticket's dropped trajectories, in order.
        lost_timesteps: Further timesteps, run in vain because of exceptions.
        checked: The worker's examination of a new environment, if any.
        runs_lanes: See `Worker.runs_lanes`.
        runs_longer_blocks: See `Worker.runs_longer_blocks`.
        fingerprint: How the worker's process computes; None if reported before.
        timed: Times measured by user code; see `timing.timed`.
        metrics: Pairs of a metric and its reduction over a batch; see `hooks`.
        further_envs: Environments made since the last report because fragments continue in the others.
        ended_fragments: Whether none of those fragments are left.
        n_timed_out: Trajectories above the worker's own time limit, run again or dropped.
    """

    ticket: Ticket
    abandoned: bool = False
    n_trajectories: int = 0
    n_timesteps: int = 0
    n_abandoned: int = 0
    abandoned_timesteps: int = 0
    seconds: Times = _NO_TIME
    dropped: tuple[Dropped, ...] = ()
    lost_timesteps: int = 0
    checked: Checked | None = None
    runs_lanes: bool = False
    runs_longer_blocks: bool = False
    fingerprint: Fingerprint | None = None
    timed: Measured | None = None
    metrics: tuple[tuple[str, str], ...] = ()
    further_envs: int = 0
    ended_fragments: bool = False
    n_timed_out: int = 0

    @property
    def ran_timesteps(self) -> int:
        """All timesteps of the answer."""
        checked = 0 if self.checked is None else self.checked.timesteps
        return self.n_timesteps + self.abandoned_timesteps + self.lost_timesteps + checked


@by_position
@dataclass(frozen=True, slots=True)
class Failure:
    """Answer a ticket that could not be run.

    Attributes:
        ticket: The ticket; None if closing failed after `Exit`.
        phase: The worker's phase.
        trajectory: Index of the current trajectory; None outside trajectories.
        summary: The exception in a line.
        traceback: The worker's traceback, as text.
        exception: The pickled exception; None if it cannot be pickled.
        kinds: Module and qualified name of its class and bases.
        lost_timesteps: All timesteps of the ticket.
        checked: As in `Report`.
        runs_lanes: As in `Report`.
        runs_longer_blocks: As in `Report`.
    """

    ticket: Ticket | None
    phase: Phase
    trajectory: int | None
    summary: str
    traceback: str
    exception: bytes | None = None
    kinds: tuple[str, ...] = ()
    lost_timesteps: int = 0
    checked: Checked | None = None
    runs_lanes: bool = False
    runs_longer_blocks: bool = False

    @property
    def ran_timesteps(self) -> int:
        """All timesteps of the answer."""
        return self.lost_timesteps + (0 if self.checked is None else self.checked.timesteps)


Answer = Report | Failure
