"""Workers are killed over and over, at any instant: every batch is right, nothing stalls, nothing grows."""

import contextlib
import functools
import gc
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.engines.launch import start as launch
from streamsampler.engines.processes import worker_main
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.faults.conftest import state_of
from tests.faults.kill_requests import LENGTHS, asking

N_WORKERS, N_TRAJECTORIES, SEED = 4, 40, 5
SHAPES = [(2,), (2,), (1_100,)]
STOP = b"stop"


class Killer:
    """A thread that kills a random worker at each request from a pipe, but not while `held`."""

    def __init__(self, sampler, path):
        self.sampler, self.held, self.kills = sampler, threading.Lock(), 0
        self._requests = os.open(path, os.O_RDWR)
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        dice = random.Random(SEED)
        while not os.read(self._requests, 1 << 16).endswith(STOP):
            with self.held, contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(self.sampler.worker_pids()), signal.SIGKILL)
                self.kills += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        os.write(self._requests, STOP)
        self._thread.join()
        os.close(self._requests)


def footprint():
    """Return what this process and its fork server hold; memory, which has its ups and downs, in steps of 10 MB."""
    gc.collect()
    server = launch._servers[1, worker_main.main]._process.pid
    maps = Path("/proc/self/maps").read_text()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    listed = [len(os.listdir(f"/proc/{folder}")) for folder in ("self/fd", "self/task", f"{server}/fd")]
    return [*listed, maps.count("memfd:"), maps.count("/dev/shm"), resident // 10_000_000]


class Soak:
    """A sampler and its undisturbed twin, which make the same calls."""

    def __init__(self, sampler, twin, path):
        self.sampler, self.twin, self.path, self.n_calls = sampler, twin, path, 0

    def call(self):
        shape, options = SHAPES[self.n_calls % 3], {"agent_update": {"offset": self.n_calls % 4}}
        self.n_calls += 1
        envs = functools.partial(asking, self.path, shape), functools.partial(ScriptedEnv, LENGTHS, shape)
        found, expected = (
            sampler.obtain_trajectories(N_TRAJECTORIES, env_update=env, **options)
            for sampler, env in zip((self.sampler, self.twin), envs, strict=True)
        )
        assert found == expected

    def until(self, n_restarts):
        while self.sampler.stats.restarts < n_restarts:
            self.call()

    def settled(self, killer, at_most=None):
        """Return the footprint once killed workers are replaced, and have sent something through shared memory.

        That takes a number of calls: while a new process starts, the others are done with some of them. And the server
        closes what it had of a worker a little after the worker's end.
        """
        with killer.held:
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
@pytest.mark.parametrize("n_kills", [40, 1_000])
def test_many_kills(tmp_path, n_kills):
    path = tmp_path / "requests"
    os.mkfifo(path)
    keep = os.open(path, os.O_RDWR)  # the pipe has a reader as long as there are environments
    unlimited: dict[str, Any] = {"max_restarts": None, "max_lifetime_restarts": None}
    envs = functools.partial(asking, path, SHAPES[0])
    with (
        MultiprocessingSampler(ScriptedAgent(), envs, n_workers=N_WORKERS, seed=SEED, **unlimited) as sampler,
        LocalSampler(ScriptedAgent(), ScriptedEnv, seed=SEED) as twin,
        Killer(sampler, path) as killer,
    ):
        run = Soak(sampler, twin, path)
        run.until(n_kills // 5)
        before = run.settled(killer)
        run.until(n_kills)
        run.settled(killer, [*before[:-1], before[-1] + 2])
        assert killer.kills >= n_kills
    os.close(keep)
