"""The messages between sampler and worker: frozen dataclasses, no I/O."""

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
    """Trajectories of one agent version that one worker is to run, in order.

    Attributes:
        version: A number that is larger for each call: the agent version. With `staleness`, tickets of an older agent
            version may come later; then what the call says of its trajectories has the agent version.
        indices: The trajectory indices; never empty.
        block: How many of them may influence each other; the last block may have fewer.
    """

    version: int
    indices: range
    block: int = 1


@by_position
@dataclass(frozen=True, slots=True)
class Checked:
    """Report what a worker looked at in a new environment.

    Attributes:
        trajectories: How many trajectories were begun to check that they depend on their seeds alone.
        timesteps: Their timesteps.
        files: Where wrappers of the environment write files.
    """

    trajectories: int = 0
    timesteps: int = 0
    files: tuple[str, ...] = ()


@by_position
@dataclass(frozen=True, slots=True)
class Start:
    """Begin an agent version: update the agent and the environment, then run the tickets.

    Attributes:
        version: The agent version; all tickets are of it.
        tickets: At least one.
        agent: A new agent, as the engine carries payloads; None keeps the agent.
        parameters: New parameters for it; None keeps them.
        env: A new environment; None keeps the environment.
        settings: The settings of the sampler's process and the levels of its loggers (`core.settings.ProcessSettings`,
            `workers.logs.Levels`), as the engine carries payloads; None if neither has changed.
        check: Whether to check, before the first ticket, that trajectories depend on their seeds alone.
        resets: What the call says of its trajectories (`workers.resets.Resets`), as the engine carries payloads.
        filters: New filters (`filters.Filters`); None keeps them.
        goes_on: The version in which the fragments began whose episodes go on in this worker's environments; 0 where
            none do. Those of others end.
        tasks: The agents and environments of several tasks (`workers.task_loops.TaskTable`), in the place of one of
            each; None keeps them.
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
    goes_on: int = 0
    tasks: Any = None


@by_position
@dataclass(frozen=True, slots=True)
class Continue:
    """Run these tickets too."""

    tickets: tuple[Ticket, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Give up the remaining tickets."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Close the environment and end."""


Message = Start | Continue | Stop | Exit


_NO_TIME = Times()


class Dropped(NamedTuple):
    """A trajectory of a ticket that raised and was left out.

    Attributes:
        position: Its position in the ticket.
        phase: What the worker was doing.
        error: The exception in one line.
    """

    position: int
    phase: str
    error: str


@by_position
@dataclass(frozen=True, slots=True)
class Report:
    """Answer a ticket that was run to its end, or given up.

    Attributes:
        ticket: The ticket this answers.
        given_up: Whether the version was abandoned; then there are no rollouts.
        n_trajectories: Trajectories that were finished, delivered or not.
        n_timesteps: Their timesteps.
        n_abandoned: Rollouts that were cut short, 0 or 1 per environment.
        abandoned_timesteps: Their timesteps.
        seconds: Where the worker's time went since its last answer.
        dropped: The ticket's trajectories that raised and were left out, in order.
        lost_timesteps: Further timesteps, which were run in vain because something raised.
        checked: What the worker looked at in a new environment since its last answer; None for nothing.
        runs_lanes: See `Worker.runs_lanes`.
        runs_longer_blocks: See `Worker.runs_longer_blocks`.
        fingerprint: How the worker's process computes; None where the worker has said so before.
        timed: What user code measured since the worker's last report; see `timing.timed`. None for nothing.
        metrics: How each metric of the ticket's trajectories becomes one number for a batch, as pairs; see `hooks`.
        further_envs: How many environments the worker made for whole trajectories since its last report, because
            fragments go on in those that it had.
        ended_fragments: Whether it has none of those any more.
        n_timed_out: How often a trajectory exceeded a time limit that the worker keeps itself, and was run again or
            left out.
    """

    ticket: Ticket
    given_up: bool = False
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
        """All timesteps that the answer reports."""
        checked = 0 if self.checked is None else self.checked.timesteps
        return self.n_timesteps + self.abandoned_timesteps + self.lost_timesteps + checked


@by_position
@dataclass(frozen=True, slots=True)
class Failure:
    """Answer a ticket that could not be run.

    Attributes:
        ticket: The ticket this answers; None after `Exit`, when closing failed.
        phase: What the worker was doing.
        trajectory: Index of the trajectory in hand; None outside trajectories.
        summary: The exception in one line.
        traceback: The worker's traceback, as text.
        exception: The pickled exception, or None where it cannot be pickled.
        kinds: The names (module and qualified name) of its class and of that class's bases.
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
        """All timesteps that the answer reports."""
        return self.lost_timesteps + (0 if self.checked is None else self.checked.timesteps)


Answer = Report | Failure
