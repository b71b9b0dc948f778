"""How objects travel between processes: packed once, small ones in the message, large ones through an arena.

A frame on a pipe is never longer than `PIPE_BUF`, so the kernel writes it whole or not at all: a process killed while
it sends leaves no half message, and there is no lock that it could leave held. What is larger lies in an arena, and the
frame says where.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from streamsampler.core.by_position import by_position
from streamsampler.core.serialization import Contents, Payload, Place
from streamsampler.core.settings import SettingsInForce
from streamsampler.core.times import Times
from streamsampler.engines.processes.shared_memory import ArenaReader, ArenaWriter, Region
from streamsampler.engines.worker_side import WorkerChannel
from streamsampler.protocol.messages import Answer, Continue, Exit, Message, Report, Ticket
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.threads import ThreadLimit

INLINE_LIMIT = 1536
"""Bytes up to which a payload travels in the message itself: a frame, with what else is in it, stays below PIPE_BUF
(4,096 on Linux), and two frames fit the smallest pipe the kernel makes. Tests set it to -1, so that everything goes
through an arena."""

FORKED_COPY = b"a forked copy of the worker"
"""The message that a forked copy of a worker sends."""

_ALIGNMENT = 64
_MOST_AT_ONCE = 1 << 16
_LENGTH = struct.Struct("<i")
_SIZE = struct.Struct("<q")
_LOCATION = struct.Struct("<qq")
_ZEROS = memoryview(bytes(_ALIGNMENT))


@by_position
@dataclass(frozen=True, slots=True)
class Stored:
    """Where a packed object lies: in an arena, or here."""

    region: Region | None
    data: bytes | None = None


def send(fd: int, message: bytes) -> None:
    """Write a message to a pipe, in one piece.

    Raises:
        BrokenPipeError: The reader is gone.
    """
    data = memoryview(_LENGTH.pack(len(message)) + message)
    while data:
        data = data[os.write(fd, data) :]


def flattened(message: Answer | Message) -> Any:
    """Return a `Report` or a `Continue` as tuples of Python's own types, which take a fourth of the time to unpickle.

    Others, which are rare, are returned as they are.
    """
    if isinstance(message, Continue):
        return (tuple(map(_flat_ticket, message.tickets)),)
    if isinstance(message, Report):
        values = list(_VALUES(message))
        values[0], values[_SECONDS] = _flat_ticket(message.ticket), tuple(message.seconds)
        return tuple(values)
    return message


def restored(flat: Any) -> Any:
    """Return what was `flattened`."""
    if flat.__class__ is not tuple:
        return flat
    if len(flat) == 1:
        return Continue(tuple(map(_ticket, flat[0])))
    values = list(flat)
    values[0], values[_SECONDS] = _ticket(values[0]), Times(*values[_SECONDS])
    return Report(*values)


def _flat_ticket(ticket: Ticket) -> tuple[int, ...]:
    indices = ticket.indices
    return ticket.version, indices.start, indices.stop, indices.step, ticket.block


def _ticket(flat: tuple[int, ...]) -> Ticket:
    version, start, stop, step, block = flat
    return Ticket(version, range(start, stop, step), block)


_NAMES = [it.name for it in fields(Report)]  # the ticket is the first
_SECONDS = _NAMES.index("seconds")
_VALUES = attrgetter(*_NAMES)


class GarbageError(Exception):
    """A pipe has something that is no message. The text is the end of a sentence about the writer."""


class MessageReader:
    """The reading end of a pipe of messages.

    Args:
        fd: The pipe's descriptor; owned by the caller.
        inline_limit: Bytes up to which a payload travels in the message itself; what has more lies in an arena.
    """

    def __init__(self, fd: int, inline_limit: int = INLINE_LIMIT) -> None:
        self._fd = fd
        self._longest = max(select.PIPE_BUF, 2 * inline_limit)
        self._data = b""

    def read(self) -> list[bytes] | None:
        """Return the messages that are there; None if the writer is gone.

        If there is no message it waits for one, unless the descriptor does not block. A message that the writer did not
        finish before it died does not count.

        Raises:
            GarbageError: There is something that is no message.
        """
        messages: list[bytes] = []
        while not messages or self._data:
            try:
                data = os.read(self._fd, _MOST_AT_ONCE)
            except BlockingIOError:
                return messages
            if not data:
                self._data = b""
                return messages or None
            self._data = self._data + data if self._data else data
            self._cut(messages)
        return messages

    def _cut(self, messages: list[bytes]) -> None:
        position, length = 0, len(self._data)
        while length - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data, position)
            if not 0 <= size <= self._longest:
                raise GarbageError(f"wrote something that is no message (of {size} bytes) where its answers go")
            if length - position < _LENGTH.size + size:
                break
            position += _LENGTH.size
            messages.append(self._data[position : position + size])
            position += size
        self._data = self._data[position:]


def _laid_out(head: tuple[Any, ...], parts: Sequence[Any]) -> list[memoryview]:
    """Lay out parts, each on a cache line, after the pickle of a head, which says where each part lies.

    Args:
        head: Some objects.
        parts: Memory; or, for what lies in the reader's arena already, its region.
    """
    where: list[Any] = []
    laid_out: list[memoryview] = []
    end = 0
    for part in parts:
        if isinstance(part, Region):
            where.append(tuple(part))
            continue
        padding = -end % _ALIGNMENT
        where.append(end + padding)
        laid_out += [_ZEROS[:padding], memoryview(part)]
        end += padding + laid_out[-1].nbytes
    pickled = pickle.dumps((*head, where), protocol=5)
    padding = -(_SIZE.size + len(pickled)) % _ALIGNMENT
    return [memoryview(b"".join((_SIZE.pack(len(pickled) + padding), pickled, bytes(padding)))), *laid_out]


def _read(memory: Any, begin: int) -> tuple[list[Any], int, list[Any]]:
    """Return the head of what `_laid_out` made, where its parts begin, and where each lies from there or its region."""
    start = begin + _SIZE.size
    end = start + _SIZE.unpack_from(memory, begin)[0]
    *head, where = pickle.loads(memoryview(memory)[start:end])
    return head, end, where


def pack(payload: Payload) -> list[memoryview]:
    """Lay out a payload."""
    sizes = [memoryview(buffer).nbytes for buffer in payload.buffers]
    return _laid_out((len(payload.data), sizes), (payload.data, *payload.buffers))


def unpack(packed: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return the pickle and the buffers of what `pack` laid out in one piece, as views."""
    (size, sizes), end, where = _read(packed, 0)
    data, *buffers = [packed[end + at : end + at + n] for n, at in zip((size, *sizes), where, strict=True)]
    return data, buffers


def pack_answer(
    records: bytes, answer: Answer | None, contents: Contents | None, parts: Sequence[Any]
) -> list[memoryview]:
    """Lay out an answer and the arrays of its contents.

    The rollouts' pickle is there as bytes: the answer can be read even where the rollouts cannot.

    Args:
        records: Log records.
        answer: The answer, if there is one.
        contents: What it carries besides arrays.
        parts: The memory of the arrays; or, for those that lie in the reader's arena already, their regions.
    """
    return _laid_out((records, answer and flattened(answer), contents), parts)


def unpack_answer(
    message: bytes, look: Callable[[Region], Place]
) -> tuple[bytes, Answer | None, Contents | None, list[Place], list[Region]]:
    """Return what `pack_answer` laid out, the places of its arrays, and the regions that all of it lies in.

    Args:
        message: The frame that carries it.
        look: Says where in memory a region of the arena begins.
    """
    regions: list[Region] = []
    memory: Any = message
    begin = 1
    if message[:1] != b"i":
        regions.append(Region(*_LOCATION.unpack_from(message, 1)))
        memory, begin = look(regions[0])
    (records, answer, contents), end, where = _read(memory, begin)
    places: list[Place] = []
    for place in where:
        if place.__class__ is int:
            places.append((memory, end + place))
        else:
            regions.append(Region(*place))
            places.append(look(regions[-1]))
    return records, answer and restored(answer), contents, places, regions


def frame(
    packed: Sequence[memoryview], write: Callable[[Sequence[memoryview]], Region], inline_limit: int = INLINE_LIMIT
) -> bytes:
    """Return the message that carries `packed`: itself, if it has no more bytes, or where `write` put it."""
    if sum(view.nbytes for view in packed) <= inline_limit:
        return b"i" + b"".join(packed)
    return b"r" + _LOCATION.pack(*write(packed))


# ----------------------------------------------------------------------
# A worker's end of what it shares with its sampler: pipes and arenas.


class ProcessChannel(WorkerChannel):
    """A worker's connection to a sampler in another process.

    Args:
        commands_fd: Where messages are read.
        answers_fd: Where answers are written.
        arena_fd: The worker's own arena.
        updates_fd: The arena of published payloads.
        inline_limit: Bytes up to which a report travels in the message itself.
        keeper: Keeps log records until they are sent.
        threads: How many threads libraries compute on.
        settings: The settings of the sampler's process that this one has.
        before_answer: Called before each answer is sent.

    Attributes:
        allocate: Makes arrays in the worker's arena: what lies there need not be copied to be sent.
        send: Writes a message to a descriptor.
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
        self.send: Callable[[int, bytes], None] = send

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
        # This copy is private memory: the arrays of the object may use it for good.
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
                self._arena.hand_over(region)
