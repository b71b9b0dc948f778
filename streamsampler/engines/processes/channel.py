"""A worker's end of what it shares with its sampler: pipes and arenas."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
from collections import deque
from collections.abc import Callable
from typing import Any

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
from streamsampler.protocol.messages import BY_NAME, Answer, Exit, Message, Start
from streamsampler.serialization import Contents, dumps_report
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.threads import ThreadLimit

__all__ = ["ProcessChannel"]


class ProcessChannel:
    """A worker's connection to a sampler in another process.

    Args:
        commands_fd: Where messages are read.
        answers_fd: Where answers are written.
        arena_fd: The worker's own arena.
        updates_fd: The arena of published payloads.
        inline_limit: Bytes up to which a report travels in the message itself.
        keeper: Keeps log records until they are sent.
        threads: How many threads libraries compute on.
        before_answer: Called before each answer is sent.

    Attributes:
        allocate: Makes arrays in the worker's arena: what lies there need not be copied to be sent.
        send: Writes a message to a descriptor.
    """

    interruptible = False

    def __init__(
        self,
        commands_fd: int,
        answers_fd: int,
        arena_fd: int,
        updates_fd: int,
        inline_limit: int,
        keeper: RecordKeeper,
        threads: ThreadLimit,
        before_answer: Callable[[], None] | None,
    ) -> None:
        self._commands = MessageReader(commands_fd)
        self._unread: deque[bytes] = deque()
        self._answers_fd = answers_fd
        self._arena = ArenaWriter(arena_fd)
        self._updates = ArenaReader(updates_fd)
        self._poller = select.poll()
        self._poller.register(commands_fd, select.POLLIN)
        self._inline_limit = inline_limit
        self._keeper = keeper
        self._threads = threads
        self._before_answer = before_answer
        self._pid = os.getpid()
        self.allocate = self._arena.allocate
        self.send: Callable[[int, bytes], None] = send

    def receive(self, *, wait: bool) -> Message | None:
        """Return the next message; `Exit` when the sampler is gone."""
        self._end_copies()
        self._threads.hold()
        while not self._unread:
            if not self._poller.poll(None if wait else 0):
                return None
            messages = self._commands.read()
            if messages is None:
                return Exit()
            self._unread.extend(messages)
        flat, released = pickle.loads(self._unread.popleft())
        message: Message = restored(flat)
        for region in released:
            self._arena.give_back(Region(*region))
        if isinstance(message, Start):
            if message.levels is not None:
                self._keeper.set_levels(self.load(message.levels))
            else:
                self._keeper.apply()
        return message

    def load(self, payload: Stored) -> Any:
        """Return the object of a published payload."""
        packed = self._updates.read(payload.region) if payload.region is not None else bytearray(payload.data or b"")
        # This copy is private memory: the arrays of the object may use it for good.
        head, buffers = unpack(memoryview(packed))
        loaded = pickle.loads(head, buffers=buffers)
        self._keeper.apply()  # modules that were imported just now may have set levels of their own
        self._threads.hold()  # torch may be among them
        return loaded

    def _end_copies(self) -> None:
        """End this process if it is a forked copy of the worker: two processes would read messages and answer them."""
        if os.getpid() != self._pid:
            with contextlib.suppress(OSError):
                send(self._answers_fd, FORKED_COPY)
            os._exit(1)

    def answer(self, answer: Answer, contents: Any = None) -> None:
        """Send an answer, and the contents that were recorded in the arena as they lie there."""
        self._end_copies()
        parts: list[Any] = []
        if contents is None or isinstance(contents, BaseException):  # a failure has it pickled, and as text
            contents = None
        else:
            rollouts, spaces = contents
            contents, buffers = dumps_report(rollouts, spaces, BY_NAME)
            parts = [self._arena.lent_region(buffer) or buffer for buffer in buffers]
        if self._before_answer is not None:
            self._before_answer()
        self._send(answer, contents, parts)
        for region in parts:
            if isinstance(region, Region):
                self._arena.hand_over(region)

    def send_records(self) -> None:
        """Send the log records that were made since the last answer."""
        self._send(None, None, [])

    def _send(self, answer: Answer | None, contents: Contents | None, parts: list[Any]) -> None:
        records = self._keeper.take()
        if answer is None and not records:
            return
        packed = pack_answer(records, answer, contents, parts)
        with contextlib.suppress(BrokenPipeError):  # the sampler is gone, and this process ends in a moment
            self.send(self._answers_fd, frame(packed, self._arena.write, self._inline_limit))
