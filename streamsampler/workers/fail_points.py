"""Kill a worker process at a chosen place of its loop; see `streamsampler.testing.FailPoint`.

When off, the cost is a single read of an environment variable when a worker starts. When on, the worker communicates
through a counting channel.
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

_VARIABLE = "STREAMSAMPLER_FAIL_POINT"  # the environment variable which arms a fail point
_WAKE = "wake"


class Records:
    """Counts events of several kinds in a folder, across processes and their deaths.

    Each event is a symbolic link to the id of its process. A link is created atomically, so only a single process can
    record the k-th event. A named pipe wakes waiting processes.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.folder / _WAKE)
        self._seen: dict[str, int] = {}

    def record(self, kind: str, most: int | None = None) -> int | None:
        """Record an event; return its number among those of its kind, or None if `most` was reached already.

        The name of a kind has no dots.
        """
        number = self._seen.get(kind, 0)
        while most is None or number < most:
            number += 1
            self._seen[kind] = number
            with contextlib.suppress(FileExistsError):
                os.symlink(str(os.getpid()), self.folder / f"{kind}.{number}")
                return number
        return None  # from the second time on without a system call: each timestep may ask

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # no process waits
            pipe = os.open(self.folder / _WAKE, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b".")
            finally:
                os.close(pipe)

    def count(self, kind: str | None = None) -> int:
        return len(self._names(kind))

    def pids(self, kind: str | None = None) -> list[int]:
        return [int(os.readlink(self.folder / name)) for name in self._names(kind)]

    def _names(self, kind: str | None) -> list[str]:
        parts = [name.partition(".") for name in os.listdir(self.folder)]
        return ["".join(part) for part in parts if part[2].isdigit() and kind in (None, part[0])]

    def wait(self, n: int, timeout: float) -> None:
        """Wait for the `n`-th event.

        Raises:
            TimeoutError: Fewer events were recorded after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        # Opened before the first count, so that no event is missed. Also for writing: otherwise the pipe reports its
        # end when the last writer closes it.
        pipe = os.open(self.folder / _WAKE, os.O_RDWR | os.O_NONBLOCK)
        try:
            poller = select.poll()
            poller.register(pipe, select.POLLIN)
            while (count := self.count()) < n:
                if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError(f"only {count} of {n} events were recorded within {timeout} seconds")
                os.read(pipe, 1 << 16)
        finally:
            os.close(pipe)


POINTS = ("start", "continue", "stop", "exit", "rollout", "write", "send", "sent")

_MESSAGES: dict[type[Message], str] = {Start: "start", Continue: "continue", Stop: "stop", Exit: "exit"}
_STEP = 2  # the step of a trajectory at which "rollout" is reached

Send = Callable[[int, bytes], None]


class SendingChannel(Channel, Protocol):
    """Is a channel of a worker process.

    Attributes:
        send: Writes a message to a descriptor.
    """

    send: Send


def armed(channel: SendingChannel, number: int) -> Channel:
    """Return worker `number`'s channel, wrapped by a counting channel if a fail point is armed for this worker."""
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
        return name == self.name and self.records.record(name, self.occurrence) == self.occurrence

    def reach(self, name: str) -> None:
        if self.reached(name):
            os.kill(os.getpid(), signal.SIGKILL)


class _FailingChannel:
    """Counts a channel's messages and kills the process at the chosen one."""

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
        self._reports = isinstance(answer, Report) and not answer.abandoned
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
    def __init__(self, update: EnvUpdate, point: _Point) -> None:
        self._update, self._point = update, point
        self.n_slots = update.n_slots

    def of_slot(self, slot: int) -> EnvUpdate:
        return _MortalEnvUpdate(self._update.of_slot(slot), self._point)

    def __call__(self, old_env: gymnasium.Env[Any, Any] | None) -> gymnasium.Env[Any, Any]:
        env = self._update(old_env.env if isinstance(old_env, _MortalEnv) else old_env)
        return _MortalEnv(env, self._point) if isinstance(env, gymnasium.Env) else env


class _MortalEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts rollouts in an environment and kills the process in the chosen one."""

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


class FailPoint:
    """Kills a worker process (SIGKILL) at a place in its loop, once.

    ::

        point = FailPoint("sent", worker=1, occurrence=2, folder=tmp_path)
        with point.armed(), MultiprocessingSampler(agent, env, n_workers=3, seed=1) as sampler:
            batch = sampler.obtain_trajectories(30)
        assert point.fired()

    Args:
        point: "start": it has received a `Start` and done nothing yet. "continue": the same with further tickets.
            "rollout": in a trajectory's second step. "write": large rollouts are in shared memory, and nothing is sent.
            "send": half of the message is sent. "sent": all of it is sent, and nothing else happened. "stop" and
            "exit": it has received this message and done nothing yet.
        worker: The worker number.
        occurrence: Number of the worker's arrival at this place, from 1; earlier processes with the same worker number
            count.
        folder: A new folder for the record.

    Raises:
        UsageError: The point is unknown, or a number is out of range.
    """

    def __init__(self, point: str, *, worker: int, folder: str | os.PathLike[str], occurrence: int = 1) -> None:
        if point not in POINTS:
            raise UsageError(f"point must be one of {', '.join(POINTS)}; got {point!r}")
        if worker < 0 or occurrence < 1:
            raise UsageError(f"worker must be at least 0 and occurrence at least 1, got {worker} and {occurrence}")
        self._records = Records(folder)
        self._occurrence = occurrence
        self._value = json.dumps([point, worker, occurrence, str(self._records.folder)])

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Arm the fail point for workers of samplers made inside the block, for their whole life."""
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
        """Return whether the worker has died at the fail point."""
        return self._records.count() >= self._occurrence
