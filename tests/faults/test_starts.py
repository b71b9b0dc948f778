"""What is lost while workers start counts as a loss of a worker, for samplers and for managers, on both engines."""

import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from streamsampler import EnvManager, Limits, MultiprocessingSampler
from streamsampler.core.settings import hash_seed
from streamsampler.engines.launch import start
from streamsampler.engines.processes import pool
from streamsampler.errors import WorkerDiedError
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from tests.faults.conftest import slow
from tests.faults.test_ends import gone
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.stepping.conftest import kill
from tests.stepping.environments import Counting

ONES = np.ones(4, np.int64)
NONE = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}


def make(n_workers=2, **options):
    return MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=n_workers, seed=SEED, **options)


def next_call(sampler):
    return sampler.obtain_trajectories(8, agent_update={"offset": 1})


class Servers:
    """Kills fork servers that have requests in their hands.

    Attributes:
        left: How many are still to be killed.
        requests: How many requests each of them has by then.
    """

    def __init__(self):
        self.left, self.requests = 0, 1
        self._launch, self._n = pool.launch, 0  # type: ignore[attr-defined]

    def launch(self, main, number, fds, threads):
        if self.left <= 0:
            return self._launch(main, number, fds, threads)
        key = threads, main, hash_seed()
        server = start._servers.get(key)
        if server is None or not server.alive():
            server = start._servers[key] = start._OwnServer(main, threads)
        server._process.send_signal(signal.SIGSTOP)
        child = self._launch(main, number, fds, threads)
        self._n += 1
        if self._n % self.requests == 0:
            self.left -= 1
            server._process.kill()
            server._process.wait()
        return child


@pytest.fixture
def servers(monkeypatch):
    servers = Servers()
    monkeypatch.setattr(pool, "launch", servers.launch)
    return servers


@pytest.mark.parametrize(("n_workers", "n_lost", "requests"), [(4, 1, 3), *map(slow, [1, 2, 12], [1, 3, 1], [1, 1, 8])])
def test_a_fork_server_that_is_lost_costs_one_worker(servers, n_workers, n_lost, requests):
    """However many workers it was to start."""
    servers.left, servers.requests = n_lost, requests
    with make(n_workers) as sampler:
        assert calls(sampler, 2) == undisturbed(2)
        assert servers.left == 0
        found = [str(it) for it in sampler._life.session.scheduler.losses[None].incidents]
        assert len(found) == n_lost
        assert all("was lost, because the fork server or its watchdog ended, while starting" in it for it in found)
        assert len(sampler.worker_pids()) >= n_workers - n_lost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quotas", "said"),
    [
        ({"max_restarts": 0}, "that is 1 loss within 60 s, and max_restarts is 0"),
        slow({"max_restarts": 3}, "that is 4 losses within 60 s, and max_restarts is 3"),
        slow(NONE, "that is 10 equal losses of worker 0 before it became ready, which max_restarts=None"),
    ],
)
def test_fork_servers_that_are_lost_follow_the_quotas(servers, quotas, said):
    servers.left = 1_000_000
    with make(1, **quotas) as sampler:
        with pytest.raises(WorkerDiedError, match="(?s)worker 0 was lost, because the fork server.*" + said):
            sampler.obtain_trajectories(8)
        servers.left = 0
        assert next_call(sampler) == undisturbed(2)[1], "it goes on"


@pytest.mark.slow
def test_fork_servers_that_are_lost_under_a_manager_follow_the_quotas(servers):
    with EnvManager(Counting, n_envs=4, n_workers=2, seed=0) as manager:
        servers.left = 1
        assert manager.reset().timesteps.tolist() == [0] * 4
        assert manager.step(ONES).timesteps.tolist() == [1] * 4
        servers.left = 1  # also later, when a worker is replaced
        kill(manager, 1)
        assert manager.step(ONES).timesteps.tolist() == [2] * 4
        assert servers.left == 0
    servers.left = 1_000_000
    match = "(?s)the fork server or its watchdog ended.*that is 1 loss within 60 s, and max_restarts is 0"
    manager = EnvManager(Counting, n_envs=2, n_workers=2, max_restarts=0)
    with pytest.raises(WorkerDiedError, match=match):
        manager.launch()


@pytest.mark.slow
def test_a_managers_worker_that_dies_while_it_starts_is_started_again(tmp_path):
    cases: list[tuple[int, dict[str, Any]]] = [(2, {}), (1, {"max_restarts": 0})]
    for number, (times, quotas) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        env = Faults(folder, Fault("kill", "construct", times=times)).env(Counting)
        with EnvManager(env, n_envs=2, n_workers=2, seed=0, **quotas) as manager:
            if not quotas:
                assert manager.reset().timesteps.tolist() == [0, 0]
                continue
            with pytest.raises(WorkerDiedError, match=r"(?s)SIGKILL.*making the environment.*max_restarts is 0"):
                manager.launch()


@pytest.fixture
def servers_of_queues(monkeypatch):
    """Kills the fork server of `multiprocessing` with the next requests in its hands: a list with how many."""
    left, connect = [0], multiprocessing.forkserver.connect_to_new_process

    def losing(fds):
        if left[0] <= 0:
            return connect(fds)
        left[0] -= 1
        multiprocessing.forkserver.ensure_running()
        server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        os.kill(server, signal.SIGSTOP)
        connected = connect(fds)
        os.kill(server, signal.SIGKILL)
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
        return connected

    monkeypatch.setattr(multiprocessing.forkserver, "connect_to_new_process", losing)
    return left


@pytest.mark.slow
def test_a_fork_server_of_multiprocessing_that_is_lost_costs_its_workers_and_raises_no_eof_error(servers_of_queues):
    servers_of_queues[0] = 1
    with make(1, engine="queues", start_method="forkserver") as sampler:
        servers_of_queues[0] = 2
        assert calls(sampler, 2) == undisturbed(2)
        assert sampler.stats.restarts == 3
    servers_of_queues[0] = 1_000_000
    with make(2, engine="queues", start_method="forkserver", max_restarts=3) as sampler:
        match = "(?s)the fork server of multiprocessing, ended, while starting.*that is 4 losses"
        with pytest.raises(WorkerDiedError, match=match):
            sampler.obtain_trajectories(8)
        servers_of_queues[0] = 0
        assert next_call(sampler) == undisturbed(2)[1]


BLOCKS = """
import multiprocessing, os, sys

class Blocks:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy" and getattr(multiprocessing.current_process(), "_inheriting", False):
            os.write(1, f"{os.getpid()}\\n".encode())
            open(os.environ["NEVER"]).read()

sys.meta_path.insert(0, Blocks())
"""

PARENT = """
import sys
from streamsampler import MultiprocessingSampler
sampler = MultiprocessingSampler("random", "CartPole-v1", n_workers=1, engine="queues", start_method=sys.argv[1])
sampler.obtain_trajectories(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_worker_of_queues_whose_parent_is_killed_while_it_imports_ends_at_once(tmp_path, method):
    """In this one the import would never end."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKS)
    os.mkfifo(tmp_path / "never")
    path = os.pathsep.join((str(tmp_path), os.getcwd()))
    environ = {**os.environ, "PYTHONPATH": path, "NEVER": str(tmp_path / "never")}
    command = [sys.executable, "-c", PARENT, method]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
        importing = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert gone([importing])
