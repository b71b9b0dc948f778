"""Write a folder next to its place, and give it its name when it is whole."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from streamsampler.errors import UsageError
from streamsampler.storage.atomic import FolderLock, sync_directory

_ERRNO = re.compile(r"errno = (\d+)|: [A-Z][a-z ]+ \((\d+)\)$")
"""How HDF5 and PyTorch write the system's error numbers."""


def check_out(out: Path) -> None:
    """Check that a new folder can be made.

    Raises:
        UsageError: There is something of that name that is no empty folder, or no directory to put the folder in.
    """
    if not out.parent.is_dir():
        raise UsageError(f"there is no directory {str(out.parent)!r}")
    if not out.name:
        raise UsageError(f"{str(out)!r} is a directory: name a folder in it")
    if out.is_dir():
        if names := os.listdir(out):
            raise UsageError(
                f"{str(out)!r} holds something already, such as {min(names)!r}: name a new or empty folder"
            )
    elif out.exists() or out.is_symlink():
        raise UsageError(f"{str(out)!r} is a file, and this format needs a folder")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder that gets its name when all of it is written.

    Until then it lies in a hidden folder, `.NAME.export`, which carries a lock. If an error is raised it is removed;
    what a killed process left there is removed by the next one.

    Args:
        out: The name, which nothing has, or an empty folder.

    Raises:
        StorageError: Another process writes the same folder.
        OSError: The system refuses to write, also where a library raised that as another error; names `out`.
    """
    # From the root on, because Minari looks for relative paths in the wrong place.
    hidden = out.absolute().with_name(f".{out.name}.export")
    with contextlib.ExitStack() as cleanup:
        try:
            hidden.mkdir(exist_ok=True)
            if os.name == "posix":
                cleanup.enter_context(contextlib.closing(FolderLock(hidden)))
            cleanup.callback(shutil.rmtree, hidden)
            folder = hidden / "new"
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir()
            yield folder
            _rename(folder, out)
        except (OSError, RuntimeError) as error:
            number = _ERRNO.search(str(error))
            if number is not None and getattr(error, "errno", None) is None:
                code = int(number[1] or number[2])
                raise OSError(code, os.strerror(code), str(out)) from error
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(out)
            raise


def _rename(folder: Path, name: Path) -> None:
    """Wait until all of a folder is on the disk, and give it its name."""
    for directory, _, files in os.walk(folder):
        for file in files:
            with Path(directory, file).open("rb") as opened:
                os.fsync(opened.fileno())
        sync_directory(Path(directory))
    if name.is_dir():
        name.rmdir()
    folder.rename(name)
    sync_directory(name.parent)


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
