"""Anonymous shared memory: made before a worker starts, named nowhere, gone with its last user.

An arena is one growing memory file with a single writer. The writer alone decides where things lie (`Regions`); a
reader gets `(offset, size)` in a message and tells the writer, in a message of its own, when it has done with it. So
there is nothing to lock, and nothing that a process killed in the middle could leave locked.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ArenaReader", "ArenaWriter", "Region", "Regions", "anonymous_file"]

_ALIGNMENT = 64
_MAX_VECTOR = 512  # buffers in one system call; POSIX promises 16, Linux and macOS take 1,024


class Region(NamedTuple):
    """A part of an arena, in bytes."""

    offset: int
    size: int


def anonymous_file(name: str, size: int = 0) -> int:
    """Return a descriptor of a new memory file of `size` zero bytes that no other process can find.

    `name` is for debugging only. Where there is no memfd_create (macOS), it is a temporary file that is unlinked at
    once.
    """
    if sys.platform == "linux":
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix=name)
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


class Regions:
    """First-fit allocation in an address range without end: pure.

    First fit keeps what is in use at the low end, so that the same pages serve again and again: memory that was
    touched before costs no page faults.
    """

    def __init__(self) -> None:
        self._used: list[Region] = []  # by offset

    def take(self, size: int) -> Region:
        """Return a free region of `size` bytes, aligned to a cache line."""
        offset = 0
        for used in self._used:
            if used.offset - offset >= size:
                break
            offset = -(-(used.offset + used.size) // _ALIGNMENT) * _ALIGNMENT
        region = Region(offset, size)
        insort(self._used, region)
        return region

    def give_back(self, region: Region) -> None:
        """Free a region.

        Raises:
            KeyError: It is not in use.
        """
        place = bisect_left(self._used, region)
        if place == len(self._used) or self._used[place] != region:
            raise KeyError(f"{region} is not in use")
        del self._used[place]

    @property
    def end(self) -> int:
        """The first byte behind everything in use."""
        return self._used[-1].offset + self._used[-1].size if self._used else 0


class ArenaWriter:
    """The writing end of an arena.

    Args:
        fd: The arena's memory file; owned by the caller.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._regions = Regions()

    def write(self, buffers: Sequence[memoryview]) -> Region:
        """Copy `buffers`, one behind the other, into a free region; the file grows as needed.

        Raises:
            OSError: There is no memory left. Nothing is taken then.
        """
        region = self._regions.take(sum(buffer.nbytes for buffer in buffers))
        try:
            self._write_at(region.offset, buffers)
        except OSError:
            self._regions.give_back(region)
            raise
        return region

    def _write_at(self, offset: int, buffers: Sequence[memoryview]) -> None:
        # The file system copies; a mapping of this end would only add page faults, and would turn a full memory into
        # SIGBUS where this gives an OSError.
        queue = [buffer.cast("B") if buffer.nbytes else memoryview(b"") for buffer in buffers]
        while queue:
            written = os.pwritev(self._fd, queue[:_MAX_VECTOR], offset)
            offset += written
            while queue and written >= queue[0].nbytes:
                written -= queue.pop(0).nbytes
            if queue and written:
                queue[0] = queue[0][written:]

    def give_back(self, region: Region) -> None:
        """Free a region that its reader has done with."""
        self._regions.give_back(region)


class ArenaReader:
    """The reading end of an arena.

    Args:
        fd: The arena's memory file; owned by the caller.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None

    def view(self, region: Region) -> memoryview:
        """Return the bytes of `region` where they are: valid until the region is given back."""
        end = region.offset + region.size
        if not end:
            return memoryview(b"")
        if self._map is None or len(self._map) < end:
            # An outgrown mapping lives on while arrays look into it.
            self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)[region.offset : end]

    def close(self) -> None:
        """Unmap the memory, now or when the last array that looks into it is gone."""
        mapping, self._map = self._map, None
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.close()

    def read(self, region: Region) -> bytearray:
        """Return a private copy of the bytes of `region`."""
        data = bytearray(region.size)
        view, offset = memoryview(data), region.offset
        while view:
            n_read = os.preadv(self._fd, [view], offset)
            view, offset = view[n_read:], offset + n_read
        return data
