"""Environments that start processes of their own, and programs with them that end in every way there is.

A module of its own, with next to no imports, because each new worker imports it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium

from streamsampler.testing import ScriptedEnv
from streamsampler.workers.fail_points import Records

_FOREVER = ("sleep", "1000")
_IGNORING_SIGTERM = ("sh", "-c", 'trap "" TERM; exec sleep 1000')
_DAEMON = ("sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 & echo $!")


def in_group() -> int:
    """Start a process in the worker's own group."""
    return subprocess.Popen(_FOREVER).pid


def in_session() -> int:
    """Start a process in a session of its own, as simulators and browsers are."""
    return subprocess.Popen(_FOREVER, start_new_session=True).pid


def ignoring_sigterm() -> int:
    """Start a process that ignores SIGTERM."""
    return subprocess.Popen(_IGNORING_SIGTERM, start_new_session=True).pid


def stopped() -> int:
    """Start a process and stop it."""
    pid = in_group()
    os.kill(pid, signal.SIGSTOP)
    return pid


def daemon() -> int:
    """Start a daemon: in a session of its own, and its parent is gone."""
    return int(subprocess.run(_DAEMON, capture_output=True, check=True).stdout)


def forked() -> int:
    """Fork a process, without running a program."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.pause()
        os._exit(0)
    return pid


KINDS: dict[str, Callable[[], int]] = {
    function.__name__: function for function in (in_group, in_session, ignoring_sigterm, stopped, daemon, forked)
}


class StartsProcesses(ScriptedEnv):
    """An environment that starts processes, and does not end them.

    Args:
        folder: Where each environment has a file, named by its process: the processes that it started, and its events
            ("made", "closing", "closed"), which it writes to the pipe `events`, too.
        kinds: Which kinds of processes.
        length: Timesteps of a trajectory.
        closing: Seconds that `close` takes.
        hangs: Whether the first environment of all hangs in its second timestep.
    """

    def __init__(
        self,
        folder: str,
        kinds: str = ",".join(KINDS),
        length: int = 5,
        closing: float = 0.0,
        hangs: bool = False,
        seconds: float = 0.0,
    ) -> None:
        super().__init__(length, seconds=seconds)
        self._file = Path(folder, str(os.getpid()))
        self._closing = closing
        self._hangs = hangs and Records(folder).record("hang", most=1) is not None
        self._steps = 0
        # The command makes one in its own process, to see its spaces.
        self._in_worker = signal.getsignal(signal.SIGTTOU) is signal.SIG_IGN
        if not self._in_worker:
            return
        self._write(*(KINDS[kind]() for kind in kinds.split(",") if kind))
        self._report("made")

    def _write(self, *words: object) -> None:
        with self._file.open("a") as file:
            file.write("".join(f"{word}\n" for word in words))

    def _report(self, event: str) -> None:
        self._write(event)
        with self._file.with_name("events").open("w") as events:
            events.write(f"{event}\n")

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._hangs and self._steps == 2:
            time.sleep(1000)
        return super().step(action)

    def close(self) -> None:
        if not self._in_worker:
            return
        self._report("closing")
        time.sleep(self._closing)
        self._report("closed")
        super().close()


gymnasium.register("StartsProcesses-v0", StartsProcesses)  # type: ignore[arg-type]


def notes(folder: Path) -> dict[int, list[str]]:
    """Return what the environments of each process wrote."""
    return {int(path.name): path.read_text().split() for path in folder.iterdir() if path.name.isdigit()}


def processes(folder: Path) -> list[int]:
    """Return the processes that environments started."""
    return [int(word) for words in notes(folder).values() for word in words if word.isdigit()]


def n_closed(folder: Path) -> int:
    """Return how many environments were closed, to the end."""
    return sum(words.count("closed") for words in notes(folder).values())


def program(folder: str, end: str, closing: float) -> None:
    """Sample, and end as `end` says; for ends from outside, sample until they come."""
    from functools import partial

    from streamsampler import MultiprocessingSampler
    from streamsampler.testing import ScriptedAgent

    outside = end not in ("return", "exception", "worker", "hang")
    length, seconds = (10**9, 0.001) if outside else (5, 0.0)
    envs = partial(StartsProcesses, folder, length=length, seconds=seconds, closing=closing, hangs=end == "hang")
    # One worker: of two, the other one might not wait for the one that is lost.
    n_workers, timeout = (1 if end in ("worker", "hang") else 2), (2.0 if end == "hang" else None)
    options: Any = {"n_workers": n_workers, "seed": 1, "step_timeout": timeout}
    with MultiprocessingSampler(ScriptedAgent(), envs, **options) as sampler:
        if end == "worker":
            sampler.obtain_trajectories(8)
            os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        sampler.obtain_trajectories(8)
        if end in ("worker", "hang"):
            assert sampler.stats.restarts == 1
        if end == "exception":
            raise ValueError("the user's own")


class Run:
    """A program with environments that start processes, in a process of its own.

    Args:
        folder: An empty folder.
        command: What runs, with `{folder}` in its place.
    """

    _STOPPED = "stopped\n"

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.folder = folder
        os.mkfifo(folder / "events")
        self._events = open(os.open(folder / "events", os.O_RDWR))  # noqa: SIM115 - read by lines, until `close`
        self.process = subprocess.Popen(
            [word.replace("{folder}", str(folder)) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((os.environ.get("PYTHONPATH", ""), os.getcwd()))},
        )

    @classmethod
    def of_library(cls, folder: Path, end: str, closing: float) -> Run:
        """Run `program`."""
        arguments = str(folder), end, closing
        code = f"from tests.faults.child_processes import program; program(*{arguments!r})"
        return cls(folder, [sys.executable, "-c", code])

    @classmethod
    def of_command(cls, folder: Path, closing: float) -> Run:
        """Run the command line, for ever."""
        options = ["--import", "tests.faults.child_processes", "--num-trajectories", "8", "--workers", "2", "--quiet"]
        kwargs = {"folder": "{folder}", "length": 10**9, "seconds": 0.001, "closing": closing}
        options += [word for key, value in kwargs.items() for word in ("--env-kwarg", f"{key}={value}")]
        start = [sys.executable, "-m", "streamsampler", "sample", "StartsProcesses-v0"]
        return cls(folder, [*start, *options])

    def await_events(self, event: str, times: int) -> None:
        """Wait until an event has happened in environments so many times."""
        while times:
            line = self._events.readline()
            assert line != self._STOPPED, "the program was stopped"
            times -= line == f"{event}\n"

    def wait(self) -> int:
        """Wait for the program's end; return its exit code."""
        return self.process.wait(120)

    def stop(self) -> None:
        """Kill the program, from any thread; who waits for its events gets an error."""
        self.process.kill()
        with suppress(ValueError):  # nobody waits any more, and it is closed
            os.write(self._events.fileno(), self._STOPPED.encode())

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self._events.close()
