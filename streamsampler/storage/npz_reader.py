"""Read `.npz` files that may be damaged.

What headers claim is compared with the size of the file before memory is allocated, and anything wrong is a
`StorageError` that names the file.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from streamsampler.data.trees import Array
from streamsampler.errors import StorageError
from streamsampler.storage.json_facts import damage_raised

__all__ = ["Npz", "opened_npz"]

_MOST_DEFLATED = 1032
"""How many bytes at most one byte of a deflated entry stands for."""

_SUFFIX = ".npy"
_VERSIONS = ((1, 0), (2, 0), (3, 0))


@contextlib.contextmanager
def opened_npz(path: Path) -> Iterator[Npz]:
    """Open a file for reading.

    Args:
        path: The file.

    Raises:
        StorageError: It is no `.npz` file, or it is damaged; also for any error of the block that reads it, except the
            package's own, those of the operating system, and a lack of memory for what is really there.
        OSError: It cannot be read.
    """
    if path.is_dir():
        raise StorageError(f"{path} is a folder, not a file; streamsampler.load reads all of it")
    damaged = damage_raised(path, "cannot be read: it is damaged, cut short, or holds pickles ({})")
    with damaged, path.open("rb") as file:
        _check_zip(path, file)
        with zipfile.ZipFile(file) as archive:
            yield Npz(archive, os.fstat(file.fileno()).st_size)


def _check_zip(path: Path, file: BinaryIO) -> None:
    # NumPy takes everything that is no zip for a pickle, and says so.
    if not zipfile.is_zipfile(file):
        raise StorageError(f"{path} is no trajectory batch: it is no .npz file, or it was cut short")
    file.seek(0)


class Npz:
    """The arrays of an open `.npz` file.

    Args:
        archive: The file.
        size: Its size in bytes.

    Attributes:
        names: The arrays' names.
    """

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        self._size = size
        self._members = {info.filename.removesuffix(_SUFFIX): info for info in archive.infolist()}
        self.names = list(self._members)
        for name, info in self._members.items():
            if not 0 <= info.header_offset < size:
                raise ValueError(f"{name} should begin at byte {info.header_offset} of {size}")

    def read(self, name: str) -> Array:
        """Return an array.

        Raises:
            KeyError: There is no array of that name.
            Exception: It is damaged.
        """
        info = self._members[name]
        self._check_size(info)
        with self._archive.open(info) as member:
            array: Array = np.lib.format.read_array(member, allow_pickle=False)
            return array

    def _check_size(self, info: zipfile.ZipInfo) -> None:
        """Compare what the file, its directory and the array's own header say of an array's size."""
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename} is compressed in a way that NumPy never does ({info.compress_type})")
        most = info.compress_size if info.compress_type == zipfile.ZIP_STORED else info.compress_size * _MOST_DEFLATED
        if info.compress_size > self._size or info.file_size > most:
            raise ValueError(f"{info.filename} claims {info.file_size} bytes, and the file has {self._size}")
        with self._archive.open(info) as member:
            shape, dtype = _npy_header(member)
            n_items: int = math.prod(shape)
            there = info.file_size - member.tell()
        if n_items * dtype.itemsize != there or (n_items and not dtype.itemsize):
            raise ValueError(f"{info.filename} claims {dtype} of shape {shape}, and has {there} bytes")


def _npy_header(member: Any) -> tuple[list[int], np.dtype[Any]]:
    """Return the shape and dtype that an array's header claims."""
    version = np.lib.format.read_magic(member)
    if version not in _VERSIONS:
        raise ValueError(f"its header is of version {version}")
    # A header of version 3.0 has the layout of 2.0, and other letters in the names of fields.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(member)
    except MemoryError as reason:  # what Python's parser says of deeply nested text
        raise ValueError("its header is nested too deeply") from reason
    if dtype.hasobject:
        raise ValueError("objects are pickles, which are not read")
    if any(length < 0 for length in shape):
        raise ValueError(f"the shape is {shape}")
    return list(shape), dtype
