"""How objects travel between processes: packed once, small ones in the message, large ones through an arena.

A frame on a pipe is never longer than `PIPE_BUF`, so the kernel writes it whole or not at all: a process killed while
it sends leaves no half message, and there is no lock that it could leave held. What is larger lies in an arena, and the
frame says where.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streamsampler.compact import by_position
from streamsampler.engines.shared_memory import Region

__all__ = ["INLINE_LIMIT", "Stored", "frame", "pack", "receive", "send", "unframe", "unpack"]

INLINE_LIMIT = 1536
"""Bytes up to which a payload travels in the message itself: a frame, with what else is in it, stays below PIPE_BUF
(4,096 on Linux), and two frames fit the smallest pipe the kernel makes."""

_ALIGNMENT = 64
_LENGTH = struct.Struct("<i")
_COUNT = struct.Struct("<q")
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
        BrokenPipeError: Nobody reads it any more.
    """
    data = memoryview(_LENGTH.pack(len(message)) + message)
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> bytes | None:
    """Read a message from a pipe; None if its writer is gone."""
    header = os.read(fd, _LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (missing,) = _LENGTH.unpack(header)
    parts = []
    while missing:
        part = os.read(fd, missing)
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def pack(head: bytes, buffers: Sequence[Any]) -> list[memoryview]:
    """Lay out a pickle and its out-of-band buffers: a table of sizes, the pickle, each buffer on a cache line."""
    views = [memoryview(head)]
    for buffer in buffers:
        view = buffer.raw() if isinstance(buffer, pickle.PickleBuffer) else memoryview(buffer)
        views.append(view.cast("B") if view.nbytes else memoryview(b""))
    table = _COUNT.pack(len(views)) + b"".join(_COUNT.pack(view.nbytes) for view in views)
    laid_out = [memoryview(table)]
    position = len(table)
    for view in views:
        padding = -position % _ALIGNMENT
        laid_out += [_ZEROS[:padding], view]
        position += padding + view.nbytes
    return laid_out


def unpack(packed: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return the pickle and the buffers of what `pack` laid out, as views."""
    (count,) = _COUNT.unpack_from(packed)
    position = _COUNT.size * (count + 1)
    parts = []
    for number in range(count):
        (size,) = _COUNT.unpack_from(packed, _COUNT.size * (number + 1))
        position += -position % _ALIGNMENT
        parts.append(packed[position : position + size])
        position += size
    return parts[0], parts[1:]


def frame(packed: Sequence[memoryview], write: Callable[[Sequence[memoryview]], Region]) -> bytes:
    """Return the message that carries `packed`: itself, or where `write` put it."""
    if sum(view.nbytes for view in packed) <= INLINE_LIMIT:
        return b"i" + b"".join(packed)
    return b"r" + _LOCATION.pack(*write(packed))


def unframe(message: bytes, view: Callable[[Region], memoryview]) -> tuple[memoryview, list[memoryview], Region | None]:
    """Return the pickle and the buffers that a message carries, and the region they lie in, if they do."""
    if message[:1] == b"i":
        head, buffers = unpack(memoryview(message)[1:])
        return head, buffers, None
    region = Region(*_LOCATION.unpack_from(message, 1))
    head, buffers = unpack(view(region))
    return head, buffers, region
