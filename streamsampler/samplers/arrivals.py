"""Keep what workers' answers brought, by the numbers that the scheduler knows them by."""

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
    """What one worker has reported, from its start to its death."""

    spaces: Spaces | None = None  # of observations and actions; None before its first report
    reported_timesteps: int = 0  # in its answers
    stack: str = ""  # its Python stacks, if it was killed because it hung
    is_hung: bool = False


class Arrivals:
    """The answers of workers, until they are discarded or released."""

    def __init__(self, engine: Engine, need: Callable[[str, Ticket], bool]) -> None:
        self._engine, self._need = engine, need
        self.workers = [LaunchedWorker() for _ in range(engine.n_workers)]
        self._numbers = count()
        self._answers: dict[int, Answered] = {}
        self.uncounted: dict[int, Answered] = {}  # as the engine brought them
        self.deliveries: dict[int, Delivery] = {}  # what reports brought, by their numbers
        self._copied: tuple[Spaces, bytes] | None = None  # spaces that were copied before, pickled
        self._seen: Spaces | None = None
        self.exceptions: dict[int, object] = {}  # that did not leave this process, by the number of their failure
        self.absent: dict[int, bool] = {}  # dead workers without a new one: whether one can be started

    def receive(self, event: Answered) -> events.ReportReceived | events.FailureReceived:
        """Keep an answer, as the engine brought it; return it as the scheduler sees it."""
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
        """Return a death as the scheduler sees it."""
        worker, engine = event.worker, self._engine
        self.absent[worker] = can_launch = engine.can_restart(worker)
        seen, stack = engine.progress(worker), self.workers[worker].stack
        return events.WorkerDied(worker, seen, event.exitcode, event.why, event.hopeless, stack, can_launch)

    def report(self, number: int) -> Report | None:
        """Return a report; None of a failure."""
        event = self._answers.get(number)
        return event.answer if event is not None and isinstance(event.answer, Report) else None

    def segments(self, spans: Iterable[Span]) -> list[Segment]:
        """Return spans of reports as segments of what these brought."""
        return [Segment(self.deliveries[number], start, stop, indices) for number, start, stop, indices in spans]

    def copy_of(self, spaces: Spaces) -> Spaces:
        """Return a copy of a worker's spaces for a batch, which its user may change.

        From the second one on out of a pickle, which takes half of the time of `deepcopy`.
        """
        if self._copied is not None and self._copied[0] is spaces:
            return cast(Spaces, pickle.loads(self._copied[1]))
        if self._seen is spaces:
            with suppress(Exception):  # a space of a user's own may be impossible to pickle
                self._copied = spaces, pickle.dumps(spaces)
        self._seen = spaces
        return copy.deepcopy(spaces)

    def discard(self, number: int) -> None:
        """Release the memory of an answer, if it has any, and forget it."""
        self.deliveries.pop(number, None)
        if (event := self._answers.pop(number, None)) is not None:
            event.release()

    def release(self, delivery: Delivery) -> None:
        """Release the memory of a delivery; its arrays are void afterwards."""
        if delivery.number in self._answers:
            self.discard(delivery.number)

    def release_all(self) -> None:
        """Release the memory of all deliveries, and forget their arrays: an error's traceback may hold a call."""
        while self._answers:
            self._answers.popitem()[1].release()
        for delivery in self.deliveries.values():
            del delivery.rollouts
        self.forget_all()

    def forget_all(self) -> None:
        """Forget all deliveries: their memory is gone with the engine, or is about to be, in another thread."""
        self._answers.clear()
        self.uncounted.clear()
        self.deliveries.clear()
        self.exceptions.clear()

    def pop_uncounted(self) -> list[Answered]:
        """Return, once, the answers that no call has counted: most often of workers that had begun in advance."""
        answers = list(self.uncounted.values())
        self.forget_all()
        return answers
