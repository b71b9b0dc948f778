"""Pack objects for pipes between processes: small objects in the message, large objects through an arena.

A frame never exceeds `PIPE_BUF`, so the kernel writes it whole or not at all: a process killed while sending leaves no
half message, and no lock.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from streamsampler.core.by_position import by_position
from streamsampler.core.serialization import Contents, Payload, Place
from streamsampler.core.times import Times
from streamsampler.engines.processes.shared_memory import Region
from streamsampler.protocol.messages import Answer, Continue, Message, Report, Ticket

INLINE_LIMIT = 1536
"""Bytes up to which a payload travels in the message itself: its frame stays below PIPE_BUF (4,096 on Linux), and two
frames fit the smallest pipe of the kernel. Tests set it to -1, so that everything goes through an arena.
"""

FORKED_COPY = b"a forked copy of the worker"
"""The message of a forked copy of a worker."""

_ALIGNMENT = 64
_MOST_AT_ONCE = 1 << 16
_LENGTH = struct.Struct("<i")
_SIZE = struct.Struct("<q")
_LOCATION = struct.Struct("<qq")
_ZEROS = memoryview(bytes(_ALIGNMENT))


@by_position
@dataclass(frozen=True, slots=True)
class Stored:
    """The place of a packed object: in an arena, or here."""

    region: Region | None
    data: bytes | None = None


def send(fd: int, message: bytes) -> None:
    """Write a message to a pipe, without interruption.

    Raises:
        BrokenPipeError: The reader is gone.
    """
    data = memoryview(_LENGTH.pack(len(message)) + message)
    while data:
        data = data[os.write(fd, data) :]


def flattened(message: Answer | Message) -> Any:
    """Return a `Report` or a `Continue` as tuples, unpickled in a fourth of the time; rarer messages as they are."""
    if isinstance(message, Continue):
        return (tuple(map(_flat_ticket, message.tickets)),)
    if isinstance(message, Report):
        values = list(_VALUES(message))
        values[0], values[_SECONDS] = _flat_ticket(message.ticket), tuple(message.seconds)
        return tuple(values)
    return message


def restored(flat: Any) -> Any:
    """Reverse `flattened`."""
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
    """A pipe has data other than messages. The text is the end of a sentence about the writer."""


class MessageReader:
    """The reading end of a pipe of messages; its descriptor is owned by the caller."""

    def __init__(self, fd: int, inline_limit: int = INLINE_LIMIT) -> None:
        self._fd = fd
        self._longest = max(select.PIPE_BUF, 2 * inline_limit)
        self._data = b""

    def read(self) -> list[bytes] | None:
        """Return the arrived messages; None if the writer is gone.

        Without any, wait for a message, unless the descriptor does not block. A dead writer's unfinished message is
        discarded.

        Raises:
            GarbageError: Other data arrived.
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
                raise GarbageError(f"wrote an invalid message (of {size} bytes) to the pipe for its answers")
            if length - position < _LENGTH.size + size:
                break
            position += _LENGTH.size
            messages.append(self._data[position : position + size])
            position += size
        self._data = self._data[position:]


def _laid_out(head: tuple[Any, ...], parts: Sequence[Any]) -> list[memoryview]:
    """Lay out parts, each on a cache line, after a pickled head with the place or region of each part."""
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
    """Return the head made by `_laid_out`, the start of its parts, and the place or region of each."""
    start = begin + _SIZE.size
    end = start + _SIZE.unpack_from(memory, begin)[0]
    *head, where = pickle.loads(memoryview(memory)[start:end])
    return head, end, where


def pack(payload: Payload) -> list[memoryview]:
    """Lay out a payload."""
    sizes = [memoryview(buffer).nbytes for buffer in payload.buffers]
    return _laid_out((len(payload.data), sizes), (payload.data, *payload.buffers))


def unpack(packed: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return the pickle and the buffers laid out by `pack`, as views."""
    (size, sizes), end, where = _read(packed, 0)
    data, *buffers = [packed[end + at : end + at + n] for n, at in zip((size, *sizes), where, strict=True)]
    return data, buffers


def pack_answer(
    records: bytes, answer: Answer | None, contents: Contents | None, parts: Sequence[Any]
) -> list[memoryview]:
    """Lay out an answer and the arrays of its contents: their memory, or their regions in the reader's arena.

    The rollouts' pickle is bytes: the answer can be read even if the rollouts cannot.
    """
    return _laid_out((records, answer and flattened(answer), contents), parts)


def unpack_answer(
    message: bytes, look: Callable[[Region], Place]
) -> tuple[bytes, Answer | None, Contents | None, list[Place], list[Region]]:
    """Return an answer laid out by `pack_answer`, the places of its arrays, and all its regions."""
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
    """Return the message for `packed`: its bytes, up to `inline_limit`, or its place by `write`."""
    if sum(view.nbytes for view in packed) <= inline_limit:
        return b"i" + b"".join(packed)
    return b"r" + _LOCATION.pack(*write(packed))
