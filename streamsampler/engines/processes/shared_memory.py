"""Allocate shared memory without names, gone with its last user.

An arena is a growing memory file with a single writer, which alone decides where data lies. A reader receives `(offset,
size)` in a message, and later returns it. So no lock exists for a killed process to leave locked.
"""

from __future__ import annotations

import math
import mmap
import os
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.memory import Pool, lend
from streamsampler.core.serialization import Place

_ALIGNMENT = 64
_FIRST_MAPPING = 1 << 24
_FEWEST_LENT_BYTES = 4096
_MAX_VECTOR = 512  # buffers in a system call; Linux allows 1,024


class Region(NamedTuple):
    """A part of an arena, in bytes."""

    offset: int
    size: int


def anonymous_file(name: str, data: bytes = b"") -> int:
    """Return a descriptor of a new memory file; `name` is for debugging."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_only(fd: int) -> int:
    """Return another descriptor of an anonymous file, read-only if /proc exists."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return os.dup(fd)


class Regions:
    """Allocates the first fit in an endless address range: pure.

    First fit keeps used memory at the low end: the same pages serve again, without page faults.
    """

    def __init__(self) -> None:
        self._used: list[Region] = []  # by offset

    def allocate(self, size: int) -> Region:
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
        """Free a region; raise a KeyError if it is not in use."""
        place = bisect_left(self._used, region)
        if place == len(self._used) or self._used[place] != region:
            raise KeyError(f"{region} is not in use")
        del self._used[place]

    def shrink(self, region: Region, size: int) -> Region:
        """Free a region but for its first `size` bytes, at least 1."""
        self.give_back(region)
        shorter = Region(region.offset, size)
        insort(self._used, shorter)
        return shorter

    @property
    def end(self) -> int:
        return self._used[-1].offset + self._used[-1].size if self._used else 0


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class ArenaWriter:
    """The writing end of an arena; the caller owns its file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._regions = Regions()
        self._map: mmap.mmap | None = None
        self._backed = 0  # bytes from the start of the file with reserved memory
        self._lent: dict[int, Region] = {}  # by address in this process

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Make an uninitialised array in the arena; raise an OSError if no memory is left.

        Its region is freed with the last view of the array or, if sent before, when its reader returns it.
        """
        size = math.prod(shape) * dtype.itemsize
        region = self._regions.allocate(max(size, 1))
        try:
            mapping = self._mapped(region.offset + region.size)
        except BaseException:
            self._regions.give_back(region)
            raise
        array: NDArray[Any] = np.ndarray(shape, dtype, mapping, region.offset)
        address = _address(array)
        self._lent[address] = region
        return lend(array, lambda: self._dropped(address, region))

    def _dropped(self, address: int, region: Region) -> None:
        # Another array may have the address by now, in an equal region: this array was sent, and its last view has gone
        # late.
        if self._lent.get(address) is region:
            del self._lent[address]
            self._regions.give_back(region)

    def _mapped(self, end: int) -> mmap.mmap:
        """Return a mapping of at least the first `end` bytes."""
        if end > self._backed:
            # With memory reserved before, a full machine is an OSError here, and not a SIGBUS at a later write.
            os.posix_fallocate(self._fd, self._backed, end - self._backed)
            self._backed = end
        if self._map is None or len(self._map) < end:
            # Twice the length, for few mappings: each costs page faults again. Outgrown mappings live on with their
            # arrays.
            length = max(_FIRST_MAPPING, 2 * end)
            os.ftruncate(self._fd, max(length, os.fstat(self._fd).st_size))
            self._map = mmap.mmap(self._fd, length)
        return self._map

    def lent_region(self, buffer: memoryview) -> Region | None:
        """Return a buffer's region if it starts an array of `allocate`, else None."""
        if not self._lent or buffer.nbytes < _FEWEST_LENT_BYTES:
            return None
        region = self._lent.get(_address(np.frombuffer(buffer, np.uint8)))
        return region and Region(region.offset, buffer.nbytes)

    def transfer(self, sent: Region) -> None:
        """Transfer a result of `lent_region` to its reader, and free the rest of the array."""
        address, region = next(item for item in self._lent.items() if item[1].offset == sent.offset)
        del self._lent[address]
        self._regions.shrink(region, sent.size)

    def write(self, buffers: Sequence[memoryview]) -> Region:
        """Copy `buffers` in order into a free region; raise an OSError without effect if no memory is left."""
        region = self._regions.allocate(sum(buffer.nbytes for buffer in buffers))
        try:
            self._write_at(region.offset, buffers)
        except OSError:
            self._regions.give_back(region)
            raise
        return region

    def _write_at(self, offset: int, buffers: Sequence[memoryview]) -> None:
        # The file system copies; a mapping here would add page faults, and turn an OSError for full memory into SIGBUS.
        queue = [buffer.cast("B") if buffer.nbytes else memoryview(b"") for buffer in buffers]
        while queue:
            written = os.pwritev(self._fd, queue[:_MAX_VECTOR], offset)
            offset += written
            while queue and written >= queue[0].nbytes:
                written -= queue.pop(0).nbytes
            if queue and written:
                queue[0] = queue[0][written:]

    def give_back(self, region: Region) -> None:
        self._regions.give_back(region)


class ArenaReader:
    """The reading end of an arena."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._pool = Pool()

    def look(self, region: Region) -> Place:
        """Return memory and offset of `region`, valid until it is returned; raise a ValueError if it is none."""
        if region.offset < 0 or region.size < 0:
            raise ValueError(f"{region} lies outside of the arena")
        end = region.offset + region.size
        if not end:
            return b"", 0
        if self._map is None or len(self._map) < end:
            # An outgrown mapping lives on with its arrays.
            self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
            if len(self._map) < end:
                raise ValueError(f"{region} lies outside of the arena")
        return self._map, region.offset

    def close(self) -> None:
        """Unmap the memory, now or with the last array in it."""
        # Not its own `close`: an array made with `np.ndarray(…, buffer)` uses the mapping, and does not forbid that.
        self._map = None

    def read(self, region: Region) -> memoryview:
        """Return a private copy of `region`, in the memory of an unused earlier copy if possible."""
        data = self._pool.allocate((region.size,), np.dtype(np.uint8)).data
        view, offset = data, region.offset
        while view:
            n_read = os.preadv(self._fd, [view], offset)
            view, offset = view[n_read:], offset + n_read
        return data
