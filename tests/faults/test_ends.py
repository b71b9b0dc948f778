"""C6: whatever ends the sampler or its process, two seconds later there is no worker and no file.

The two seconds are measured in the slow tier; in every run a machine may be as busy as may be.
"""

import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.processes import links
from streamsampler.errors import ClosedError
from streamsampler.testing import InjectedError, ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import descendants, open_files
from tests.faults.conftest import slow
from tests.patience import PATIENCE
from tests.shared_memory import shared_memory

WITHIN = 2.0
# The environment, and the fault that each of three workers meets in its first step; a leak of no bytes only counts it.
BUSY = {
    "idle": ("ScriptedEnv", None),
    "rolling out": ("functools.partial(ScriptedEnv, 10**9)", "leak"),
    "hung": ("ScriptedEnv", "hang"),
    "hung holding the lock": ("ScriptedEnv", "hang_gil"),
    "stopped": ("ScriptedEnv", "stop"),
}

# Not guarded by `if __name__ == "__main__"`, on purpose.
SCRIPT = """
import functools, os, select, signal, sys, threading
from streamsampler import MultiprocessingSampler
from streamsampler.errors import ClosedError
from streamsampler.samplers import lifecycle
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv

end, fault, patience = {end!r}, {fault!r}, {patience!r}
if patience:
    lifecycle._CANCEL_SECONDS = patience
faults = Faults({folder!r}, *([Fault(fault, times=3, n_bytes=0)] if fault else []))
sampler = MultiprocessingSampler(ScriptedAgent(), faults.env({envs}), n_workers=3)
if not fault:
    sampler.obtain_trajectories(3)

def print_pids():
    if fault:
        faults.wait(3, 120)
        assert set(faults.pids()) == set(sampler.worker_pids())
    print(*sampler.worker_pids(), flush=True)

outcome = []
if fault and end in ("close", "exit", "raise"):
    def obtain():
        try:
            sampler.obtain_trajectories(3)
        except ClosedError:
            outcome.append("closed")
    call = threading.Thread(target=obtain, daemon=True)
    call.start()
    print_pids()
elif fault:
    threading.Thread(target=print_pids, daemon=True).start()
    sampler.obtain_trajectories(3)
else:
    print_pids()
if end == "close":
    sampler.close()
    sampler.close()
    if fault:
        call.join()
        print(*outcome, flush=True)
elif end == "exit":
    sys.exit(5)
elif end == "raise":
    raise ValueError("the user's own")
# Not Event.wait(): a signal that comes just before it blocks would be noticed only after it.
wakened, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
print("ready", flush=True)
select.select([wakened], [], [])
"""


def gone_within(pids, seconds):
    """Whether all processes end in time; waits on the events, not on the clock."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        ended = poller.poll(max(0, (deadline - time.monotonic()) * 1000))
        os.close(fd)
        if not ended:
            return False
    return True


def gone(pids):
    """Whether all processes end, sooner or later."""
    return gone_within(pids, PATIENCE)


@contextmanager
def run(tmp_path, busy, end, within=WITHIN):
    """Start the script; yield it and its workers' process ids once the workers are where they are meant to be."""
    script = tmp_path / "script.py"
    envs, fault = BUSY[busy]
    values = {"envs": envs, "fault": fault, "end": end, "folder": str(tmp_path / "faults")}
    patience = within if within > WITHIN else None
    script.write_text(textwrap.dedent(SCRIPT).format(**values, patience=patience))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.getcwd()},
    ) as process:
        try:
            pids = [int(word) for word in process.stdout.readline().split()]
            assert len(pids) == 3, process.stderr.read()
            if busy == "idle" and end in SIGNALS:
                assert process.stdout.readline() == "ready\n"
            yield process, pids
        finally:
            process.kill()  # or one that does not end would be waited for, after the test has failed


def check_nothing_left(process, pids, tmp_path, shm_before, within):
    process.wait(PATIENCE)
    assert gone_within(pids, within)
    assert not list((tmp_path / "tmp").iterdir()), "temporary files"
    assert not shared_memory() - shm_before


SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}
QUICK = {
    ("hung holding the lock", "interrupt"),
    ("hung holding the lock", "kill"),
}


def cases(*ends):
    """The extremes in every run; everything, with the two seconds, in the slow tier."""
    quick = [(busy, end, PATIENCE) for busy, end in sorted(QUICK) if end in ends]
    return [*quick, *(slow(busy, end, WITHIN) for busy in BUSY for end in ends)]


@pytest.mark.parametrize(("busy", "end", "within"), cases("kill", "terminate"))
def test_the_parent_is_killed(tmp_path, busy, end, within):
    """It has no time to end its workers. SIGTERM, too, ends a program at once that does not handle it."""
    shm = shared_memory()
    with run(tmp_path, busy, end, within) as (process, pids):
        process.send_signal(SIGNALS[end])
        check_nothing_left(process, pids, tmp_path, shm, within)
        assert process.returncode == -SIGNALS[end]
        assert process.stderr.read() == ""


@pytest.mark.parametrize(("busy", "end", "within"), cases("interrupt"))
def test_ctrl_c(tmp_path, busy, end, within):
    """The terminal sends it to the whole process group; there is one traceback, the parent's."""
    shm = shared_memory()
    with run(tmp_path, busy, end, within) as (process, pids):
        os.killpg(process.pid, SIGNALS[end])
        check_nothing_left(process, pids, tmp_path, shm, within)
        assert process.stderr.read().count("Traceback") == 1
        assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize(("busy", "end", "within"), cases("exit", "raise"))
def test_the_end_of_the_script(tmp_path, busy, end, within):
    shm = shared_memory()
    with run(tmp_path, busy, end, within) as (process, pids):
        check_nothing_left(process, pids, tmp_path, shm, within)
        assert process.returncode == {"exit": 5, "raise": 1}[end]
        assert process.stderr.read().count("Traceback") == (end == "raise")


def close_cases():
    return [
        ("hung holding the lock", PATIENCE),
        *(slow(busy, WITHIN) for busy in BUSY),
    ]


@pytest.mark.parametrize(("busy", "within"), close_cases())
@pytest.mark.slow
def test_close_within_two_seconds(tmp_path, busy, within):
    """Also while another thread is in the middle of a call, which then fails."""
    shm = shared_memory()
    with run(tmp_path, busy, "close", within) as (process, pids):
        assert gone_within(pids, within)
        assert process.stdout.readline() == ("ready\n" if busy == "idle" else "closed\n")
        process.kill()
        check_nothing_left(process, pids, tmp_path, shm, within)


def ignores_interrupts(pid):
    with open(f"/proc/{pid}/status") as file:
        masks = dict(line.split(":\t") for line in file.read().splitlines() if line.startswith("Sig"))
    return bool((int(masks["SigBlk"], 16) | int(masks["SigIgn"], 16)) >> (signal.SIGINT - 1) & 1)


@pytest.mark.usefixtures("patient")
def test_close_while_a_worker_is_being_started(monkeypatch):
    """The call of another thread starts it; a start that takes long is not waited for."""
    started, go_on = threading.Event(), threading.Event()
    launch, children, raised = links.launch, [], []  # type: ignore[attr-defined]

    def launch_slowly(main, number, fds, threads):
        files = [os.fstat(fd).st_ino for fd in fds]
        started.set()
        go_on.wait()
        assert [os.fstat(fd).st_ino for fd in fds] == files
        children.append(launch(main, number, fds, threads))
        return children[-1]

    def obtain():
        try:
            sampler.obtain_trajectories(8)
        except ClosedError as error:
            raised.append(error)

    monkeypatch.setattr("streamsampler.samplers.lifecycle._CANCEL_SECONDS", 0.05)
    MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1).close()
    gc.collect()  # or what an earlier test left would be closed while this one runs
    files = open_files()
    sampler = MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2)
    pids = sampler.worker_pids()
    os.kill(pids[0], signal.SIGKILL)
    # The first that the call sees is this death, while there is work: or no worker would be started.
    assert gone(pids[:1])
    monkeypatch.setattr(links, "launch", launch_slowly)
    call = threading.Thread(target=obtain)
    call.start()
    started.wait()
    sampler.close()
    go_on.set()
    call.join()
    assert len(raised) == len(children) == 1
    assert open_files() <= files, "what an earlier test left may be closed meanwhile"
    assert gone_within([*pids, *(child.pid for child in children)], 0)


def test_workers_ignore_ctrl_c_from_their_start():
    """Also while they import: or each would print a traceback of its own."""
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2) as sampler:
        assert all(ignores_interrupts(pid) for pid in sampler.worker_pids())
        sampler.obtain_trajectories(2)
        assert all(ignores_interrupts(pid) for pid in sampler.worker_pids())
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_garbage_collection():
    sampler = MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2)
    sampler.obtain_trajectories(2)
    pids = sampler.worker_pids()
    del sampler
    gc.collect()
    assert gone(pids)


@pytest.mark.usefixtures("patient")
def test_an_exception_in_the_with_block():
    pids = []

    def fail_inside():
        with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2) as sampler:
            pids.extend(sampler.worker_pids())
            raise InjectedError

    with pytest.raises(InjectedError):
        fail_inside()
    assert gone_within(pids, 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.slow
def test_nothing_accumulates_over_samplers():
    def resources():
        gc.collect()
        return open_files(), set(os.listdir("/proc/self/task")), descendants()

    def cycle():
        with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2) as sampler:
            sampler.obtain_trajectories(2)

    cycle()
    before, shm = resources(), shared_memory()
    for _ in range(200):
        cycle()
    # What an earlier test left may go meanwhile; nothing may come.
    assert [now - then for now, then in zip(resources(), before, strict=True)] == [set()] * 3
    assert not shared_memory() - shm


def test_a_forked_copy_leaves_the_workers_alone():
    """A process forked by the user ends, by any way, without taking the sampler's workers along."""
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=1) as sampler:
        sampler.obtain_trajectories(2)
        pid = os.fork()
        if pid == 0:
            try:
                sampler.obtain_trajectories(2)
            except Exception as error:
                sampler.close()
                os._exit(11 if "belongs to process" in str(error) else 12)
            os._exit(13)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 11
        assert sampler.obtain_trajectories(4).n_trajectories == 4
        assert sampler.stats.restarts == 0
