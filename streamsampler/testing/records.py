"""What happened, counted over all processes and beyond their deaths: a symbolic link for each event."""

from __future__ import annotations

import contextlib
import os
import select
import time
from pathlib import Path

__all__ = ["Records"]

_WAKE = "wake"


class Records:
    """Events of several kinds, each kind counted from 1, in a folder.

    A link is made whole or not at all, and leads to the id of the process, so of two processes only one can be the
    k-th. A named pipe wakes the processes that wait. All of it goes with the folder.

    Args:
        folder: Where; made if need be. What an earlier process counted there counts.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.folder / _WAKE)
        self._seen: dict[str, int] = {}

    def add(self, kind: str, most: int | None = None) -> int | None:
        """Record an event.

        Args:
            kind: Its kind; no dots.
            most: How many there may be; None for any number.

        Returns:
            How many of its kind there are now; None if there were as many as there may be.
        """
        number = self._seen.get(kind, 0)
        while most is None or number < most:
            number += 1
            self._seen[kind] = number
            with contextlib.suppress(FileExistsError):
                os.symlink(str(os.getpid()), self.folder / f"{kind}.{number}")
                return number
        return None  # without a look at the file system from the second time on: each timestep may ask

    def wake(self) -> None:
        """Wake the processes that wait for an event."""
        with contextlib.suppress(OSError):  # no process waits
            pipe = os.open(self.folder / _WAKE, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b".")
            finally:
                os.close(pipe)

    def count(self, kind: str | None = None) -> int:
        """Return how many events there were, of one kind or in all."""
        return len(self._names(kind))

    def pids(self, kind: str | None = None) -> list[int]:
        """Return the processes they happened in, in no particular order."""
        return [int(os.readlink(self.folder / name)) for name in self._names(kind)]

    def _names(self, kind: str | None) -> list[str]:
        parts = [name.partition(".") for name in os.listdir(self.folder)]
        return ["".join(part) for part in parts if part[2].isdigit() and kind in (None, part[0])]

    def wait(self, n: int, timeout: float) -> None:
        """Wait for the `n`-th event.

        Raises:
            TimeoutError: It has not come after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        # Opened before the first look, so that no event is missed. For writing, too, or the pipe would end with
        # its last writer.
        pipe = os.open(self.folder / _WAKE, os.O_RDWR | os.O_NONBLOCK)
        try:
            poller = select.poll()
            poller.register(pipe, select.POLLIN)
            while (count := self.count()) < n:
                if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError(f"{count} of {n} have happened after {timeout} seconds")
                os.read(pipe, 1 << 16)
        finally:
            os.close(pipe)
