"""Workers are killed over and over, at any instant: every batch is right, nothing stalls, nothing grows."""

import contextlib
import functools
import gc
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.engines.launch import start as launch
from streamsampler.engines.processes import worker_main
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.faults.conftest import state_of

N_WORKERS, N_TRAJECTORIES, SEED = 4, 40, 5
SHAPES = [(2,), (2,), (1_100,)]


def footprint():
    """Return what this process and its fork server hold; memory, which has its ups and downs, in steps of 10 MB."""
    gc.collect()
    server = launch._servers[1, worker_main.main]._process.pid
    maps = Path("/proc/self/maps").read_text()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    listed = [len(os.listdir(f"/proc/{folder}")) for folder in ("self/fd", "self/task", f"{server}/fd")]
    return [*listed, maps.count("memfd:"), maps.count("/dev/shm"), resident // 10_000_000]


class Soak:
    """A sampler and its undisturbed twin, which make the same calls; as progress, it kills a random worker."""

    interval = 0.0

    def __init__(self, sampler, twin):
        self.sampler, self.twin, self.n_calls, self.n_kills, self.is_held = sampler, twin, 0, 0, False
        self.dice = random.Random(SEED)

    def __call__(self, snapshot):
        if not self.is_held and self.dice.random() < 0.3:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.dice.choice(self.sampler.worker_pids()), signal.SIGKILL)
                self.n_kills += 1

    def call(self):
        env = functools.partial(ScriptedEnv, (2, 20), SHAPES[self.n_calls % 3])
        updates = {"agent_update": {"offset": self.n_calls % 4}, "env_update": env}
        self.n_calls += 1
        batch = self.sampler.obtain_trajectories(N_TRAJECTORIES, progress=self, **updates)
        assert batch == self.twin.obtain_trajectories(N_TRAJECTORIES, **updates)

    def until(self, n_kills):
        self.is_held = False
        while self.n_kills < n_kills:
            self.call()

    def settled(self, at_most=None):
        """Return the footprint once killed workers are replaced, and have sent something through shared memory.

        That takes a number of calls: while a new process starts, the others are done with some of them. And the server
        closes what it had of a worker a little after the worker's end.
        """
        self.is_held = True
        for _ in range(200):
            for _ in range(3):
                self.call()
            maps, found = Path("/proc/self/maps").read_text(), footprint()
            mapped = [f"memfd:streamsampler-worker-{number} " in maps for number in range(N_WORKERS)]
            alive = [state_of(pid) not in ("", "Z") for pid in self.sampler.worker_pids()]
            if all(mapped + alive) and (not at_most or all(map(int.__le__, found, at_most))):
                return found
        pytest.fail(f"a worker is left out for good, or it grows: {at_most}, {found}")


@pytest.mark.slow
@pytest.mark.parametrize("n_kills", [40, 400])
def test_many_kills(n_kills):
    unlimited: dict[str, Any] = {"max_restarts": None, "max_lifetime_restarts": None}
    with (
        MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=N_WORKERS, seed=SEED, **unlimited) as sampler,
        LocalSampler(ScriptedAgent(), ScriptedEnv, seed=SEED) as twin,
    ):
        run = Soak(sampler, twin)
        run.until(n_kills // 5)
        before = run.settled()
        run.until(n_kills)
        run.settled([*before[:-1], before[-1] + 2])
        assert sampler.stats.restarts > n_kills // 2
