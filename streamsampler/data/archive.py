"""Read `.npz` files, even if damaged or malicious: every fault is a `StorageError` with the names of file and array.

An array of a few kilobytes may unpack to gigabytes. Its size in the archive's directory is compared with its header,
itself of bounded length, before anything is unpacked; `data.array_claims` compares the headers of all arrays.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from streamsampler.core.errors import StorageError
from streamsampler.core.reading import open_regular
from streamsampler.data.trees import Array

_SUFFIX = ".npy"
_MAGIC_BYTES = 8
_MOST_HEADER_BYTES = 1 << 14  # for each array; NumPy's own limit is 10,000 characters
_TEXT_BYTES, _TEXT_RATIO, _ROW_BYTES = 1 << 28, 32, 1 << 10


class Claim(NamedTuple):
    """The shape and dtype in an array's header."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def stand_in(self) -> Array:
        """Return an array of this shape and dtype without memory; strings have length 1."""
        dtype = np.dtype(f"{self.dtype.kind}1") if self.dtype.kind in "USV" else self.dtype
        return np.broadcast_to(np.zeros((), dtype), self.shape)


@contextlib.contextmanager
def opened_npz(path: Path) -> Iterator[NpzArchive]:
    """Open a file; raise a `StorageError` if it is no `.npz` file or truncated."""
    if path.is_dir():
        raise StorageError(f"{path} is a folder, not a file: load it with streamsampler.load")
    with open_regular(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except Exception as reason:
            raise StorageError(
                f"{path} is no trajectory batch: it is not an .npz file, or it is truncated ({reason})"
            ) from None
        with archive:
            yield NpzArchive(path, archive)


class NpzArchive:
    """The arrays of an open `.npz` file, with their names in `names`; errors name the path."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive = path, archive
        self.names = [name.removesuffix(_SUFFIX) for name in archive.namelist()]
        self._claims: dict[str, Claim] = {}

    def claim(self, name: str) -> Claim:
        """Return an array's shape and dtype from its header; raise a `StorageError` for another size, or pickles."""
        if name not in self._claims:
            try:
                info = self._archive.getinfo(f"{name}{_SUFFIX}")
                with self._archive.open(info) as member:
                    claim, header_bytes = _claim_of(member)
                _check_size(claim, info.file_size - header_bytes)
            except Exception as reason:  # also an OSError: a negative file position
                self._refuse(name, reason)
            self._claims[name] = claim
        return self._claims[name]

    def read(self, name: str) -> Array:
        self.claim(name)
        try:
            with self._archive.open(f"{name}{_SUFFIX}") as member:
                array: Array = np.lib.format.read_array(member, allow_pickle=False)
                member.read(1)  # compares the checksum
        except Exception as reason:
            self._refuse(name, reason)
        return array

    def read_text(self, name: str, n_rows: int = 0) -> bytes:
        """Return the JSON text of `n_rows` values; raise a `StorageError` if its size is implausible.

        A text may have a quarter of a gigabyte, 32 times its compressed size, or a kilobyte for each value.
        """
        self.check_text(name, n_rows)
        return self.read(name).tobytes()

    def check_text(self, name: str, n_rows: int) -> None:
        claim, info = self.claim(name), self._archive.getinfo(f"{name}{_SUFFIX}")
        most = max(_TEXT_BYTES, _TEXT_RATIO * info.compress_size, _ROW_BYTES * n_rows)
        if claim.dtype != np.uint8 or len(claim.shape) != 1 or info.file_size > most:
            text = f"it is a text of {claim.shape} {claim.dtype} in {info.compress_size:,} bytes"
            self._refuse(name, ValueError(f"{text}; at most {most:,} bytes are allowed"))

    def _refuse(self, name: str, reason: Exception) -> NoReturn:
        raise StorageError(
            f"{self._path} cannot be read: {name} is damaged, truncated, or holds pickles "
            f"({type(reason).__name__}: {reason})"
        ) from None


def _claim_of(member: Any) -> tuple[Claim, int]:
    """Read an array's header in the `.npy` format; return its length in bytes, too."""
    magic = member.read(_MAGIC_BYTES)
    version = np.lib.format.read_magic(io.BytesIO(magic))
    length_form, read = {
        (1, 0): ("<H", np.lib.format.read_array_header_1_0),
        (2, 0): ("<I", np.lib.format.read_array_header_2_0),
        (3, 0): ("<I", np.lib.format.read_array_header_2_0),  # field names are decoded wrongly, but nobody reads them
    }[version]
    length = member.read(struct.calcsize(length_form))
    (n_bytes,) = struct.unpack(length_form, length)
    if n_bytes > _MOST_HEADER_BYTES:
        raise ValueError(f"its header has {n_bytes:,} bytes, but at most {_MOST_HEADER_BYTES:,} are allowed")
    shape, _, dtype = read(io.BytesIO(length + member.read(n_bytes)))
    return Claim(shape, dtype), len(magic) + len(length) + n_bytes


def _check_size(claim: Claim, n_bytes: int) -> None:
    if claim.dtype.hasobject:
        raise ValueError("it holds pickles")
    if min(claim.shape, default=0) < 0:
        raise ValueError(f"its header has the impossible shape {claim.shape}")
    expected = math.prod(claim.shape) * claim.dtype.itemsize
    if expected != n_bytes:
        raise ValueError(f"it has {n_bytes:,} bytes, but {expected:,} according to its header")
