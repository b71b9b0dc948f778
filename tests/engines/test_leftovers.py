"""A group of processes is ended by its number alone, and its end is waited for."""

import os
import select
import signal
import subprocess

import pytest

from streamsampler.engines.launch import watchdog

IGNORES_SIGTERM = 'trap "" TERM; echo ready; exec sleep 1000'


@pytest.fixture
def group():
    """The number of a group whose leader has ended, and pidfds of its two processes: one of them ignores SIGTERM."""
    script = f"sleep 1000 & echo $!; sh -c '{IGNORES_SIGTERM}' & echo $!; wait $(:)"
    leader = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, process_group=0)
    lines = [leader.stdout.readline().strip() for _ in range(3)]
    pidfds = [os.pidfd_open(int(line)) for line in lines if line != "ready"]
    leader.kill()
    leader.wait()
    leader.stdout.close()
    yield leader.pid, pidfds
    for fd in pidfds:
        if not ended(fd):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


def ended(pidfd):
    return bool(select.select([pidfd], [], [], 0)[0])


def test_what_ignores_sigterm_is_killed(group, monkeypatch):
    monkeypatch.setattr(watchdog, "_PHASES", ((signal.SIGTERM, 0.1), (signal.SIGKILL, 120.0)))
    leader, pidfds = group
    watchdog.end_group(leader)
    assert all(map(ended, pidfds))


def test_what_ends_at_sigterm_is_not_waited_for_any_longer(group, monkeypatch):
    monkeypatch.setattr(watchdog, "_PHASES", ((signal.SIGTERM, 10_000.0),))
    leader, pidfds = group
    signal.pidfd_send_signal(pidfds[1], signal.SIGKILL)
    watchdog.end_group(leader)
    assert all(map(ended, pidfds))
