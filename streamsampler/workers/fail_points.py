"""Kill a worker process at a chosen place of its loop; see `streamsampler.testing.FailPoint`.

Off, there is nothing: one look at an environment variable when a worker starts, and the worker's loop has no trace of
them. On, the worker talks to its sampler through a channel that counts what passes by. (FreeBSD's and TiKV's fail
points stand in the code that they break, and are compiled away; Python's cannot be.)
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

import gymnasium

from streamsampler.core.errors import UsageError
from streamsampler.environments.updates import EnvUpdate
from streamsampler.protocol.messages import Answer, Continue, Exit, Message, Report, Start, Stop
from streamsampler.workers.loop import Channel

_VARIABLE = "STREAMSAMPLER_FAIL_POINT"  # of the environment: switches them on

# ----------------------------------------------------------------------
# What happened, counted over all processes and beyond their deaths: a symbolic link for each event.


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

    def record(self, kind: str, most: int | None = None) -> int | None:
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


# ----------------------------------------------------------------------


POINTS = ("start", "continue", "stop", "exit", "rollout", "write", "send", "sent")

_MESSAGES: dict[type[Message], str] = {Start: "start", Continue: "continue", Stop: "stop", Exit: "exit"}
_STEP = 2  # of a trajectory, in which "rollout" is reached

Send = Callable[[int, bytes], None]


class SendingChannel(Channel, Protocol):
    """A channel of a process.

    Attributes:
        send: Writes a message to a descriptor.
    """

    send: Send


def armed(channel: SendingChannel, number: int) -> Channel:
    """Return the channel of worker `number`; where a test lets it die somewhere, one that counts what passes by."""
    value = os.environ.get(_VARIABLE)
    if value is None:
        return channel
    point, worker, occurrence, folder = json.loads(value)
    return _FailingChannel(channel, _Point(point, occurrence, Records(folder))) if worker == number else channel


@dataclass(frozen=True)
class _Point:
    name: str
    occurrence: int
    records: Records

    def reached(self, name: str) -> bool:
        """Whether this is the place and the time to die; counted over the processes that have this worker's number."""
        return name == self.name and self.records.record(name, self.occurrence) == self.occurrence

    def reach(self, name: str) -> None:
        if self.reached(name):
            os.kill(os.getpid(), signal.SIGKILL)


class _FailingChannel:
    """A channel that counts what passes by, and dies."""

    def __init__(self, channel: SendingChannel, point: _Point) -> None:
        self.interruptible, self.descriptor = channel.interruptible, getattr(channel, "descriptor", None)
        self._channel, self._point = channel, point
        self._reports = False
        self._send, channel.send = channel.send, self._send_or_die

    def receive(self, *, wait: bool) -> Message | None:
        message = self._channel.receive(wait=wait)
        if message is not None:
            self._point.reach(_MESSAGES[type(message)])
        return message

    def load(self, payload: Any) -> Any:
        loaded = self._channel.load(payload)
        return _MortalEnvUpdate(loaded, self._point) if isinstance(loaded, EnvUpdate) else loaded

    def answer(self, answer: Answer, contents: Any = None) -> None:
        self._reports = isinstance(answer, Report) and not answer.given_up
        self._channel.answer(answer, contents)

    def _send_or_die(self, fd: int, message: bytes) -> None:
        if not self._reports:
            self._send(fd, message)
            return
        self._point.reach("write")
        if self._point.reached("send"):
            self._send_half(fd, message)
            os.kill(os.getpid(), signal.SIGKILL)
        self._send(fd, message)
        self._point.reach("sent")

    def _send_half(self, fd: int, message: bytes) -> None:
        with TemporaryFile() as file:
            self._send(file.fileno(), message)
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            os.write(fd, file.read(size // 2))


class _MortalEnvUpdate(EnvUpdate):
    """Another update, whose environment counts rollouts."""

    def __init__(self, update: EnvUpdate, point: _Point) -> None:
        self._update, self._point = update, point
        self.n_slots = update.n_slots

    def of_slot(self, slot: int) -> EnvUpdate:
        return _MortalEnvUpdate(self._update.of_slot(slot), self._point)

    def __call__(self, old_env: gymnasium.Env[Any, Any] | None) -> gymnasium.Env[Any, Any]:
        env = self._update(old_env.env if isinstance(old_env, _MortalEnv) else old_env)
        return _MortalEnv(env, self._point) if isinstance(env, gymnasium.Env) else env


class _MortalEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that counts rollouts, and dies."""

    def __init__(self, env: gymnasium.Env[Any, Any], point: _Point) -> None:
        super().__init__(env)
        self._point = point
        self._steps = 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == _STEP:
            self._point.reach("rollout")
        return self.env.step(action)


# ----------------------------------------------------------------------


class FailPoint:
    """Lets a worker process kill itself (SIGKILL) at a place in its loop, once.

    ::

        point = FailPoint("sent", worker=1, occurrence=2, folder=tmp_path)
        with point.armed(), MultiprocessingSampler(agent, env, n_workers=3, seed=1) as sampler:
            batch = sampler.obtain_trajectories(30)
        assert point.fired()

    Args:
        point: "start": it has read a `Start`, and done nothing yet. "continue": the same with further tickets.
            "rollout": in a trajectory's second step. "write": its rollouts lie in shared memory, if they are large, and
            nothing is sent. "send": half of the message is sent. "sent": all of it is, and nothing else happened.
            "stop" and "exit": it has read that message, and done nothing yet.
        worker: The worker number.
        occurrence: At which time that worker gets there, from 1; those before it in the same place are counted, too.
        folder: Where the record is kept; a fresh one.

    Raises:
        UsageError: There is no such point, or a number cannot be.
    """

    def __init__(self, point: str, *, worker: int, folder: str | os.PathLike[str], occurrence: int = 1) -> None:
        if point not in POINTS:
            raise UsageError(f"a fail point is one of {', '.join(POINTS)}; got {point!r}")
        if worker < 0 or occurrence < 1:
            raise UsageError(f"worker is at least 0 and occurrence at least 1, got {worker} and {occurrence}")
        self._records = Records(folder)
        self._occurrence = occurrence
        self._value = json.dumps([point, worker, occurrence, str(self._records.folder)])

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Switch the fail point on, for all the life of workers of samplers that are made inside."""
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = self._value
        try:
            yield
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before

    def fired(self) -> bool:
        """Whether the worker has died there."""
        return self._records.count() >= self._occurrence
