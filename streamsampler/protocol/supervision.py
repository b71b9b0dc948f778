"""Find hung, slowly retiring and too large workers, and endless trajectories. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from streamsampler.protocol.events import Waited
from streamsampler.protocol.facts import AlwaysTooLarge, LongTrajectory
from streamsampler.protocol.faults import Hang
from streamsampler.protocol.instructions import Instruction, Kill, RequestProgress, Retire, Warn
from streamsampler.protocol.known_worker import KnownWorker
from streamsampler.protocol.long_trajectories import LengthWatch
from streamsampler.protocol.losses import Doing, Policy
from streamsampler.protocol.messages import Exit, Phase
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.states import Happened, SamplerState

Question: TypeAlias = Literal["copies", "hangs", "lengths"]
"""A question answered by workers' progress."""

LEAVING = {SamplerState.RETIRING, SamplerState.CONDEMNED}

_CONSTRUCTING = {
    *(Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE, Phase.ENV_CONSTRUCTION, Phase.HOOK_CREATED),
    *(Phase.RECORDING, Phase.SENDING),  # on the board: packing a whole ticket, slower with more data
}
"""Phases that may take as long as a worker's construction."""


class Supervision:
    """Decides which workers are killed or retire, over all calls."""

    def __init__(
        self, workers: Sequence[KnownWorker], policy: Policy, *, can_retire: bool, instructions: list[Instruction]
    ) -> None:
        self._workers, self._policy, self._instructions = workers, policy, instructions
        self._can_retire = can_retire  # whether a living worker can be replaced
        self._watch = policy.watch()
        self.interval = math.inf if self._watch is None else self._watch.interval  # most seconds to wait
        self._closes_within_calls = False  # whether workers close environments of tasks within calls
        self.lengths = LengthWatch()
        self._has_warned_of_memory = False
        self._deadlines: dict[int, float] = {}  # when retiring workers are killed

    def watch_closing(self) -> None:
        if not self._closes_within_calls:
            self._closes_within_calls, self._watch = True, self._policy.watch(closes=True)
            self.interval = math.inf if self._watch is None else self._watch.interval

    def mark(self, known: KnownWorker) -> None:
        """Mark a worker for replacement after its last answer, if the engine can replace it."""
        if self._can_retire:
            known.side.mark_for_replacement()

    def record_answer_of(self, known: KnownWorker, memory: int, now: float) -> None:
        """Decide whether a worker is replaced after an answer; `memory` is in bytes."""
        known.stillness.reset()
        limit = self._policy.max_worker_memory
        if limit is not None and memory > limit and not known.side.is_to_be_replaced and self._can_retire:
            if not known.has_answered and not self._has_warned_of_memory:
                self._has_warned_of_memory = True
                self._instructions.append(Warn(AlwaysTooLarge(known.worker, memory, limit)))
            known.is_too_large = True
            self.mark(known)
        known.has_answered = True
        if not known.side.unanswered and known.side.is_to_be_replaced and known.side.state not in LEAVING:
            known.side.apply(Exit)
            self._deadlines[known.worker] = now + self._policy.close_timeout
            self._instructions.append(Retire(known.worker, known.is_too_large))

    def next_deadline(self) -> float:
        """Return when `watch` must run next, even without events."""
        reading = self.lengths.next_reading
        return min((reading, *self._find_deadlines().values())) if self._deadlines else reading

    def watch(
        self, waits: Sequence[Waited], seen: Mapping[int, Progress], answered: set[Question], version: int, now: float,
    ) -> set[Question]:  # fmt: skip
        """Kill hung and slowly retiring workers, and warn of an endless trajectory.

        `seen` is the last progress of workers, new for the questions in `answered`. Return the questions to ask now.
        """
        if self._deadlines:
            for worker, deadline in self._find_deadlines().items():
                if now >= deadline:
                    self._kill(self._workers[worker])
        if "hangs" in answered:
            self._kill_hung(seen)
        if "lengths" in answered:
            self._warn_of_length(seen, version, now)
        questions: set[Question] = {"hangs"} if self._watch is not None and self._has_waited(waits) else set()
        if now >= self.lengths.next_reading:
            questions.add("lengths")
        return questions - answered

    def _has_waited(self, waits: Sequence[Waited]) -> bool:
        assert self._watch is not None
        is_due = self._watch.is_due
        return any(waited.limit is not None and is_due(waited.limit, waited.elapsed) for waited in waits)

    def _find_deadlines(self) -> dict[int, float]:
        """Return the deadlines of workers still retiring, neither ended nor killed."""
        states = {worker: self._workers[worker].side.state for worker in self._deadlines}
        retiring = {worker for worker, state in states.items() if state is SamplerState.RETIRING}
        self._deadlines = {worker: self._deadlines[worker] for worker in retiring}
        return self._deadlines

    def _kill(self, known: KnownWorker, *, hangs: bool = False) -> None:
        known.side.apply(Happened.KILLED)
        self._instructions.append(Kill(known.worker, hangs))

    def _kill_hung(self, seen: Mapping[int, Progress]) -> None:
        rows = {}
        assert self._watch is not None
        for known in self._workers:
            progress = seen.get(known.worker)
            if progress is not None and progress.phase is Phase.IN_FLIGHT:
                known.stillness.reset()  # its event loop has time limits of its own
            elif progress is not None and known.side.unanswered and known.side.state is not SamplerState.CONDEMNED:
                rows[known.worker] = known.stillness, progress, self._doing(known, progress)
        suspects, hung = self._watch.look(rows)
        self._instructions += map(RequestProgress, suspects)
        for worker, seconds in hung.items():
            self._workers[worker].hang = Hang(seen[worker], seconds)
            self._kill(self._workers[worker], hangs=True)

    def _doing(self, known: KnownWorker, progress: Progress) -> Doing:
        """Return the activity of a worker with tickets, for its time limit."""
        if self._closes_within_calls and progress.is_closing:
            return "closes"
        has_begun = progress.version >= known.side.unanswered[0].version
        return "steps" if has_begun and progress.phase not in _CONSTRUCTING else "constructs"

    def _warn_of_length(self, seen: Mapping[int, Progress], version: int, now: float) -> None:
        shown = {
            worker: (progress.trajectory, progress.timesteps)
            for worker, progress in seen.items()
            if progress.version == version and progress.trajectory is not None
        }
        if (found := self.lengths.find(shown, now)) is not None:
            self._instructions.append(Warn(LongTrajectory(*found, self.lengths.needed)))
