"""Where a sampler is made, and what goes on around it: threads, daemons, forks, clocks."""

import multiprocessing
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import streamsampler
from streamsampler import MultiprocessingSampler
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from tests.faults.test_ends import gone, gone_within
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.patience import PATIENCE


def is_right(folder, **options):
    """Whether a sampler here gives the right batches, with a worker killed in between."""
    faults = Faults(folder, Fault("kill", trajectory=2, step=3, version=2), seed=SEED)
    options = {"n_workers": 2, "seed": SEED, **options}
    with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), **options) as sampler:
        return calls(sampler, 3) == undisturbed(3) and faults.fired() == 1


def exit_with_the_answer(folder):
    sys.exit(0 if is_right(folder) else 5)


def test_in_a_daemonic_process(tmp_path):
    """`multiprocessing` would not let it have children."""
    daemon = multiprocessing.get_context("fork").Process(target=exit_with_the_answer, args=(tmp_path,), daemon=True)
    daemon.start()
    daemon.join(PATIENCE)
    assert daemon.exitcode == 0


def test_in_a_thread_that_ends_before_the_sampler(tmp_path):
    """The kernel's own signal for a parent's death would come when the thread ends."""
    faults = Faults(tmp_path, Fault("kill", trajectory=2, version=2), seed=SEED)
    made = []

    def make():
        made.append(MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), n_workers=2, seed=SEED))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    with made[0] as sampler:
        pids = sampler.worker_pids()
        assert calls(sampler, 1) == undisturbed(1)
        assert sampler.worker_pids() == pids
        assert sampler.obtain_trajectories(8, agent_update={"offset": 1}) == undisturbed(2)[1]
    assert faults.fired() == 1


@pytest.mark.extras
def test_in_a_process_with_threads_of_torch(tmp_path):
    import torch

    torch.set_num_threads(2)
    matrix = torch.rand(1000, 1000)
    before = len(os.listdir("/proc/self/task"))
    (matrix @ matrix).sum()
    assert len(os.listdir("/proc/self/task")) >= before
    assert is_right(tmp_path)
    (matrix @ matrix).sum()


FORKING_PARENT = """
import os, signal
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

sampler = MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=1)
sampler.obtain_trajectories(2)
child = os.fork()
if child == 0:
    signal.pause()
print(child, *sampler.worker_pids(), flush=True)
signal.pause()
"""


def test_a_parent_that_forked_is_killed(tmp_path):
    """Its child, which lives on, has copies of all descriptors: they must not keep the workers alive."""
    command = [sys.executable, "-c", FORKING_PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=os.getcwd()) as parent:
        child, *workers = map(int, parent.stdout.readline().split())
        try:
            parent.kill()
            assert len(workers) == 2
            assert gone(workers)
            assert not gone_within([child], 0)
        finally:
            os.kill(child, signal.SIGKILL)


class Jumping:
    """A wall clock that is set back and forth, by hours, at each look."""

    def __init__(self):
        self.dice = random.Random(SEED)

    def __call__(self):
        return 1.7e9 + self.dice.uniform(-10_000, 10_000)


def test_a_wall_clock_that_is_set_back_and_forth(tmp_path, monkeypatch):
    """With all limits on: none of them is taken from it."""
    monkeypatch.setattr(time, "time", Jumping())
    limits = {"step_timeout": 60.0, "construction_timeout": 60.0, "max_worker_memory": 1 << 40, "restart_window": 60.0}
    assert is_right(tmp_path, **limits)


def test_no_module_looks_at_the_wall_clock_to_decide():
    wall_clock = re.compile(r"\btime\.time\b|from time import (.*, )?time\b")
    package = pathlib.Path(streamsampler.__file__).parent
    assert [path for path in package.rglob("*.py") if wall_clock.search(path.read_text())] == []
