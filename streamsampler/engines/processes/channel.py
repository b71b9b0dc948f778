"""Connect a worker to its sampler by pipes and arenas."""

from __future__ import annotations

import contextlib
import pickle
import select
from collections import deque
from collections.abc import Callable
from typing import Any

from streamsampler.core.serialization import Contents
from streamsampler.core.settings import SettingsInForce
from streamsampler.engines.processes.shared_memory import ArenaReader, ArenaWriter, Region
from streamsampler.engines.processes.wire import (
    FORKED_COPY,
    MessageReader,
    Stored,
    frame,
    pack_answer,
    restored,
    send,
    unpack,
)
from streamsampler.engines.worker_channel import WorkerChannel
from streamsampler.protocol.messages import Answer, Exit, Message
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.threads import ThreadLimit


class ProcessChannel(WorkerChannel):
    """A worker's connection to a sampler in another process, through pipes and arenas.

    `allocate` makes arrays in the worker's arena, to be sent without a copy.
    """

    def __init__(
        self,
        commands_fd: int,
        answers_fd: int,
        arena_fd: int,
        updates_fd: int,
        inline_limit: int,
        keeper: RecordKeeper,
        threads: ThreadLimit,
        settings: SettingsInForce,
        before_answer: Callable[[], None] | None,
    ) -> None:
        super().__init__(keeper, threads, settings)
        self._commands, self.descriptor = MessageReader(commands_fd, inline_limit), commands_fd
        self._unread: deque[bytes] = deque()
        self._answers_fd = answers_fd
        self._arena = ArenaWriter(arena_fd)
        self._updates = ArenaReader(updates_fd)
        self._poller = select.poll()
        self._poller.register(commands_fd, select.POLLIN)
        self._inline_limit = inline_limit
        self._before_answer = before_answer
        self.allocate = self._arena.allocate
        self.send: Callable[[int, bytes], None] = send  # replaced by fail points

    def _next(self, *, wait: bool) -> Message | None:
        while not self._unread:
            if not self._poller.poll(None if wait else 0):
                return None
            messages = self._commands.read()
            if messages is None:
                return Exit()
            self._unread.extend(messages)
        flat, released = pickle.loads(self._unread.popleft())
        for region in released:
            self._arena.give_back(Region(*region))
        message: Message = restored(flat)
        return message

    def _loaded(self, payload: Stored) -> Any:
        packed = self._updates.read(payload.region) if payload.region is not None else bytearray(payload.data or b"")
        # This copy is private memory, which the object's arrays may use for good.
        head, buffers = unpack(memoryview(packed))
        return pickle.loads(head, buffers=buffers)

    def _end_copy(self) -> None:
        with contextlib.suppress(OSError):
            send(self._answers_fd, FORKED_COPY)
        super()._end_copy()

    def _part(self, buffer: Any) -> Any:
        return self._arena.lent_region(buffer) or buffer

    def _send(self, records: bytes, answer: Answer | None, contents: Contents | None, parts: list[Any]) -> None:
        if self._before_answer is not None:
            self._before_answer()
        packed = pack_answer(records, answer, contents, parts)
        with contextlib.suppress(BrokenPipeError):  # the sampler is gone, and this process ends in a moment
            self.send(self._answers_fd, frame(packed, self._arena.write, self._inline_limit))
        for region in parts:
            if isinstance(region, Region):
                self._arena.transfer(region)
