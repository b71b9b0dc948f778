"""Find a contender's processes in /proc, measure their CPU time, freeze and end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

__all__ = ["MARK", "cpu_seconds", "end", "freeze", "processes_of", "thaw"]

MARK = "BENCH_CONTENDER"
"""An environment variable that all processes of a contender inherit, also those that lose their parent."""

_TICK = os.sysconf("SC_CLK_TCK")
_CPU_CLOCK = 2
"""In the id of a process's clock, as `clock_getcpuclockid` makes it on Linux: the clock that the scheduler keeps."""


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat from the third on: state, parent, group, session and so on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _has_mark(pid: int, value: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={value}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _living() -> dict[int, list[bytes]]:
    stats = {}
    for name in os.listdir("/proc"):
        fields = _stat(int(name)) if name.isdigit() else None
        if fields is not None and fields[0] not in (b"Z", b"X"):
            stats[int(name)] = fields
    return stats


def processes_of(root: int, mark: str | None = None) -> list[int]:
    """Return all living processes of a contender.

    Args:
        root: The contender's first process, the leader of its session.
        mark: The value of the environment variable `MARK` that its processes inherit.

    Returns:
        Process ids: root, its descendants, the processes of its session, and those with the mark. The last two find
        processes whose parents have ended. Zombies are left out.
    """
    stats = _living()
    found = {pid for pid, fields in stats.items() if pid == root or int(fields[3]) == root}
    if mark is not None:
        found.update(pid for pid in stats if pid not in found and _has_mark(pid, mark))
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(pid)
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return sorted(found)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time, user and system, of these processes and of their reaped children, in seconds.

    A process's own is read from its clock, in nanoseconds. Of reaped children there are only ticks, of 10 ms.
    """
    total = 0.0
    for pid in pids:
        fields = _stat(pid)
        if fields is not None:
            total += _own_cpu_seconds(pid, fields) + sum(map(int, fields[13:15])) / _TICK
    return total


def _own_cpu_seconds(pid: int, fields: list[bytes]) -> float:
    try:
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    except OSError:  # it has ended
        return sum(map(int, fields[11:13])) / _TICK


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def freeze(root: int, mark: str | None = None, known: Sequence[int] = ()) -> list[int]:
    """Stop all processes of a contender, also those that it starts meanwhile.

    Args:
        root: See `processes_of`.
        mark: See there.
        known: Some of its processes, to be stopped at once. Looking for processes takes milliseconds, in which some
            contenders would collect data for the next measurement.

    Returns:
        Process ids, all stopped or being stopped.
    """
    _signal_all(known, signal.SIGSTOP)
    stopped = set(known)
    while True:
        found = processes_of(root, mark)
        running = [pid for pid in found if pid not in stopped]
        if not running:
            # Those that ended, and whose numbers may be other processes' by now.
            _signal_all([pid for pid in known if pid not in found], signal.SIGCONT)
            return found
        _signal_all(running, signal.SIGSTOP)
        stopped.update(running)


def thaw(root: int, pids: Sequence[int]) -> None:
    """Let these processes of a contender run, the first of them last."""
    _signal_all([pid for pid in pids if pid != root], signal.SIGCONT)
    _signal_all([root], signal.SIGCONT)


def end(root: int, mark: str | None = None) -> int:
    """Kill the remaining processes of a contender.

    Returns:
        How many processes there were.
    """
    pids = [pid for pid in processes_of(root, mark) if pid != os.getpid()]
    _signal_all(pids, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while set(processes_of(root, mark)) & set(pids) and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(root, os.WNOHANG)
        os.sched_yield()
    return len(pids)
