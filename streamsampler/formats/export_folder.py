"""The folder of an export, of which an error leaves nothing."""

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
"""The system's error number in messages of HDF5."""
_UNFINISHED = ".export.tmp"


def check_out(out: Path) -> None:
    """Raise a `UsageError` unless a new folder can be created."""
    if not out.parent.is_dir():
        raise UsageError(f"no such directory: {str(out.parent)!r}")
    if out.is_dir():
        names = os.listdir(out)
        if names == [_UNFINISHED]:
            raise UsageError(
                f"{str(out)!r} holds an export that was killed or is still running: remove the folder, or name another"
            )
        if names:
            raise UsageError(f"{str(out)!r} is not empty: it holds {min(names)!r}; name a new or empty folder")
    elif out.exists() or out.is_symlink():
        raise UsageError(f"{str(out)!r} is a file, but this format needs a folder")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Create the folder `out`, yield an empty folder inside it, and move its files up at the end.

    An error removes `out`; a killed process leaves no file that looks finished. If the system refuses to write, an
    `OSError` names `out`, even if a library raised another error.
    """
    out.mkdir(exist_ok=True)
    # Inside `out`: the parent directory may be another file system, or read-only.
    unfinished = out.absolute() / _UNFINISHED  # absolute: Minari resolves relative paths against the wrong directory
    try:
        unfinished.mkdir()
        yield unfinished
        for name in sorted(os.listdir(unfinished)):
            (unfinished / name).rename(out / name)
        unfinished.rmdir()
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
    """Reserve disk space for a file, from a position on, if the system supports it."""
    if hasattr(os, "posix_fallocate"):
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), start, n_bytes)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
