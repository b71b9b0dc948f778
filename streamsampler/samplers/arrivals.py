"""Answers of the workers, by the numbers under which the scheduler refers to them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, cast

import gymnasium

from streamsampler.core.errors import WorkerError
from streamsampler.data.recorder import lengths_of
from streamsampler.data.segments import Delivery, Segment
from streamsampler.data.trees import bytes_of
from streamsampler.engines.base import Answered, Died, Engine
from streamsampler.protocol import events
from streamsampler.protocol.messages import Failure, Report, Ticket
from streamsampler.protocol.result import Span

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


@dataclass(slots=True)
class LaunchedWorker:
    """Facts reported by a worker between its start and its death."""

    spaces: Spaces | None = None  # of observations and actions; None before its first report
    reported_timesteps: int = 0  # total of its answers
    stack: str = ""  # its Python stacks, if it was killed because it hung
    is_hung: bool = False


class Arrivals:
    """Holds the answers of workers until they are discarded or released."""

    def __init__(self, engine: Engine, need: Callable[[str, Ticket], bool]) -> None:
        self._engine, self._need = engine, need
        self.workers = [LaunchedWorker() for _ in range(engine.n_workers)]
        self._numbers = count()
        self._answers: dict[int, Answered] = {}
        self.uncounted: dict[int, Answered] = {}  # exactly as received from the engine
        self.deliveries: dict[int, Delivery] = {}  # contents of reports, by their numbers
        self._copied: tuple[Spaces, bytes] | None = None  # spaces copied before, pickled
        self._seen: Spaces | None = None
        self.exceptions: dict[int, object] = {}  # raised in this process, by the number of their failure
        self.absent: dict[int, bool] = {}  # dead workers not replaced yet: whether a new one can be started

    def receive(self, event: Answered) -> events.ReportReceived | events.FailureReceived:
        """Store an answer from the engine under a new number; return it as the scheduler's event."""
        worker, answer, number = event.worker, event.answer, next(self._numbers)
        launched, memory = self.workers[worker], self._engine.memory_bytes(worker)
        self.uncounted[number] = event
        if isinstance(answer, Failure):
            self.exceptions[number] = event.contents
            return events.FailureReceived(worker, number, answer, isinstance(event.contents, WorkerError), memory)
        self._answers[number] = event
        found = answer.fingerprint
        if found is not None and found.is_guest and "torch=" in found.bits and not self._need("torch", answer.ticket):
            answer = replace(answer, fingerprint=found.without_torch())
        if event.contents is None:
            return events.ReportReceived(worker, number, answer, memory=memory)
        rollouts, spaces = event.contents
        if spaces is not None:
            launched.spaces = spaces
        n_bytes = bytes_of(rollouts.observations)
        self.deliveries[number] = Delivery(worker, rollouts, n_bytes, launched.spaces, number=number)
        agent_steps = rollouts.agent_steps() if rollouts.policies else None
        return events.ReportReceived(worker, number, answer, lengths_of(rollouts), agent_steps, n_bytes, memory)

    def died(self, event: Died) -> events.WorkerDied:
        worker, engine = event.worker, self._engine
        self.absent[worker] = can_launch = engine.can_restart(worker)
        seen, stack = engine.progress(worker), self.workers[worker].stack
        return events.WorkerDied(worker, seen, event.exitcode, event.why, event.hopeless, stack, can_launch)

    def report(self, number: int) -> Report | None:
        event = self._answers.get(number)
        return event.answer if event is not None and isinstance(event.answer, Report) else None

    def segments(self, spans: Iterable[Span]) -> list[Segment]:
        return [Segment(self.deliveries[number], start, stop, indices) for number, start, stop, indices in spans]

    def copy_of(self, spaces: Spaces) -> Spaces:
        """Return a copy of a worker's spaces for a batch, because users may change a batch's spaces.

        The first copy is a `deepcopy`; later copies unpickle a stored pickle, in half the time.
        """
        if self._copied is not None and self._copied[0] is spaces:
            return cast(Spaces, pickle.loads(self._copied[1]))
        if self._seen is spaces:
            with suppress(Exception):  # a user's own space may not be picklable
                self._copied = spaces, pickle.dumps(spaces)
        self._seen = spaces
        return copy.deepcopy(spaces)

    def discard(self, number: int) -> None:
        self.deliveries.pop(number, None)
        if (event := self._answers.pop(number, None)) is not None:
            event.release()

    def release(self, delivery: Delivery) -> None:
        """Release the memory of a delivery; its arrays are invalid afterwards."""
        if delivery.number in self._answers:
            self.discard(delivery.number)

    def release_all(self) -> None:
        """Release the memory of all deliveries, and delete their arrays: an error's traceback may hold a call."""
        while self._answers:
            self._answers.popitem()[1].release()
        for delivery in self.deliveries.values():
            del delivery.rollouts
        self.forget_all()

    def forget_all(self) -> None:
        """Forget all deliveries: their memory ends with the engine, perhaps in another thread right now."""
        self._answers.clear()
        self.uncounted.clear()
        self.deliveries.clear()
        self.exceptions.clear()

    def pop_uncounted(self) -> list[Answered]:
        """Return, once, answers not counted by any call: mostly of workers that had started the next batch early."""
        answers = list(self.uncounted.values())
        self.forget_all()
        return answers
