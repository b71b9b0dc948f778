"""The engine of a Ray cluster, on one machine or many; its workers are actors. Needs Ray: `pip install ray`.

::

              ┌─────────┐  talk(Start | Continue | Stop | Exit) ────▶ ┌─────────────────┐
              │         │  ◀──── row of the board, answers ────────── │ actor of worker │
              │ sampler │                                             │   mailbox       │
              │         │  abandon_older, look, request_progress ───▶ │   status board  │
              │         │  run ◀── returns, or fails, at the end ──── │   worker's loop │
              └─────────┘                                             └─────────────────┘

*Messages* are calls of the actor's method `talk`, which returns when its tickets are answered. A call costs about 1 ms,
so the shortest tickets are longer than in local processes. Calls run in several threads, without order, so messages are
numbered. Another group of threads reaches a busy actor.

*Losses*: Ray restarts nothing (`max_restarts=0`) and repeats no call. The end of the call `run` is the end of the
worker. Its earlier answers are awaited for a short time, since they may be lost with its node. A new actor gets tickets
only when it runs: with a node missing, the cluster may lack room.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import queue
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import ray

from streamsampler.core.errors import SamplerError
from streamsampler.core.serialization import Payload
from streamsampler.engines.base import Died, Event
from streamsampler.engines.linked import STUCK_SECONDS, LinkedEngine
from streamsampler.engines.ray_cluster import Demand, attach
from streamsampler.engines.ray_link import Kind, RayLink
from streamsampler.engines.ray_starts import ActorStarts
from streamsampler.engines.ray_worker import AnswerParts, Published, RaySetup, SentAlong
from streamsampler.protocol.messages import Message, Phase
from streamsampler.protocol.progress import Progress
from streamsampler.workers.board import StatusBoard, board_bytes

_LAST_SECONDS = 1.0  # for the last answers of a dead worker
_LOOK_SECONDS = 0.05  # between two requests of a worker's row
_MOST_INLINE = 1 << 16  # bytes of a payload inside messages

_engines: weakref.WeakSet[RayEngine] = weakref.WeakSet()


class RayEngine(LinkedEngine[RayLink]):
    """Runs workers in actors of Ray.

    Raises:
        UsageError: An argument is invalid.
        SamplerError: No cluster exists, it lacks room, or its nodes have other versions.
    """

    shortest_ticket_seconds = 0.02

    def __init__(
        self,
        n_workers: int,
        make_worker: Payload,
        seed: int,
        *,
        address: str | None = None,
        worker_resources: Mapping[str, Any],
        runtime_env: Mapping[str, Any] | None = None,
        close_timeout: float,
        threads: int | None = None,
        report_memory: bool = False,
    ) -> None:
        super().__init__(n_workers, close_timeout)
        self.board = StatusBoard(memoryview(bytearray(board_bytes(n_workers))))  # copies of rows
        self._inbox: queue.SimpleQueue[tuple[RayLink, Kind, int, Future[Any]] | None] = queue.SimpleQueue()
        self._looked: dict[int, float] = {}
        demand = Demand(n_workers, worker_resources)
        setup = RaySetup.of_this_process(make_worker, seed, threads, report_memory=report_memory)
        self._starts = ActorStarts(setup, demand, runtime_env, self._post)
        self._lease = attach(address, demand)
        self._opened.callback(self._lease.release)
        with self._ended_at_errors():
            self._links = [self._starts.new(number) for number in range(n_workers)]
            self._await_all()
        _engines.add(self)

    def _post(self, link: RayLink, kind: Kind, place: int, future: Future[Any]) -> None:
        """Put a finished call into the inbox; called in a thread of Ray's."""
        self._inbox.put((link, kind, place, future))

    def _await_all(self) -> None:
        deadline = time.monotonic() + self._starts.seconds
        while missing := [link for link in self._links if link.hello is None]:
            if (left := deadline - time.monotonic()) <= 0:
                raise self._starts.late(len(missing))
            for event in self.wait(left):
                if isinstance(event, Died):
                    raise SamplerError(f"worker {event.worker} could not be started: it {event.why}")

    def can_restart(self, worker: int) -> bool:
        """Return whether a dead worker's replacement has started."""
        return self._starts.is_ready(worker)

    def _started(self, number: int) -> RayLink:
        return self._starts.replacement_for(number)

    def _is_ours(self) -> bool:
        """Whether this process started the workers and is still attached, and is no forked copy."""
        return os.getpid() == self._owner and self._lease.valid

    def abandon_older(self, version: int) -> None:
        self._answers.oldest_version = version
        for link in self._links if self._is_ours() else ():
            if link.unanswered and not link.ended:
                link.abandon_older(version)

    def send(self, worker: int, message: Message) -> None:
        if os.getpid() == self._owner and not self._lease.valid:
            raise SamplerError("Ray was shut down in this process, and the workers with it: make a new sampler")
        super().send(worker, message)

    def publish(self, payload: Payload) -> Any:
        """Put a payload into the object store, or a small payload into the handle."""
        if payload.nbytes <= _MOST_INLINE:
            return super().publish(payload)
        return Published(ray.put((payload.data, [np.frombuffer(buffer, np.uint8) for buffer in payload.buffers])))

    def publish_table(self, table: Any) -> Any:
        """Return a handle with the table itself: only Ray can send references to its object store."""
        return SentAlong(table)

    def published(self, handle: Any) -> Payload:
        if isinstance(handle, Published):
            data, buffers = ray.get(handle.ref)
            return Payload(data, tuple(bytes(buffer) for buffer in buffers))
        payload: Payload = handle
        return payload

    def _events(self, timeout: float | None) -> list[Event]:
        events: list[Event] = []
        limit = self._limit(math.inf if timeout is None else timeout)
        with contextlib.suppress(queue.Empty):
            item = self._inbox.get(timeout=None if limit == math.inf else max(0.0, limit))
            while True:
                if item is not None:
                    events += self._events_of(*item)
                item = self._inbox.get_nowait()
        for link in self._links:
            if link.dying is not None and not link.ended and link.deadline <= time.monotonic():
                events += self._record_death(link)
        if not self._closing and not events:  # first handle the events
            self._starts.raise_error()
        return events

    def _limit(self, limit: float) -> float:
        alive = [link for link in self._links if not link.ended]
        dying = [link.deadline - time.monotonic() for link in alive if link.dying is not None]
        return min([limit, self._starts.seconds_left(idle=not any(link.unanswered for link in alive)), *dying])

    def _events_of(self, link: RayLink, kind: Kind, place: int, future: Future[Any]) -> list[Event]:
        if link.ended:
            return []
        if (error := future.exception()) is not None:
            link.record_look()
            return [] if kind is Kind.LOOK else self._die(link, f"was lost: {' '.join(str(error).split())}", place)
        if kind is Kind.HELLO:
            self._starts.accept(link, future.result())
        elif kind is Kind.LOOK:
            link.record_look()
            self.board.show(link.number, future.result())
        elif kind is Kind.END:
            link.record_end(future.result())
            return self._die(link, "ended")
        else:
            link.results[place] = future.result()
            return self._in_order(link)
        return []

    def _in_order(self, link: RayLink) -> list[Event]:
        """Return the events of messages without a gap before them, then a pending death."""
        events: list[Event] = []
        while (returned := link.pop_next()) is not None:
            row, answers = returned
            if row is not None:
                self.board.show(link.number, row)
            for parts in answers:
                events += self._events_of_answer(link, parts)
        if link.dying is not None and link.is_silent:
            events += self._record_death(link)
        return events

    def _events_of_answer(self, link: RayLink, parts: AnswerParts) -> list[Event]:
        records, answer, contents, arrays = parts
        link.unanswered -= answer is not None and answer.ticket is not None
        return self._answers.events(link, records, answer, contents, [(array, 0) for array in arrays])

    def _die(self, link: RayLink, why: str, place: int = -1) -> list[Event]:
        """Record that a worker ended, or lost the answers of call `place`; its death follows its earlier messages."""
        if place >= 0:
            link.results[place] = None, []
        if link.dying is None:
            link.dying, link.deadline = why, time.monotonic() + _LAST_SECONDS
            link.kill()
        return self._in_order(link)

    def _record_death(self, link: RayLink, *, abandoned: bool = False) -> list[Event]:
        """Return the death of a worker, and start its replacement."""
        del abandoned
        link.ended = True
        self._killed.pop(link.number, None)
        if link.unanswered and self.board.progress(link.number).phase is Phase.WAITING:
            self.board.row(link.number).set_phase(Phase.UNSEEN)  # the row is older than its tickets
        is_current = any(link is other for other in self._links)
        if not self._closing and self._lease.valid:
            if not is_current:
                self._starts.retry(link)
            elif link.hello is not None:
                self._starts.start(link.number)
        return [Died(link.number, None, link.dying or "")] if is_current else []

    def progress(self, worker: int) -> Progress:
        """Return the last known progress of a worker, and request newer progress for a later call."""
        link, now = self._links[worker], time.monotonic()
        if link.unanswered and self._looked.get(worker, 0.0) + _LOOK_SECONDS <= now and self._is_ours():
            self._looked[worker] = now
            link.look()
        return self.board.progress(worker)

    def request_progress(self, worker: int) -> None:
        if not self._links[worker].ended and self._is_ours():
            self._links[worker].request_progress()

    def kill(self) -> None:
        super().kill()
        for link in self._starts.links if self._is_ours() else ():
            link.kill()
        self._inbox.put(None)

    def _await_ends(self, *, read_answers: bool) -> list[Any]:
        """Wait for the workers' ends; return the events, and record last timesteps even without reading answers."""
        last_events = super()._await_ends(read_answers=read_answers)
        for link in self._links:
            if (row := link.last_row()) is not None:
                self.board.show(link.number, row)
        return last_events

    def _seconds_to_end(self, worker: int) -> float:
        return self._close_timeout if self._links[worker].closing else STUCK_SECONDS

    def _end_all(self) -> None:
        super()._end_all()
        for link in self._starts.links:
            link.close(0)


def _close_all() -> None:
    """Close all engines at the end of the program, before Ray ends."""
    for engine in list(_engines):
        engine.close()


atexit.register(_close_all)
