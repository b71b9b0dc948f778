"""End the processes that the environment of a worker has started, after the worker has ended.

A watchdog does it (see `watchdog`) before it reaps its worker: until then no other process group can have the worker's
process id for a number.

On Linux a watchdog adopts all that its worker has started as soon as the processes in between are gone, so that
whatever is left is a descendant of it, in the worker's group or not. Elsewhere only the group can be found.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from streamsampler.engines.launch.child import END_SECONDS

__all__ = ["TERM_SECONDS", "Stat", "can_find_descendants", "end_descendants", "end_group", "stat_of"]

TERM_SECONDS = 1.0
"""How long what a worker leaves may take to end after SIGTERM, before it is killed."""

_PHASES = ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, END_SECONDS))
_LOOKS = 3  # without finding anything, where it is not known whether there are children
_LOOK_SECONDS = 0.02  # from one look to the next, where the end of a group is not reported

Wait = Callable[[float], None]
"""Sleeps until a child of this process ends, for so many seconds at most."""


def can_find_descendants() -> bool:
    """Whether /proc is there, and that of this process's own namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def end_descendants(worker: int, wait: Wait) -> None:
    """End all descendants of this process but a worker that has ended and was not reaped: SIGTERM, later SIGKILL.

    Args:
        worker: The worker, a child of this process. Its group is signalled too.
        wait: Sleeps until a child of this process ends.
    """
    for number, seconds in _PHASES:
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        found_none = 0
        while _has_other_children(worker) and found_none < _LOOKS:
            rest = _descendants(worker)
            if not rest:  # its parent has just ended, and the next look finds it; or it was dead
                found_none += 1
                continue
            if not signalled:
                _signal_group(worker, number)
            for pid, (_, group) in rest.items():
                if pid not in signalled and (signalled or group != worker):
                    _signal(pid, number, rest)
            signalled |= rest.keys()
            left = deadline - time.monotonic()
            if left <= 0:
                break
            wait(left)
        else:
            return


def end_group(worker: int) -> None:
    """End a group of processes by its number alone: SIGTERM, later SIGKILL.

    Args:
        worker: The worker that led it, reaped just now. As long as there is a process in the group, its number is not
            given to another one.
    """
    for number, seconds in _PHASES:
        if not _signal_group(worker, number) or _group_ends(worker, seconds):
            return


def _group_ends(leader: int, seconds: float) -> bool:
    """Wait for the end of all processes of a group; return whether it came in time."""
    deadline = time.monotonic() + seconds
    while _signal_group(leader, 0):
        members = _members(leader)
        left = deadline - time.monotonic()
        if left <= 0 or members == []:
            return members == []
        with contextlib.ExitStack() as opened:
            poller, pidfds = select.poll(), 0
            for pid in members or ():
                with contextlib.suppress(AttributeError, OSError):  # there are none, or the process is gone
                    fd = os.pidfd_open(pid)
                    opened.callback(os.close, fd)
                    poller.register(fd, select.POLLIN)
                    pidfds += 1
            # Without pidfds, the ends of processes that are not children of this one are not reported.
            poller.poll(1000 * (left if pidfds else min(left, _LOOK_SECONDS)))
    return True


def _members(leader: int) -> list[int] | None:
    """Return the living processes of a group; None where there is no /proc."""
    if not can_find_descendants():
        return None
    stats = {int(name): stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return [pid for pid, stat in stats.items() if stat is not None and stat.group == leader and stat.state not in "ZX"]


def _signal_group(leader: int, number: int) -> bool:
    """Signal a process group; return whether there is one."""
    if leader <= 1 or leader == os.getpgrp():  # never all processes, nor this one's own group
        return False
    try:
        os.killpg(leader, number)
        if number == signal.SIGTERM:
            os.killpg(leader, signal.SIGCONT)  # a stopped process takes SIGTERM only when it goes on
    except OSError:  # none there; on macOS: none but zombies
        return False
    return True


def _signal(pid: int, number: int, known: dict[int, tuple[int, int]]) -> None:
    """Signal a process, unless another process has its number by now."""
    with contextlib.suppress(OSError):
        if known[pid][0] == os.getpid() or not hasattr(os, "pidfd_open"):
            os.kill(pid, number)  # a child of this process keeps its number until it is reaped
            if number == signal.SIGTERM:
                os.kill(pid, signal.SIGCONT)
            return
        fd = os.pidfd_open(pid)
        try:
            stat = stat_of(pid)
            if stat is not None and (stat.parent in known or stat.parent == os.getpid()):
                signal.pidfd_send_signal(fd, number)
                if number == signal.SIGTERM:
                    signal.pidfd_send_signal(fd, signal.SIGCONT)
        finally:
            os.close(fd)


def _has_other_children(worker: int) -> bool:
    """Whether this process has other children than the worker, or it is not known; reads one small file."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return file.read().split() not in ([], [b"%d" % worker])
    except OSError:
        return True


def _descendants(worker: int) -> dict[int, tuple[int, int]]:
    """Return the living descendants of this process but the worker, each with its parent and its group.

    Dead children of this process are reaped.
    """
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
    """What the kernel says of a process: a letter for what it is doing, its parent and its group."""

    state: str
    parent: int
    group: int


def stat_of(pid: int) -> Stat | None:
    """Return what the kernel says of a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Stat(fields[0].decode(), int(fields[1]), int(fields[2]))
    except (OSError, IndexError, ValueError):
        return None
