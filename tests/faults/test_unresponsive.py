"""Processes that do not respond: a worker that no signal ends, a stopped server or watchdog."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines import linked
from streamsampler.engines.launch import descriptors, worker_child
from streamsampler.engines.launch import start as launch
from streamsampler.engines.processes import engine as processes
from streamsampler.engines.processes import links, worker_main
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from tests.faults.conftest import kill_only_hung
from tests.faults.test_ends import gone, gone_within
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.patience import PATIENCE


@pytest.fixture
def short_deadlines(monkeypatch):
    for module in (linked, processes):
        monkeypatch.setattr(module, "END_SECONDS", 0.5)


@pytest.fixture
def unkillable(monkeypatch):
    """No signal reaches a worker, as in a system call that does not return."""
    monkeypatch.setattr(worker_child.WorkerChild, "kill", lambda self, signal_number=signal.SIGKILL: None)


@pytest.mark.slow
@pytest.mark.usefixtures("short_deadlines", "unkillable")
def test_a_hung_worker_that_no_signal_ends_is_given_up(tmp_path):
    faults = Faults(tmp_path, Fault("hang_gil", trajectory=3), seed=SEED)
    envs = faults.env(ScriptedEnv)
    with MultiprocessingSampler(ScriptedAgent(), envs, n_workers=1, seed=SEED, step_timeout=0.4) as sampler:
        kill_only_hung(sampler, faults.pids)
        assert calls(sampler) == undisturbed()
        assert sampler.stats.hangs == sampler.stats.restarts == faults.fired() == 1
        assert faults.pids()[0] not in sampler.worker_pids()
    # Its pipe has ended, and the kernel kills it.
    assert gone(faults.pids())


@pytest.mark.slow
@pytest.mark.usefixtures("unkillable")
def test_workers_that_no_signal_ends_do_not_hold_up_the_end(tmp_path, monkeypatch):
    for module in (linked, processes):
        monkeypatch.setattr(module, "END_SECONDS", 4.0)
    faults = Faults(tmp_path, Fault("hang_gil", "close", times=None))
    with MultiprocessingSampler(
        ScriptedAgent(), faults.env(ScriptedEnv), n_workers=8, seed=SEED, close_timeout=1.0
    ) as sampler:
        assert calls(sampler) == undisturbed()
        pids = sampler.worker_pids()
        begin = time.monotonic()
    # One deadline for the kind part, and one for the rest: not one for each worker.
    assert time.monotonic() - begin < 5 * linked.END_SECONDS  # type: ignore[attr-defined]
    assert gone(pids)


@pytest.fixture
def give_up(monkeypatch):
    """A function that lets the fork server's next answer be taken for late; those of its successor are waited for."""
    real, left = worker_child.readable_within, []  # type: ignore[attr-defined]

    def readable_within(fd, timeout):
        return left.pop() if left and timeout == worker_child._ANSWER_SECONDS else real(fd, timeout)

    monkeypatch.setattr(worker_child, "readable_within", readable_within)
    return lambda: left.append(False)


@pytest.mark.usefixtures("short_deadlines")
@pytest.mark.slow
def test_a_stopped_fork_server_is_replaced(give_up):
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=SEED) as sampler:
        first = calls(sampler)
        server = launch._servers[1, worker_main.main]._process.pid
        os.kill(server, signal.SIGSTOP)
        for pid in sampler.worker_pids():
            os.kill(pid, signal.SIGKILL)
        give_up()
        assert [*first, sampler.obtain_trajectories(8, agent_update={"offset": 1})] == undisturbed(2)
        assert 1 <= sampler.stats.restarts <= 2  # as many as there was work for
        assert gone([server])
        assert launch._servers[1, worker_main.main]._process.pid != server


@pytest.mark.slow
def test_a_worker_that_the_fork_server_reports_too_late_is_not_used(give_up):
    """It must not read the messages of the worker that was started in its place."""
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1):
        server = launch._servers[1, worker_main.main]._process.pid
        give_up()
        with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=SEED) as sampler:
            assert launch._servers[1, worker_main.main]._process.pid != server
            assert calls(sampler, 3) == undisturbed(3)
    assert gone([server])


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGSTOP])
@pytest.mark.slow
def test_a_fork_server_that_is_lost_while_it_starts_workers_is_replaced_once(monkeypatch, give_up, number):
    """Its answers to the others are not waited for either."""
    MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1).close()
    server = launch._servers[1, worker_main.main]._process.pid
    servers = []

    def launch_and_lose(*how):
        child = launch.launch(*how)
        servers.append(launch._servers[1, worker_main.main]._process.pid)
        if len(servers) == 3:
            os.kill(server, number)
        return child

    os.kill(server, signal.SIGSTOP)
    if number == signal.SIGSTOP:
        give_up()
    monkeypatch.setattr(links, "launch", launch_and_lose)
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=3, seed=SEED) as sampler:
        assert servers == [server] * 3 + [servers[-1]] * 3
        assert servers[-1] != server
        assert gone([server])
        assert calls(sampler, 3) == undisturbed(3)


@pytest.mark.usefixtures("patient")
def test_a_fork_server_that_is_killed_takes_no_worker_with_it():
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=SEED) as sampler:
        first = calls(sampler)
        pids = sampler.worker_pids()
        os.kill(launch._servers[1, worker_main.main]._process.pid, signal.SIGKILL)
        assert gone([launch._servers[1, worker_main.main]._process.pid])
        assert [*first, sampler.obtain_trajectories(8, agent_update={"offset": 1})] == undisturbed(2)
        assert sampler.worker_pids() == pids
        assert sampler.stats.restarts == 0
    assert gone_within(pids, 0)


STOPS_ITS_FORK_SERVER = """
import os, signal
from streamsampler import MultiprocessingSampler
from streamsampler.engines.launch import start as launch
from streamsampler.engines.processes import worker_main
from streamsampler.testing import ScriptedAgent, ScriptedEnv

sampler = MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2)
sampler.obtain_trajectories(2)
print(launch._servers[1, worker_main.main]._process.pid, *sampler.worker_pids())
os.kill(launch._servers[1, worker_main.main]._process.pid, signal.SIGSTOP)
"""


@pytest.mark.slow
def test_a_stopped_fork_server_does_not_hold_up_the_end_of_the_program():
    done = subprocess.run([sys.executable, "-c", STOPS_ITS_FORK_SERVER], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert gone(list(map(int, done.stdout.split())))


def parent_of(pid):
    """A worker's watchdog."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_watchdog_that_is_stopped_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(worker_child, "_REPORT_SECONDS", 0.1)
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=SEED) as sampler:
        assert calls(sampler) == undisturbed()
        watchdogs = [parent_of(pid) for pid in sampler.worker_pids()]
        for pid in watchdogs:
            os.kill(pid, signal.SIGSTOP)
    for pid in watchdogs:
        os.kill(pid, signal.SIGCONT)
    assert gone(watchdogs)


def test_a_worker_whose_watchdog_is_killed_is_a_loss(caplog):
    """What its environment starts would not be ended with it."""
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, seed=SEED) as sampler:
        first = calls(sampler)
        worker = sampler.worker_pids()[0]
        os.kill(parent_of(worker), signal.SIGKILL)
        # Until it can be seen, which takes the server that reaps it: or the call might end before.
        assert descriptors.readable_within(sampler._session.engine._links[0].child._fd, PATIENCE)  # type: ignore[attr-defined]
        assert [*first, sampler.obtain_trajectories(8, agent_update={"offset": 1})] == undisturbed(2)
        assert gone([worker])
        # Another one takes its place when there is work for it: here, or in the next call.
        sampler.obtain_trajectories(8)
        assert sampler.worker_pids() != [worker]
        assert caplog.text.count("worker 0 lost its watchdog process, and was killed, while") == 1


@pytest.mark.slow
def test_ends_are_noticed_while_the_fork_server_is_stopped(monkeypatch):
    """The watchdogs report them."""
    monkeypatch.setattr(worker_child, "_REPORT_SECONDS", PATIENCE)
    monkeypatch.setattr(processes, "END_SECONDS", PATIENCE)
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, seed=SEED) as sampler:
        engine, server, causes = sampler._session.engine, launch._servers[1, worker_main.main]._process, []
        for stopped in (True, False, False):
            if stopped:
                server.send_signal(signal.SIGSTOP)
            engine.kill_worker(0)
            (died,) = engine.wait(None)
            causes.append(died.exitcode)
            server.send_signal(signal.SIGCONT)
            engine.restart(0)
    assert causes == [-signal.SIGKILL] * 3


FORKS_IN_ITS_LOOP = """
import os, sys
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

def main():
    for number, trajectory in enumerate(sampler.stream()):
        if number == 3:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            os.waitpid(child, 0)
        if number == 100:
            print("went on", sampler.stats.restarts)
            return

with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=1) as sampler:
    main()
"""


@pytest.mark.slow
def test_a_copy_of_the_process_that_leaves_the_loop_stops_no_worker():
    done = subprocess.run([sys.executable, "-c", FORKS_IN_ITS_LOOP], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on 0\n", "")
