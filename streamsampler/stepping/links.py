"""The parent's ends of what it shares with one worker process."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Sequence
from typing import Any

from streamsampler.engines.launch.child import END_SECONDS
from streamsampler.engines.launch.descriptors import pipe_between
from streamsampler.engines.launch.start import launch
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.launch.worker_child import WatchdogLostError, WorkerChild
from streamsampler.engines.processes.stacks import stacks_of
from streamsampler.stepping.wire import FrameReader, write_all
from streamsampler.stepping.worker_main import main

__all__ = ["WorkerLink"]


class WorkerLink:
    """A worker process, and the pipes there and back.

    Args:
        method: How processes are started.
        number: The worker number.
        fds: Descriptors that the worker gets: the setup, the rows, and where it writes its stacks.
        stacks_fd: Where stacks are read.
        threads: How many threads libraries compute on.

    Attributes:
        number: The worker number.
        child: The process.
        waiting: Environments whose requests have no answer yet.
        infos: Infos of results that are announced next, by environment.
        at_end: Whether the worker has ended, or closed its end of the pipe.
        since: When the worker was last seen to make progress, or was given work.
    """

    def __init__(
        self, method: StartMethod, number: int, fds: Sequence[int], stacks_fd: int, threads: int | None
    ) -> None:
        self.number = number
        self.waiting: set[int] = set()
        self.infos: dict[int, dict[str, Any]] = {}
        self.since = 0.0
        self._stacks_fd = stacks_fd
        self._unread: list[tuple[int, bytes]] = []
        self.at_end = False
        try:
            self._open(method, fds, threads)
        except WatchdogLostError:
            self._open(method, fds, threads)  # with another server
        self._poller = select.poll()
        for fd in (self.answers_fd, *self.child.filenos()):
            self._poller.register(fd, select.POLLIN)

    def _open(self, method: StartMethod, fds: Sequence[int], threads: int | None) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            commands_read, self._commands_fd = pipe_between(theirs, ours, ours_is=1)
            self.answers_fd, answers_write = pipe_between(theirs, ours, ours_is=0)
            alive_read, _ = pipe_between(theirs, ours, ours_is=1)  # the worker ends when this closes
            for fd in (self._commands_fd, self.answers_fd):
                os.set_blocking(fd, False)
            self.child: WorkerChild = launch(
                method, main, self.number, [commands_read, answers_write, alive_read, *fds], threads
            )
            ours.callback(self.child.discard, END_SECONDS)
            self.child.await_start()
            self._reader = FrameReader(self.answers_fd)
            self._ours = ours.pop_all()

    def filenos(self) -> set[int]:
        """Return the descriptors that become readable when the worker answers or ends."""
        return {self.answers_fd, *self.child.filenos()}

    def write(self, data: bytes) -> None:
        """Send a message."""
        write_all(self._commands_fd, data, self.answers_fd, self._read)

    def _read(self) -> bool:
        messages = self._reader.read()
        if messages is None:
            self.at_end = True
            return False
        self._unread += messages
        return True

    def take(self) -> tuple[list[tuple[int, bytes]], bool]:
        """Return the messages that are there, and whether the worker has ended."""
        if not self.at_end:
            self._read()
        if self.at_end or self.child.ended(0):
            while not self.at_end and self._poller_has(self.answers_fd):
                self._read()
            self.at_end = True
        messages, self._unread = self._unread, []
        return messages, self.at_end

    def _poller_has(self, fd: int) -> bool:
        return any(ready == fd for ready, _ in self._poller.poll(0))

    def wait(self, timeout: float | None) -> None:
        """Wait until the worker answers or ends, or time is up."""
        if not self._unread:
            self._poller.poll(None if timeout is None else max(0.0, 1000 * timeout))

    def stacks(self) -> str:
        """Return the worker's Python stacks."""
        return stacks_of(self.child, self._stacks_fd)

    def end(self) -> int | None:
        """Kill the worker, close all descriptors, and return the exit code."""
        self.child.kill()
        exitcode = self.child.wait(END_SECONDS)
        self._ours.close()
        return exitcode

    def next_message(self, timeout: float | None) -> Any:
        """Wait for one message; None if the worker ended, or time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._unread:
                return self._unread.pop(0)
            left = None if deadline is None else deadline - time.monotonic()
            if self.at_end or (left is not None and left <= 0):
                return None
            self.wait(left)
            self._unread, self.at_end = self.take()
