"""Processes that do not respond: a worker that no signal ends, a stopped server or watchdog, garbage in its pipes."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from streamsampler import Limits, MultiprocessingSampler
from streamsampler.core.settings import hash_seed
from streamsampler.engines import linked
from streamsampler.engines.launch import descriptors, worker_child
from streamsampler.engines.launch import start as launch
from streamsampler.engines.processes import pool, stacks, worker_main
from streamsampler.engines.processes.wire import GarbageError, MessageReader
from streamsampler.errors import WorkerDiedError
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from streamsampler.workers.fail_points import Records
from tests.faults.conftest import kill_only_hung, state_of
from tests.faults.test_ends import gone, gone_within, parent_of
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.patience import PATIENCE


def make(env: Any = ScriptedEnv, n_workers: int = 2, **options: Any) -> Any:
    return MultiprocessingSampler(ScriptedAgent(), env, n_workers=n_workers, seed=SEED, **options)


def fork_server() -> Any:
    return launch._servers[1, worker_main.main, hash_seed()]._process


def second_call(sampler: Any, **updates: Any) -> bool:
    return sampler.obtain_trajectories(8, agent_update={"offset": 1}, **updates) == undisturbed(2)[1]


@pytest.fixture
def unkillable(monkeypatch):
    """No signal reaches a worker, as in a system call that does not return."""
    monkeypatch.setattr(worker_child.WorkerChild, "kill", lambda self, signal_number=signal.SIGKILL: None)


def limit_ends(monkeypatch, seconds):
    for module in (linked, pool):
        monkeypatch.setattr(module, "END_SECONDS", seconds)


@pytest.mark.slow
@pytest.mark.usefixtures("unkillable")
def test_a_hung_worker_that_no_signal_ends_is_given_up(tmp_path, monkeypatch):
    limit_ends(monkeypatch, 0.5)
    faults = Faults(tmp_path, Fault("hang_gil", trajectory=3), seed=SEED)
    with make(faults.env(ScriptedEnv), 1, step_timeout=0.4) as sampler:
        kill_only_hung(sampler, faults.pids)
        assert calls(sampler) == undisturbed()
        assert sampler.stats.hangs == sampler.stats.restarts == faults.fired() == 1
        assert faults.pids()[0] not in sampler.worker_pids()
    # Its pipe has ended, and the kernel kills it.
    assert gone(faults.pids())


@pytest.mark.slow
@pytest.mark.usefixtures("unkillable")
def test_workers_that_no_signal_ends_do_not_hold_up_the_end(tmp_path, monkeypatch):
    limit_ends(monkeypatch, 4.0)
    faults = Faults(tmp_path, Fault("hang_gil", "close", times=None))
    with make(faults.env(ScriptedEnv), 8, limits=Limits(close_timeout=1.0)) as sampler:
        assert calls(sampler) == undisturbed()
        pids = sampler.worker_pids()
        begin = time.monotonic()
    # One deadline for the kind part, and one for the rest: not one for each worker.
    assert time.monotonic() - begin < 5 * linked.END_SECONDS  # type: ignore[attr-defined]
    assert gone(pids)


@pytest.mark.slow
def test_stacks_are_asked_for_without_a_process_number(tmp_path, monkeypatch, caplog):
    """The number may be another process's by then; the kernel's descriptor of the worker may not."""
    faults = Faults(tmp_path, Fault("hang", trajectory=3), seed=SEED)
    with make(faults.env(ScriptedEnv), 1, step_timeout=0.4) as sampler:
        kill_only_hung(sampler, faults.pids)
        with monkeypatch.context() as patch:
            patch.delattr(os, "kill")
            patch.setattr(stacks, "_FIRST_SECONDS", PATIENCE)
            assert calls(sampler) == undisturbed()
    assert "most recent call first" in caplog.text


def test_a_worker_that_was_stopped_and_goes_on(tmp_path):
    """Without a time limit that is no loss."""
    faults = Faults(tmp_path, Fault("stop", trajectory=3), seed=SEED)

    def go_on():
        faults.wait(1, PATIENCE)
        (pid,) = faults.pids()
        while state_of(pid) != "T":  # only its parent is notified of the stop
            os.sched_yield()
        os.kill(pid, signal.SIGCONT)

    with make(faults.env(ScriptedEnv)) as sampler:
        helper = threading.Thread(target=go_on)
        helper.start()
        assert calls(sampler) == undisturbed()
        helper.join()
        assert faults.fired() == 1
        assert sampler.stats.restarts == 0


@pytest.fixture
def give_up(monkeypatch):
    """A function that lets the fork server's next answer be taken for late; those of its successor are waited for."""
    real, left = worker_child.readable_within, []  # type: ignore[attr-defined]

    def readable_within(fd, timeout):
        return left.pop() if left and timeout == worker_child._ANSWER_SECONDS else real(fd, timeout)

    monkeypatch.setattr(worker_child, "readable_within", readable_within)
    return lambda: left.append(False)


@pytest.mark.slow
def test_a_stopped_fork_server_is_replaced(monkeypatch, give_up):
    limit_ends(monkeypatch, 0.5)
    with make() as sampler:
        first = calls(sampler)
        server = fork_server().pid
        os.kill(server, signal.SIGSTOP)
        for pid in sampler.worker_pids():
            os.kill(pid, signal.SIGKILL)
        give_up()
        assert [*first, sampler.obtain_trajectories(8, agent_update={"offset": 1})] == undisturbed(2)
        assert 1 <= sampler.stats.restarts <= 2  # as many as there was work for
        assert gone([server])
        assert fork_server().pid != server


@pytest.mark.slow
def test_a_worker_that_the_fork_server_reports_too_late_is_not_used(give_up):
    """It must not read the messages of the worker that was started in its place."""
    with make(n_workers=1):
        server = fork_server().pid
        give_up()
        with make() as sampler:
            assert fork_server().pid != server
            assert calls(sampler, 3) == undisturbed(3)
    assert gone([server])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_fork_server_that_is_lost_while_it_starts_workers_is_replaced_once(monkeypatch, give_up, number):
    """Its answers to the others are not waited for either. Its loss is that of a worker, started in the first call."""
    make(n_workers=1).close()
    server, servers = fork_server().pid, []

    def launch_and_lose(*how):
        child = launch.launch(*how)
        servers.append(fork_server().pid)
        if len(servers) == 3:
            os.kill(server, number)
        return child

    os.kill(server, signal.SIGSTOP)
    if number == signal.SIGSTOP:
        give_up()
    monkeypatch.setattr(pool, "launch", launch_and_lose)
    with make(n_workers=3) as sampler:
        assert servers == [server] * 3 + [servers[-1]] * 2
        assert servers[-1] != server
        assert gone([server])
        assert calls(sampler, 3) == undisturbed(3)
        assert servers[3:] == [servers[-1]] * 3
        assert sampler.stats.restarts == 1


@pytest.mark.slow
def test_ends_are_noticed_while_the_fork_server_is_stopped(monkeypatch):
    """The watchdogs report them."""
    monkeypatch.setattr(worker_child, "_REPORT_SECONDS", PATIENCE)
    monkeypatch.setattr(pool, "END_SECONDS", PATIENCE)
    with make(n_workers=1) as sampler:
        engine, server, causes = sampler._life.session.engine, fork_server(), []
        for stopped in (True, False, False):
            if stopped:
                server.send_signal(signal.SIGSTOP)
            engine.kill_worker(0)
            (died,) = engine.wait(None)
            causes.append(died.exitcode)
            server.send_signal(signal.SIGCONT)
            engine.restart(0)
    assert causes == [-signal.SIGKILL] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_fork_server_that_is_killed_takes_no_worker_with_it_and_is_replaced():
    with make() as sampler:
        first = calls(sampler)
        pids, server = sampler.worker_pids(), fork_server().pid
        os.kill(server, signal.SIGKILL)
        assert gone([server])
        assert [*first, sampler.obtain_trajectories(8, agent_update={"offset": 1})] == undisturbed(2)
        assert (sampler.worker_pids(), sampler.stats.restarts) == (pids, 0)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert sampler.obtain_trajectories(8, agent_update={"offset": 2}) == undisturbed(3)[2]
    assert gone_within(pids, 0)


STOPS_ITS_FORK_SERVER = """
import os, signal
from streamsampler import MultiprocessingSampler
from streamsampler.core.settings import hash_seed
from streamsampler.engines.launch import start as launch
from streamsampler.engines.processes import worker_main
from streamsampler.testing import ScriptedAgent, ScriptedEnv

sampler = MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2)
sampler.obtain_trajectories(2)
print(launch._servers[1, worker_main.main, hash_seed()]._process.pid, *sampler.worker_pids())
os.kill(launch._servers[1, worker_main.main, hash_seed()]._process.pid, signal.SIGSTOP)
"""


@pytest.mark.slow
def test_a_stopped_fork_server_does_not_hold_up_the_end_of_the_program():
    done = subprocess.run([sys.executable, "-c", STOPS_ITS_FORK_SERVER], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert gone(list(map(int, done.stdout.split())))


def test_a_watchdog_that_is_stopped_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(worker_child, "_REPORT_SECONDS", 0.1)
    with make() as sampler:
        assert calls(sampler) == undisturbed()
        watchdogs = [parent_of(pid) for pid in sampler.worker_pids()]
        for pid in watchdogs:
            os.kill(pid, signal.SIGSTOP)
    for pid in watchdogs:
        os.kill(pid, signal.SIGCONT)
    assert gone(watchdogs)


def test_a_worker_whose_watchdog_is_killed_is_a_loss(caplog):
    """What its environment starts would not be ended with it."""
    with make(n_workers=1) as sampler:
        first = calls(sampler)
        worker = sampler.worker_pids()[0]
        os.kill(parent_of(worker), signal.SIGKILL)
        # Until it can be seen, which takes the server that reaps it: or the call might end before.
        assert descriptors.readable_within(sampler._life.session.engine._links[0].child._fd, PATIENCE)
        assert [*first, sampler.obtain_trajectories(8, agent_update={"offset": 1})] == undisturbed(2)
        assert gone([worker])
        # Another one takes its place when there is work for it: here, or in the next call.
        sampler.obtain_trajectories(8)
        assert sampler.worker_pids() != [worker]
        assert caplog.text.count("worker 0 lost its watchdog process, and was killed, while") == 1


NO_MESSAGE, NO_ANSWER, HANGS = "wrote an invalid message", "sent an invalid answer", "made no progress"
GARBAGE = {
    "a length without end": (b"\xff\xff\xff\x7f", NO_MESSAGE),
    "a negative length": (b"\xff\xff\xff\xff garbage", NO_MESSAGE),
    "a message of nothing": (bytes(4), NO_ANSWER),
    "a message of another kind": (b"\x05\x00\x00\x00hello", NO_ANSWER),
    "a region that is not there": (b"\x11\x00\x00\x00r" + (1 << 40).to_bytes(8, "little") + bytes([9]) * 8, NO_ANSWER),
    "half a length": (b"\x01", NO_MESSAGE),
    "half a length, and a hang": (b"\x01", HANGS),
    "half a message, and a hang": (b"\xff\x00\x00\x00half", HANGS),
}


class WritesGarbage(ScriptedEnv):
    """Writes garbage to all descriptors that there are, in the second timestep of the first environment of all."""

    def __init__(self, folder, garbage, hangs):
        super().__init__()
        self.hangs, self.steps = hangs, 0
        self.garbage = garbage if Records(folder).record(garbage.hex(), most=1) else None

    def step(self, action):
        self.steps += 1
        if self.steps == 2 and self.garbage is not None:
            for fd in range(3, 64):
                with contextlib.suppress(OSError):
                    os.write(fd, self.garbage)
            if self.hangs:
                time.sleep(1000)
        return super().step(action)


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.slow
def test_garbage_is_a_loss(tmp_path, hangs, caplog):
    """Also where the worker hangs afterwards: nothing waits for the rest of a message without end."""
    kinds = [(name, garbage, word) for name, (garbage, word) in GARBAGE.items() if (word is HANGS) == hangs]
    with make(n_workers=1, step_timeout=0.5 if hangs else PATIENCE, max_restarts=None) as sampler:
        kill_only_hung(sampler, Records(tmp_path).pids)
        for call, (name, garbage, word) in enumerate(kinds):
            caplog.clear()
            envs = functools.partial(WritesGarbage, str(tmp_path), garbage, hangs)
            batch = sampler.obtain_trajectories(8, agent_update={"offset": call}, env_update=envs)
            assert batch == undisturbed(len(kinds))[call], name
            assert sampler.stats.restarts == call + 1, name
            assert word in caplog.text, name


def test_a_reader_that_does_not_block():
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    reader = MessageReader(read_end)
    assert reader.read() == []
    os.write(write_end, b"\x03\x00\x00")
    assert reader.read() == []
    os.write(write_end, b"\x00abc\x01")
    assert reader.read() == [b"abc"]
    os.write(write_end, b"\x10\x00\x00")
    with pytest.raises(GarbageError, match="of 4097 bytes"):
        reader.read()
    os.close(write_end)
    os.close(read_end)


class ComesBack(ScriptedEnv):
    """Forks in its second timestep; the copy goes on as if it were the worker, which waits for the end of its copy."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 2 and (copy := os.fork()):
            # Or the call, and even the next one, might be over before the copy is noticed.
            os.waitpid(copy, 0)
        return super().step(action)


@pytest.mark.usefixtures("patient")
def test_a_copy_that_comes_back_is_an_error():
    """At once: a new worker would do the same. And the sampler is usable afterwards."""
    with make(ComesBack) as sampler:
        pids = sampler.worker_pids()
        with pytest.raises(
            WorkerDiedError, match=r"os.fork\(\), and the forked process.* returned .* a new worker would do the same"
        ):
            sampler.obtain_trajectories(8)
        assert second_call(sampler, env_update=ScriptedEnv)
    assert gone_within(pids, 0)
