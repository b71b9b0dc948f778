"""Workers are killed over and over, at any instant: every batch is right, nothing stalls, nothing grows."""

import contextlib
import functools
import gc
import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamsampler import Limits, LocalSampler, MultiprocessingSampler
from streamsampler.core.settings import hash_seed
from streamsampler.engines.launch import start as launch
from streamsampler.engines.processes import worker_main
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.faults.kill_requests import LENGTHS, asking

N_WORKERS, N_TRAJECTORIES, SEED = 4, 40, 5
SMALL, LARGE = (2,), (1_100,)
LONGEST_STALL = 60.0
STOP = b"stop"


class Killer:
    """A thread that kills a random worker at each request from a pipe, but not while `held`."""

    def __init__(self, sampler, path):
        self.sampler = sampler
        self.held = threading.Lock()
        self.kills = 0
        self._requests = os.open(path, os.O_RDWR)
        self._dice = random.Random(SEED)
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not os.read(self._requests, 1 << 16).endswith(STOP):
            with self.held, contextlib.suppress(ProcessLookupError):
                os.kill(self._dice.choice(self.sampler.worker_pids()), signal.SIGKILL)
                self.kills += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        os.write(self._requests, STOP)
        self._thread.join()
        os.close(self._requests)


def is_alive(pid):
    """Whether there is such a process that has not ended yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(frozen=True)
class Footprint:
    """What this process and its fork server hold."""

    descriptors: int
    threads: int
    server_descriptors: int
    mapped_arenas: int
    mapped_named: int
    resident: int

    @classmethod
    def now(cls):
        gc.collect()
        server = launch._servers[1, worker_main.main, hash_seed()]._process.pid
        maps = Path("/proc/self/maps").read_text()
        return cls(
            len(os.listdir("/proc/self/fd")),
            len(os.listdir("/proc/self/task")),
            len(os.listdir(f"/proc/{server}/fd")),
            maps.count("memfd:"),
            maps.count("/dev/shm"),
            int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        )

    def grown_to(self, later):
        """Memory has its ups and downs; the server closes what it had of a worker a little after the worker's end."""
        counts = [name for name in vars(self) if name != "resident" and getattr(self, name) < getattr(later, name)]
        return {name: (getattr(self, name), getattr(later, name)) for name in counts} or later.resident - self.resident


class Soak:
    """A sampler and its undisturbed twin, which make the same calls."""

    def __init__(self, sampler, twin, path):
        self.sampler, self.twin, self.path = sampler, twin, path
        self.n_calls = 0
        self.longest = 0.0

    def call(self):
        shape = LARGE if self.n_calls % 3 == 2 else SMALL
        update = {"offset": self.n_calls % 4}
        begin = time.perf_counter()
        batch = self.sampler.obtain_trajectories(
            N_TRAJECTORIES, agent_update=update, env_update=functools.partial(asking, self.path, shape)
        )
        self.longest = max(self.longest, time.perf_counter() - begin)
        expected = self.twin.obtain_trajectories(
            N_TRAJECTORIES, agent_update=update, env_update=functools.partial(ScriptedEnv, LENGTHS, shape)
        )
        assert batch == expected
        self.n_calls += 1

    def until(self, n_restarts):
        while self.sampler.stats.restarts < n_restarts:
            self.call()

    def all_in_use(self):
        """Whether every worker lives, and has sent something through shared memory, which is mapped only then."""
        maps = Path("/proc/self/maps").read_text()
        return all(map(is_alive, self.sampler.worker_pids())) and all(
            f"memfd:streamsampler-worker-{number} " in maps for number in range(N_WORKERS)
        )

    def footprint(self, killer):
        """Return the footprint once killed workers are replaced, and have taken part in calls of every shape.

        That takes a number of calls: while a new process starts, the others are done with some of them.
        """
        with killer.held:
            for _ in range(100):
                for _ in range(3):
                    self.call()
                if self.all_in_use():
                    return Footprint.now()
        raise AssertionError("a worker is left out for good")


def soak(tmp_path, n_kills):
    path = tmp_path / "requests"
    os.mkfifo(path)
    keep = os.open(path, os.O_RDWR)  # the pipe has a reader as long as there are environments
    unlimited: dict[str, Any] = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
    envs = functools.partial(asking, path, SMALL)
    with (
        MultiprocessingSampler(ScriptedAgent(), envs, n_workers=N_WORKERS, seed=SEED, **unlimited) as sampler,
        LocalSampler(ScriptedAgent(), ScriptedEnv, seed=SEED) as twin,
        Killer(sampler, path) as killer,
    ):
        run = Soak(sampler, twin, path)
        run.until(n_kills // 5)
        before = run.footprint(killer)
        run.until(n_kills)
        after = run.footprint(killer)
        for _ in range(20):
            if isinstance(before.grown_to(after), int):
                break
            after = run.footprint(killer)
        assert killer.kills >= n_kills
    os.close(keep)
    print(f"{killer.kills} kills, {run.n_calls} calls, the longest {run.longest:.2f} s, {before} then {after}")
    assert run.longest < LONGEST_STALL
    grown = before.grown_to(after)
    assert isinstance(grown, int), grown
    return grown


@pytest.mark.slow
def test_forty_kills(tmp_path):
    soak(tmp_path, 40)


@pytest.mark.slow
def test_a_thousand_kills(tmp_path):
    assert soak(tmp_path, 1_000) < 10_000_000
