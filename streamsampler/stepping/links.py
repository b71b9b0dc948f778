"""The parent's ends of what it shares with one worker process."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import time
from collections.abc import Mapping, Sequence
from typing import Any

from streamsampler.engines.launch.child import END_SECONDS
from streamsampler.engines.launch.descriptors import pipe_between
from streamsampler.engines.launch.start import launch
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.launch.worker_child import WatchdogLostError, WorkerChild
from streamsampler.engines.processes.stacks import stacks_of
from streamsampler.stepping.wire import FrameReader
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
        unreadable: The same of infos that cannot be unpickled: what their environment did, and the exception.
        at_end: Whether the worker has ended, or closed its end of the pipe.
        since: When the worker was last seen to make progress, or was given work.
        is_making: Whether the worker still makes its environments.
        restoring: Environments that it is to restore, and has not.
        replayed: How many timesteps of restored environments it was last seen to have run.
        unsent: What the pipe to the worker had no room for; see `flush`.
        commands_fd: The pipe to the worker.
    """

    def __init__(
        self, method: StartMethod, number: int, fds: Sequence[int], stacks_fd: int, threads: int | None
    ) -> None:
        self.number = number
        self.waiting: set[int] = set()
        self.infos: dict[int, dict[str, Any]] = {}
        self.unreadable: dict[int, tuple[str, Exception]] = {}
        self.since = time.monotonic()
        self.is_making = True
        self.restoring: set[int] = set()
        self.replayed = 0
        self.unsent = bytearray()
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
            commands_read, self.commands_fd = pipe_between(theirs, ours, ours_is=1)
            self.answers_fd, answers_write = pipe_between(theirs, ours, ours_is=0)
            alive_read, _ = pipe_between(theirs, ours, ours_is=1)  # the worker ends when this closes
            for fd in (self.commands_fd, self.answers_fd):
                os.set_blocking(fd, False)
            self.child: WorkerChild = launch(
                method, main, self.number, [commands_read, answers_write, alive_read, *fds], threads
            )
            ours.callback(self.child.discard, END_SECONDS)
            self.child.await_start()
            self._reader = FrameReader(self.answers_fd)
            self._n_read = 0
            self._ours = ours.pop_all()

    def filenos(self) -> set[int]:
        """Return the descriptors that become readable when the worker answers or ends."""
        return {self.answers_fd, *self.child.filenos()}

    @property
    def is_busy(self) -> bool:
        """Whether the worker has something to do."""
        return self.is_making or bool(self.waiting) or bool(self.restoring)

    def write(self, data: bytes) -> None:
        """Send a message. Nothing is waited for: what the pipe has no room for is sent by `flush`."""
        if self.unsent:
            self.unsent += data
            return
        sent = self._write(data)
        if sent < len(data):
            self.unsent += memoryview(data)[sent:]
            self.flush()

    def flush(self) -> None:
        """Send what the pipe had no room for, as far as there is room now."""
        while self.unsent and (sent := self._write(self.unsent)):
            del self.unsent[:sent]
            self.since = time.monotonic()  # the worker reads: it does not hang, however long this takes

    def drain(self, deadline: float) -> None:
        """Send what the pipe had no room for, until a time of the monotonic clock at most."""
        while self.unsent and (left := deadline - time.monotonic()) > 0:
            self.take()  # or a worker that waits to send an answer would never read
            self.wait(left)

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self.commands_fd, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(data)  # the worker's end is noticed where its answers are read

    def _read(self) -> bool:
        messages = self._reader.read()
        if messages is None:
            self.at_end = True
            return False
        if self._reader.n_read > self._n_read:
            self._n_read = self._reader.n_read
            self.since = time.monotonic()  # the worker wrote, be it a part of a message, and can go on
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
        if self._unread:
            return
        if self.unsent:
            self._poller.register(self.commands_fd, select.POLLOUT)
        ready = self._poller.poll(None if timeout is None else max(0.0, 1000 * timeout))
        if self.unsent:
            self._poller.unregister(self.commands_fd)
            if any(fd == self.commands_fd for fd, _ in ready):
                self.flush()

    def keep_infos(self, infos: Mapping[int, tuple[str, bytes]]) -> None:
        """Unpickle infos of results that are announced next.

        Args:
            infos: By environment, what it did, and its info, pickled.
        """
        for env_id, (phase, info) in infos.items():
            try:
                self.infos[env_id] = pickle.loads(info)
            except Exception as error:  # anything: it is user code
                self.unreadable[env_id] = phase, error

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
