"""What environments start ends with their worker, and what they hold is closed, whatever ends the worker."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.faults.child_processes import KINDS, Run, StartsProcesses, n_closed, notes, processes
from tests.faults.test_ends import gone_within
from tests.patience import PATIENCE


def check_nothing_left(run, n_envs, seconds=2.0):
    """C6: two seconds after the end."""
    left = processes(run.folder)
    assert len(left) == n_envs * len(KINDS)
    assert gone_within([*left, *notes(run.folder)], seconds)


@pytest.mark.slow
def test_the_parent_is_killed(tmp_path):
    with Run.of_library(tmp_path, "kill", 0.0) as run:
        run.await_events("made", 2)
        run.process.kill()
        run.wait()
        check_nothing_left(run, 2)
        assert n_closed(tmp_path) == 0


@pytest.mark.slow
def test_ctrl_c_closes_environments(tmp_path):
    """They have more than the second that a worker has which is stuck elsewhere."""
    with Run.of_library(tmp_path, "interrupt", 1.2) as run:
        run.await_events("made", 2)
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait() == -signal.SIGINT
        check_nothing_left(run, 2)
        assert n_closed(tmp_path) == 2
        assert run.process.stderr.read().count("Traceback") == 1


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_environments(tmp_path):
    with Run.of_library(tmp_path, "interrupt", 1000.0) as run:
        run.await_events("made", 2)
        os.killpg(run.process.pid, signal.SIGINT)
        run.await_events("closing", 2)
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait() == -signal.SIGINT
        check_nothing_left(run, 2)
        assert n_closed(tmp_path) == 0
        assert "Exception ignored" not in run.process.stderr.read()


NOT_CLOSED = """
from functools import partial
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent
from tests.faults.child_processes import StartsProcesses

envs = partial(StartsProcesses, {folder!r}, "in_session", length=10**9, seconds=0.001, closing=1000.0)
sampler = MultiprocessingSampler(ScriptedAgent(), envs, n_workers=2)
sampler.obtain_trajectories(8)
"""


@pytest.mark.slow
def test_a_second_ctrl_c_at_the_end_of_a_program_prints_nothing_more(tmp_path):
    """Neither from the end of the sampler, which the program has not closed, nor from that of the fork server."""
    with Run(tmp_path, [sys.executable, "-c", NOT_CLOSED.format(folder=str(tmp_path))]) as run:
        run.await_events("made", 2)
        os.killpg(run.process.pid, signal.SIGINT)
        run.await_events("closing", 2)
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait() == -signal.SIGINT
        said = run.process.stderr.read()
        assert said.count("Traceback") == 1
        assert "Exception ignored" not in said
        assert n_closed(tmp_path) == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.slow
def test_a_killed_worker(tmp_path):
    """What it leaves has ended before another worker takes its place: that one may need the same port."""
    os.mkfifo(tmp_path / "events")
    events = os.open(tmp_path / "events", os.O_RDWR)
    envs = [partial(StartsProcesses, str(tmp_path))] * 2
    with MultiprocessingSampler(ScriptedAgent(), envs, n_workers=2, seed=1) as sampler:
        sampler.obtain_exact_trajectories(2)
        os.read(events, 1000)
        killed, other = sampler.worker_pids()
        os.kill(killed, signal.SIGKILL)
        (died,) = sampler._session.engine.wait(PATIENCE)
        assert died.worker == 0
        left, others = (list(map(int, filter(str.isdigit, notes(tmp_path)[pid]))) for pid in (killed, other))
        assert gone_within(left, 0)
        # Daemons of a worker that lives go on: which worker's they are is known.
        assert len(others) == len(KINDS)
        assert not any(gone_within([pid], 0) for pid in others)
        assert sampler._session.engine.progress(1)
    assert gone_within(others, 0)
    os.close(events)


def test_what_ends_while_its_worker_lives_leaves_no_zombie():
    """A watchdog reaps the daemons that it has adopted."""
    with MultiprocessingSampler(ScriptedAgent(), Daemonic, n_workers=1) as sampler:
        for _ in range(3):
            sampler.obtain_trajectories(1)
        watchdog = parent_of(sampler.worker_pids()[0])
        while len(children_of(watchdog)) > 1:  # for ever, if they are not reaped: the test's own limit ends it
            os.sched_yield()


class Daemonic(ScriptedEnv):
    """Each reset leaves a daemon behind that ends at once."""

    def reset(self, *, seed=None, options=None):
        subprocess.run(["sh", "-c", "setsid true &"], check=True)
        return super().reset(seed=seed, options=options)


def parent_of(pid):
    """A worker's watchdog."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid):
    """The process ids of a process's children, dead ones included."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
