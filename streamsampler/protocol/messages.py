"""The messages between sampler and worker: frozen dataclasses, no I/O."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

from streamsampler.core.errors import Phase
from streamsampler.core.timing import Measured

__all__ = [
    "BY_NAME", "NEVER_AGAIN", "Answer", "Checked", "Continue", "Dropped", "Exit", "Failure", "Fingerprint", "Message",
    "Phase", "Report", "Start", "Stop", "Ticket", "Times", "agree", "by_position", "differing_libraries",
    "disagreement", "series",
]  # fmt: skip

# ----------------------------------------------------------------------
# Compare fingerprints: digests of a fixed piece of float arithmetic, as a process computes it. Pure.
#
# NumPy and torch have several kernels for the same operation, and choose by the processor. The kernels round
# differently, so that a network's numbers, and then whole trajectories, may differ from machine to machine. Two
# processes whose fingerprints agree chose kernels that round alike.


_SHOWN = 8


class Fingerprint(NamedTuple):
    """How a process computes.

    Attributes:
        bits: A digest for each library, such as "numpy=0c3f19d2e4aa torch=77ab02c3d1ef"; torch only where it is loaded.
        host: The name of the machine.
        is_guest: Whether torch was loaded before the worker was made, by the program whose process it shares or was
            forked from.
    """

    bits: str
    host: str = ""
    is_guest: bool = False

    def without_torch(self) -> Fingerprint:
        """Return the same without torch, where neither agent nor environment needs it."""
        digests = _digests(self.bits)
        bits = " ".join(f"{library}={digest}" for library, digest in digests.items() if library != "torch")
        return self._replace(bits=bits)


def _digests(bits: str) -> dict[str, str]:
    parts = [part.partition("=") for part in bits.split()]
    return {library: digest for library, _, digest in parts}


def differing_libraries(bits: Iterable[str]) -> list[str]:
    """Return the libraries that compute other bits in one of these fingerprints than in another.

    A library that is in one of two only is not compared: torch, where a process has not loaded it.
    """
    seen: dict[str, set[str]] = {}
    for text in bits:
        for library, digest in _digests(text).items():
            seen.setdefault(library, set()).add(digest)
    return sorted(library for library, digests in seen.items() if len(digests) > 1)


def agree(*bits: str) -> bool:
    """Whether all of these fingerprints agree."""
    return not differing_libraries(bits)


def disagreement(told: Iterable[tuple[int, Fingerprint]]) -> str:
    """Describe which workers compute otherwise than others; "" if all compute alike.

    Args:
        told: The workers by number, each with a fingerprint; in any order.
    """
    pairs = sorted(told)
    libraries = differing_libraries(print_.bits for _, print_ in pairs)
    groups: dict[tuple[str | None, ...], list[tuple[int, Fingerprint]]] = {}
    for worker, print_ in pairs:
        digests = _digests(print_.bits)
        key = tuple(digests.get(library) for library in libraries)
        if any(key):
            groups.setdefault(key, []).append((worker, print_))
    if len(groups) < 2:
        return ""
    verb = "computes" if len(libraries) == 1 else "compute"
    described = [f"{_place(group)} ({group[0][1].bits})" for group in groups.values()]
    return (
        f"{' and '.join(libraries)} {verb} with other kernels in some workers than in others, so the same seed may "
        f"give other trajectories there: {'; '.join(described)}. For the same trajectories everywhere use machines of "
        "one kind, with the same versions of libraries"
    )


def _place(group: Sequence[tuple[int, Fingerprint]]) -> str:
    workers = series(sorted({worker for worker, _ in group}))
    hosts = list(dict.fromkeys(print_.host for _, print_ in group if print_.host))
    return f"{workers} on {_listed(hosts)}" if hosts else workers


def series(workers: Sequence[int]) -> str:
    """Return worker numbers in words, such as "workers 0 to 3 and 7"; they are sorted, and there is one at least."""
    runs: list[list[int]] = []
    for worker in workers:
        if runs and runs[-1][-1] == worker - 1:
            runs[-1][1:] = [worker]
        else:
            runs.append([worker])
    texts = [f"{run[0]} to {run[-1]}" if run[-1] - run[0] > 1 else " and ".join(map(str, run)) for run in runs]
    return f"{'worker' if len(workers) == 1 else 'workers'} {_listed(texts)}"


def _listed(texts: Sequence[str]) -> str:
    if len(texts) > _SHOWN:
        texts = [*texts[: _SHOWN - 1], f"{len(texts) - _SHOWN + 1} more"]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


# ----------------------------------------------------------------------


T = TypeVar("T")


BY_NAME: dict[str, type] = {}
"""Classes that reports carry by name alone: to find one in its module takes longer than to make an instance."""


def by_position(cls: type[T]) -> type[T]:
    """Let a dataclass be pickled as a call with its values in order.

    What a frozen dataclass with slots does by itself goes through `dataclasses.fields` and sets each attribute by name,
    both ways: several times the cost of all else in a report.
    """
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    values = operator.attrgetter(*names)

    def reduce(self: Any) -> tuple[type[T], tuple[Any, ...]]:
        found = values(self)
        return cls, found if len(names) > 1 else (found,)

    cls.__reduce__ = reduce  # type: ignore[method-assign]
    BY_NAME[cls.__name__] = cls
    return cls


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


class Times(NamedTuple):
    """Where a worker's time went, in seconds.

    Attributes:
        reset: Seeding and resetting, environment and agent; making new ones where a trajectory was left out.
        agent: Choosing actions.
        step: Stepping the environment and recording what it returned. How `agent` and `step` share the time of a
            rollout is estimated from every 64th timestep.
        sending: Serialising and sending rollouts.
        idle: Waiting for work.
        checking: Checking that trajectories depend on their seeds alone; see `check` of `Sampler`.
    """

    reset: float = 0.0
    agent: float = 0.0
    step: float = 0.0
    sending: float = 0.0
    idle: float = 0.0
    checking: float = 0.0

    def plus(self, other: Times) -> Times:
        """Return the sums."""
        return Times(*map(operator.add, self, other))

    @property
    def rollout(self) -> float:
        """What rollouts took."""
        return self.reset + self.agent + self.step


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
