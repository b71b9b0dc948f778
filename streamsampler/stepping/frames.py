"""Messages between the manager and a worker: a length, a kind, and bytes; received whole or not at all."""

from __future__ import annotations

import functools
import os
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.serialization import dumps

_HEADER = struct.Struct("<QB")
_READ_BYTES = 1 << 16

IDS, PICKLE, LOG, COPY, TOGETHER = range(5)
"""Kinds of messages: ids of environments; a pickle; log records; the writer is a forked copy; ids of environments with
results wanted together."""

COPY_FRAME = _HEADER.pack(0, COPY)


@functools.lru_cache(256)
def ids_frame(env_ids: tuple[int, ...], kind: int = IDS) -> bytes:
    """Return a message with environments' ids: a request of steps, or its answer."""
    return _HEADER.pack(4 * len(env_ids), kind) + np.array(env_ids, np.uint32).tobytes()


@functools.lru_cache(256)
def ids_in(data: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(data, np.uint32).tolist())


def pickle_frame(message: Any) -> bytes:
    data = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(data), PICKLE) + data


def log_frame(records: bytes) -> bytes:
    return _HEADER.pack(len(records), LOG) + records


def request_frame(env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> bytes:
    return pickle_frame(
        ("request", list(env_ids), kind, name, dumps(list(arguments), f"the arguments of {name}").owned())
    )


def pickled(value: Any) -> bytes:
    """Pickle an environment's return value, by value if its class is from the caller's script."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:
        return dumps_by_value(value)


def split(frame: bytes) -> tuple[int, bytes]:
    """Return the kind and the bytes of a message; raise ValueError if it is incomplete."""
    size, kind = _HEADER.unpack_from(frame)
    if len(frame) != _HEADER.size + size:
        raise ValueError(f"a message has {len(frame) - _HEADER.size} bytes, but {size} in its header")
    return kind, frame[_HEADER.size :]


class FrameReader:
    """Reads messages from a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()
        self.n_read = 0

    def read(self) -> list[tuple[int, bytes]] | None:
        """Return the messages complete so far; None at the end."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            return None
        self._data += data
        self.n_read += len(data)
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
