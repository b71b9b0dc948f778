"""Runs the command as a user does: in a process of its own, in a directory with modules of the user's."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from click.testing import CliRunner, Result

import streamsampler
from streamsampler.cli.app import cli
from tests.patience import PATIENCE

PACKAGE = Path(streamsampler.__file__).parent

# A user's module: an environment, which it registers, and agents.
SCRIPTED = '''
import signal

import gymnasium as gym
import numpy as np

from streamsampler.workers.purity import is_checking


class Scripted(gym.Env):
    """Trajectories of 2 to 8 timesteps; from reset number `endless_from` on, without end.

    Resets in checks do not count.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)
    task = None

    def __init__(self, endless_from=None, announce=None, fail_at=None, fail_in_close=False, chatty=False, fail_share=0):
        self.endless_from, self.announce, self.fail_at = endless_from, announce, fail_at
        self.fail_in_close, self.chatty, self.fail_share = fail_in_close, chatty, fail_share
        self.resets = 0

    def set_task(self, task):
        self.task = task

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += not is_checking()
        self.timestep = 0
        self.length = int(self.np_random.integers(2, 9))
        self.stumbles = self.fail_share and self.np_random.random() < self.fail_share
        if self.chatty:
            print("chatty reset", flush=True)
        return self.observe(), {}

    def observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.timestep += 1
        if self.resets == self.fail_at or (self.stumbles and self.timestep == 2):
            self.stumble()
        if self.endless_from is not None and self.resets >= self.endless_from:
            if self.timestep == 1 and self.announce is not None:
                with open(self.announce, "w") as fifo:
                    fifo.write("endless\\n")
            return self.observe(), 1.0, False, False, {}
        reward = float(action if self.task is None else self.task)
        return self.observe(), reward, self.timestep >= self.length, False, {}

    def stumble(self):
        raise RuntimeError("the robot stumbled")

    def close(self):
        if self.fail_in_close and self.resets:
            raise RuntimeError("the door is stuck")


gym.register("Scripted-v0", Scripted)


def always_two(observation):
    return 2


class Stopping:
    """Sends SIGTERM to its process in one of its trajectories."""

    def __init__(self, n):
        self.left = n

    def reset(self, seed=None):
        self.left -= not is_checking()
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)

    def get_action(self, observation):
        return 1, {}


at_once, later = Stopping(1), Stopping(600)
'''


def invoke(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="streamsampler")


def told(result: Result) -> str:
    """Return what a command that failed says, in one line; it has printed no result, and no line of this package."""
    assert result.exit_code in (1, 2), result.output
    assert (result.stdout, f'File "{PACKAGE}' in result.stderr) == ("", False)
    return " ".join(result.stderr.split())


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "streamsampler", *map(str, arguments)]


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let a child have the default handling of Ctrl-C, which background jobs of a shell do not inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    with _interruptible():
        return subprocess.Popen(
            command(*arguments),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for the end of the command and of all its workers.

    Workers hold the same standard streams. These end only when the last process that holds them has ended.
    """
    stdout, stderr = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return finish(start(*arguments, cwd=cwd))


class Announcements:
    """A named pipe through which an environment tells what it does."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "announcements"
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR)  # for writing, too, so that it never ends

    def wait(self) -> None:
        if not select.select([self._fd], [], [], PATIENCE)[0]:
            raise TimeoutError("the environment announced nothing")
        os.read(self._fd, 4096)

    def close(self) -> None:
        os.close(self._fd)


class Terminal:
    """The command on a terminal of its own, in the foreground.

    Attributes:
        unfinished: The process ids of commands whose ends no test has waited for.
    """

    unfinished: ClassVar[set[int]] = set()

    def __init__(self, *arguments: object, cwd: Path, columns: int = 80) -> None:
        with _interruptible():
            self.pid, self._fd = pty.fork()
            if self.pid == 0:
                os.chdir(cwd)
                os.execv(sys.executable, command(*arguments))
        self.unfinished.add(self.pid)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.text = ""

    def read(self) -> bool:
        """Add what comes next to `text`; False at the end, when no process holds the terminal any more."""
        if not select.select([self._fd], [], [], PATIENCE)[0]:
            raise TimeoutError(f"nothing more came after {self.text!r}")
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # what Linux says at the end
            data = b""
        self.text += data.decode()
        return bool(data)

    def read_until(self, enough: object) -> None:
        deadline = time.monotonic() + PATIENCE
        while not enough(self.text):  # type: ignore[operator]
            assert self.read(), f"the command ended: {self.text!r}"
            assert time.monotonic() < deadline, f"it never came: {self.text[-500:]!r}"

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def finish(self) -> int:
        """Read to the end, and return the exit code."""
        while self.read():
            pass
        os.close(self._fd)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.unfinished.remove(self.pid)
        return code
