"""Write the folder of an export, of which nothing is left where it fails."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from streamsampler.core.errors import UsageError

_ERRNO = re.compile(r"errno = (\d+)")
"""How HDF5 writes the system's error numbers."""


def check_out(out: Path) -> None:
    """Check that a new folder can be made.

    Raises:
        UsageError: There is something of that name that is no empty folder, or no directory to put the folder in.
    """
    if not out.parent.is_dir():
        raise UsageError(f"there is no directory {str(out.parent)!r}")
    if out.is_dir():
        if names := os.listdir(out):
            raise UsageError(
                f"{str(out)!r} holds something already, such as {min(names)!r}: name a new or empty folder"
            )
    elif out.exists() or out.is_symlink():
        raise UsageError(f"{str(out)!r} is a file, and this format needs a folder")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder, which is removed if an error is raised.

    Args:
        out: The folder, which need not exist.

    Raises:
        OSError: The system refuses to write, also where a library raised that as another error; names `out`.
    """
    out.mkdir(exist_ok=True)
    try:
        yield out.absolute()  # because Minari looks for relative paths in the wrong place
    except BaseException as error:
        shutil.rmtree(out)
        number = _ERRNO.search(str(error))
        if number is not None and getattr(error, "errno", None) is None:
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(out)) from error
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(out)
        raise


def allocate(path: Path, start: int, n_bytes: int) -> None:
    """Take so many bytes of the disk for a file, from a position on, where the system can do that.

    Raises:
        OSError: The disk is full, or the file would be larger than this process may write.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), start, n_bytes)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
