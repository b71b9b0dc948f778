"""End the processes that an environment has started, after its worker has ended.

They are descendants of the worker's watchdog, which adopts processes that left the worker's group or became daemons.
Without /proc, only the group can be found; it is killed at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from streamsampler.engines.launch.child import END_SECONDS

TERM_SECONDS = 1.0
"""Seconds from SIGTERM to SIGKILL for the processes a worker leaves."""

_TERM = (signal.SIGTERM, signal.SIGCONT)  # a stopped process receives SIGTERM only after SIGCONT
KILL = (signal.SIGKILL,)
_PHASES: tuple[tuple[Sequence[int], float], ...] = ((_TERM, TERM_SECONDS), (KILL, END_SECONDS))
_LOOKS = 3  # searches without result, where it is unknown whether children are left

Wait = Callable[[float], None]
"""Sleeps until a child of this process ends, for at most so many seconds."""


def can_find_descendants() -> bool:
    """Whether /proc is there, and belongs to this process's namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def end_descendants(worker: int, wait: Wait) -> None:
    """End all descendants of this process, and the group of `worker`, which has ended but is not reaped."""
    for numbers, seconds in _PHASES:
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        found_none = 0
        while _has_other_children(worker) and found_none < _LOOKS:
            rest = _descendants(worker)
            if not rest:  # its parent has just ended, and the next search finds it; or it was dead
                found_none += 1
                continue
            if not signalled:
                signal_group(worker, numbers)
            for pid, (_, group) in rest.items():
                if pid not in signalled and (signalled or group != worker):
                    _signal(pid, numbers, rest)
            signalled |= rest.keys()
            left = deadline - time.monotonic()
            if left <= 0:
                break
            wait(left)
        else:
            return


def signal_group(leader: int, numbers: Sequence[int]) -> None:
    if leader > 1 and leader != os.getpgrp():  # never all processes, nor this process's own group
        with contextlib.suppress(OSError):
            for number in numbers:
                os.killpg(leader, number)


def _signal(pid: int, numbers: Sequence[int], known: dict[int, tuple[int, int]]) -> None:
    """Signal a process, unless its number belongs to another process by now."""
    with contextlib.suppress(OSError):
        if known[pid][0] == os.getpid():
            for number in numbers:
                os.kill(pid, number)  # a child of this process keeps its number until it is reaped
            return
        fd = os.pidfd_open(pid)
        try:
            stat = stat_of(pid)
            if stat is not None and (stat.parent in known or stat.parent == os.getpid()):
                for number in numbers:
                    signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def _has_other_children(worker: int) -> bool:
    """Whether this process has children besides the worker, or that is unknown; reads one small file."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return file.read().split() not in ([], [b"%d" % worker])
    except OSError:
        return True


def _descendants(worker: int) -> dict[int, tuple[int, int]]:
    """Return parent and group of each living descendant but the worker; reap dead children."""
    me = os.getpid()
    children: dict[int, list[tuple[int, str, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := stat_of(int(name))) is not None:
            state, parent, group = stat
            children.setdefault(parent, []).append((int(name), state, group))
    found: dict[int, tuple[int, int]] = {}
    parents = [me]
    while parents:
        parent = parents.pop()
        for pid, state, group in children.get(parent, ()):
            if pid == worker:
                continue
            if state not in ("Z", "X"):
                found[pid] = parent, group
                parents.append(pid)
            elif parent == me:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
    return found


class Stat(NamedTuple):
    """The kernel's entry for a process: a letter for its state, its parent and its group."""

    state: str
    parent: int
    group: int


def stat_of(pid: int) -> Stat | None:
    """Return the kernel's entry for a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Stat(fields[0].decode(), int(fields[1]), int(fields[2]))
    except (OSError, IndexError, ValueError):
        return None
