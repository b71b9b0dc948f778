"""Messages between the parent and a worker: a length, a kind, and bytes; whole, or not at all."""

from __future__ import annotations

import os
import pickle
import select
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["IDS", "PICKLE", "FrameReader", "ids_frame", "ids_in", "pickle_frame", "write_all"]

_HEADER = struct.Struct("<QB")
_READ_BYTES = 1 << 16

IDS, PICKLE = 0, 1
"""Kinds of messages: numbers of environments, and anything else."""


def ids_frame(env_ids: Sequence[int]) -> bytes:
    """Return a message with numbers of environments: to step them, or that their requests were carried out."""
    return _HEADER.pack(4 * len(env_ids), IDS) + np.array(env_ids, np.uint32).tobytes()


def ids_in(data: bytes) -> list[int]:
    """Return the numbers in a message of the kind `IDS`."""
    numbers: list[int] = np.frombuffer(data, np.uint32).tolist()
    return numbers


def pickle_frame(message: Any) -> bytes:
    """Return a message with anything that can be pickled."""
    data = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(data), PICKLE) + data


class FrameReader:
    """Reads messages from a descriptor.

    Args:
        fd: The descriptor.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()

    def read(self) -> list[tuple[int, bytes]] | None:
        """Read what is there, and return the messages that are whole; None at the end."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            return None
        self._data += data
        messages = []
        start = 0
        while len(self._data) >= start + _HEADER.size:
            size, kind = _HEADER.unpack_from(self._data, start)
            end = start + _HEADER.size + size
            if len(self._data) < end:
                break
            messages.append((kind, bytes(self._data[start + _HEADER.size : end])))
            start = end
        del self._data[:start]
        return messages


def write_all(fd: int, data: bytes, meanwhile_fd: int, meanwhile: Callable[[], bool]) -> None:
    """Write to a never blocking descriptor; where it is full, read what its reader may be waiting to write.

    Args:
        fd: Where to write.
        data: What to write. It is dropped where the reader is gone.
        meanwhile_fd: What to look at while the descriptor is full.
        meanwhile: Called when there is something to read; False if there will be no more.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BrokenPipeError:
            return
        except BlockingIOError:
            poller = select.poll()
            poller.register(fd, select.POLLOUT)
            poller.register(meanwhile_fd, select.POLLIN)
            if any(ready == meanwhile_fd for ready, _ in poller.poll()) and not meanwhile():
                return
