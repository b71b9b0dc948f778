"""Every way to end, with environments that start processes of their own and do not end them.

The processes are in the worker's group, in a session of their own, ignoring SIGTERM, stopped, daemons, and forked
without a program. For each end: environments are closed or not, as the README says, and two
seconds after the end nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from streamsampler.cli.streams import Interrupts
from tests.faults.child_processes import KINDS, Run, n_closed, notes, processes
from tests.faults.test_ends import gone_within

AT_ONCE = 3
WITHIN = 2.0  # seconds, from the end


def nothing(run: Run) -> None:
    """Let the program end by itself."""


def to_parent(number: signal.Signals) -> Callable[[Run], None]:
    """Return an end: a signal for the program alone, while its workers are at work."""

    def end(run: Run) -> None:
        run.await_events("made", 2)
        run.process.send_signal(number)

    return end


def ctrl_c(run: Run) -> None:
    """Do what the terminal does."""
    run.await_events("made", 2)
    os.killpg(run.process.pid, signal.SIGINT)


def ctrl_c_twice(run: Run) -> None:
    """Press it again while environments are being closed."""
    ctrl_c(run)
    run.await_events("closing", 2)
    # The time itself is the contract: the command takes what comes within a second for one. It must not end meanwhile.
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(1.1 * Interrupts.GRACE)
    os.killpg(run.process.pid, signal.SIGINT)


class End(NamedTuple):
    """A way to end.

    Attributes:
        program: What `child_processes.program` is told; "command" for the command line.
        act: Does it.
        closing: Seconds that `env.close` takes.
        code: The program's exit code.
        n_envs: How many environments there were.
        n_closed: How many of them were closed, to the end.
    """

    program: str
    act: Callable[[Run], None]
    closing: float
    code: int
    n_envs: int
    n_closed: int


# More than the second that a worker has which is stuck elsewhere, and less than the default `close_timeout`.
LONG, ENDLESS = 1.3, 1000.0
ENDS = {
    "return": End("return", nothing, LONG, 0, 2, 2),
    "exception": End("exception", nothing, LONG, 1, 2, 2),
    "Ctrl-C": End("interrupt", ctrl_c, LONG, -signal.SIGINT, 2, 2),
    "Ctrl-C twice": End("interrupt", ctrl_c_twice, ENDLESS, -signal.SIGINT, 2, 0),
    "Ctrl-C, and close does not end": End("interrupt", ctrl_c, ENDLESS, -signal.SIGINT, 2, 0),
    "SIGTERM": End("terminate", to_parent(signal.SIGTERM), LONG, -signal.SIGTERM, 2, 0),
    "SIGKILL of the parent": End("kill", to_parent(signal.SIGKILL), LONG, -signal.SIGKILL, 2, 0),
    "SIGKILL of a worker": End("worker", nothing, LONG, 0, 2, 1),
    "a hang": End("hang", nothing, LONG, 0, 2, 1),
    "Ctrl-C of the command": End("command", ctrl_c, LONG, 130, 2, 2),
    "Ctrl-C twice of the command": End("command", ctrl_c_twice, ENDLESS, 130, 2, 0),
    "SIGTERM of the command": End("command", to_parent(signal.SIGTERM), LONG, 143, 2, 2),
    "SIGKILL of the command": End("command", to_parent(signal.SIGKILL), LONG, -signal.SIGKILL, 2, 0),
}


def check(name: str) -> float:
    """Try one end; return how long the last process took to be gone after the program's end."""
    end = ENDS[name]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        if end.program == "command":
            run = Run.of_command(folder, end.closing)
        else:
            run = Run.of_library(folder, end.program, end.closing)
        with run:
            end.act(run)
            code = run.wait()
            ended = time.monotonic()
            all_of_it = [*processes(folder), *notes(folder)]
            assert code == end.code, f"{name}: exit code {code}, not {end.code}\n{run.process.stderr.read()}"
            assert gone_within(all_of_it, WITHIN), f"{name}: something is left after {WITHIN} s"
            seconds = time.monotonic() - ended
            assert len(all_of_it) == end.n_envs * (len(KINDS) + 1), f"{name}: {len(all_of_it)} processes"
            assert n_closed(folder) == end.n_closed, f"{name}: {n_closed(folder)} closed, not {end.n_closed}"
            said = run.process.stderr.read()
            assert "Exception ignored" not in said, f"{name}:\n{said}"
            assert end.program != "command" or "Traceback" not in said, f"{name}:\n{said}"
    return seconds


def prove(scale: str) -> None:
    """Try all ends: once, or ten times."""
    cases = [*ENDS] * (1 if scale == "short" else 10)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # side by side, because they mostly wait
        longest = max(pool.map(check, cases))
    n_processes = sum(ENDS[name].n_envs * len(KINDS) for name in cases)
    print(f"{len(cases)} ends, {n_processes} processes started by environments, all gone {longest:.2f} s after the end")
