"""Write a folder that appears under its name when it is whole, and can be continued until then.

Until then it is a hidden folder next to it, `.NAME.export`, which carries a lock. What a killed process left there is
continued where it is of the same source, and removed otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streamsampler.errors import UsageError
from streamsampler.storage.atomic import FolderLock, sync_directory, write_whole

_STATE = "export.json"
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


class Staging:
    """The hidden folder in which an export is written. A context manager.

    On a KeyboardInterrupt, and where the disk is full or cannot be written, the folder stays, if it can be continued;
    otherwise it is removed.

    Args:
        out: The folder that the export becomes.
        identity: What tells this export from others, as JSON can hold it; None if it cannot be continued.

    Attributes:
        path: The hidden folder.

    Raises:
        UsageError: See `check_out`.
        StorageError: Another process writes the same export.
        OSError: The folder cannot be made.
    """

    def __init__(self, out: Path, identity: Any | None) -> None:
        check_out(out)
        self._out = out
        self._resumable = identity is not None
        # From the root on, because Minari looks for relative paths in the wrong place.
        self.path = out.absolute().with_name(f".{out.name}.export")
        self.path.mkdir(exist_ok=True)
        self._lock = FolderLock(self.path) if os.name == "posix" else None
        try:
            state = json.dumps(identity).encode()
            if not (self._resumable and _read(self.path / _STATE) == state):
                self._clear()
                write_whole(self.path / _STATE, lambda file: file.write(state))
        except BaseException:
            self._close()
            raise

    def _clear(self) -> None:
        for path in self.path.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def complete(self, folder: Path) -> None:
        """Give a folder in the hidden one the name of the export, when all of it is on the disk."""
        check_out(self._out)
        make_whole(folder, self._out)

    def _close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self._out)
        try:
            if not (self._resumable and isinstance(error, KeyboardInterrupt | OSError | MemoryError)):
                shutil.rmtree(self.path)
        finally:
            self._close()


def reserve(folder: Path, n_bytes: int) -> None:
    """Check that a file of so many bytes can be written into a folder, where the system can tell.

    Raises:
        OSError: It cannot: the disk is full, or the file would be larger than this process may write.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    trial = folder / "space.tmp"
    try:
        with trial.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, n_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        trial.unlink(missing_ok=True)


@contextlib.contextmanager
def system_errors(out: Path) -> Iterator[None]:
    """Turn the errors that libraries raise where the system refuses to write into the system's own.

    Raises:
        OSError: The system refused; names the export.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = _ERRNO.search(str(error))
        if number is None or getattr(error, "errno", None) is not None:
            raise
        code = int(number[1] or number[2])
        raise OSError(code, os.strerror(code), str(out)) from error


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def make_whole(folder: Path, name: Path) -> None:
    """Wait until all of a folder is on the disk, and give it another name; of an empty folder, if there is one.

    Raises:
        OSError: It cannot be read or renamed.
    """
    for directory, _, files in os.walk(folder):
        for file in files:
            descriptor = os.open(Path(directory, file), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(directory))
    if os.name != "posix" and name.is_dir():
        name.rmdir()
    folder.rename(name)
    sync_directory(name.parent)
