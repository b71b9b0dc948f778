"""C6: whatever ends the sampler or its process, two seconds later there is no worker and no file."""

import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import pytest

from streamsampler import MultiprocessingSampler
from tests.faults.scripted import Agent, Boom, Env

START_METHODS = ["forkserver", "spawn", "fork"]
BUSY = {
    "idle": "Env",
    "rolling out": "functools.partial(Env, length=10**9)",
    "hung": "functools.partial(Env, 'step', 'hang')",
    "hung holding the lock": "functools.partial(Env, 'step', 'hang holding the lock')",
}

# Not guarded by `if __name__ == "__main__"`, on purpose.
SCRIPT = """
import functools, os, select, signal, sys, threading
from streamsampler import MultiprocessingSampler
from streamsampler.errors import ClosedError
from tests.faults.scripted import Agent, Env

sampler = MultiprocessingSampler(Agent(), {envs}, n_workers=3, start_method={method!r})
busy = {busy!r} != "idle"
if not busy:
    sampler.obtain_trajectories(3)

def tell():
    # Every worker is where it is meant to be: it says so on the board.
    while busy and any(sampler._collector.engine.progress(n).phase != "stepping the environment" for n in range(3)):
        threading.Event().wait(0.001)
    print(*sampler.worker_pids(), flush=True)

outcome = []
if busy and {end!r} in ("close", "exit", "raise"):
    def obtain():
        try:
            sampler.obtain_trajectories(3)
        except ClosedError:
            outcome.append("closed")
    call = threading.Thread(target=obtain, daemon=True)
    call.start()
    tell()
elif busy:
    threading.Thread(target=tell, daemon=True).start()
    sampler.obtain_trajectories(3)
else:
    tell()
end = {end!r}
if end == "close":
    sampler.close()
    sampler.close()
    if busy:
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


@contextmanager
def run(tmp_path, method, busy, end):
    """Start the script; yield it and its workers' process ids once the workers are where they are meant to be."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).format(method=method, envs=BUSY[busy], busy=busy, end=end))
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
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 3, process.stderr.read()
        if busy == "idle" and end in ("interrupt", "kill"):
            assert process.stdout.readline() == "ready\n"
        yield process, pids


def check_nothing_left(process, pids, tmp_path, shm_before):
    process.wait(10)
    assert gone_within(pids, 2)
    assert not list((tmp_path / "tmp").iterdir()), "temporary files"
    assert set(os.listdir("/dev/shm")) <= shm_before, "shared memory"


def case(method, busy):
    """The two extremes with the default start method in every run; everything else in the slow tier."""
    quick = method == "forkserver" and busy in ("idle", "hung holding the lock")
    return pytest.param(method, busy, marks=() if quick else pytest.mark.slow)


CASES = [case(method, busy) for method in START_METHODS for busy in BUSY]


@pytest.mark.parametrize(("method", "busy"), CASES)
def test_sigkill_of_the_parent(tmp_path, method, busy):
    shm = set(os.listdir("/dev/shm"))
    with run(tmp_path, method, busy, "kill") as (process, pids):
        process.kill()
        check_nothing_left(process, pids, tmp_path, shm)


@pytest.mark.parametrize(("method", "busy"), CASES)
def test_ctrl_c(tmp_path, method, busy):
    """The terminal sends it to the whole process group; there is one traceback, the parent's."""
    shm = set(os.listdir("/dev/shm"))
    with run(tmp_path, method, busy, "interrupt") as (process, pids):
        os.killpg(process.pid, signal.SIGINT)
        check_nothing_left(process, pids, tmp_path, shm)
        assert process.stderr.read().count("Traceback") == 1
        assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize("end", ["exit", "raise"])
@pytest.mark.parametrize(("method", "busy"), CASES)
def test_the_end_of_the_script(tmp_path, method, busy, end):
    shm = set(os.listdir("/dev/shm"))
    with run(tmp_path, method, busy, end) as (process, pids):
        check_nothing_left(process, pids, tmp_path, shm)
        assert process.returncode == {"exit": 5, "raise": 1}[end]
        assert process.stderr.read().count("Traceback") == (end == "raise")


@pytest.mark.parametrize("busy", [busy for busy in BUSY if busy != "idle"])
def test_close_within_two_seconds(tmp_path, busy):
    """Also while another thread is in the middle of a call, which then fails."""
    shm = set(os.listdir("/dev/shm"))
    with run(tmp_path, "forkserver", busy, "close") as (process, pids):
        assert gone_within(pids, 2)
        assert process.stdout.readline() == "closed\n"
        process.kill()
        check_nothing_left(process, pids, tmp_path, shm)


def deaf_to_interrupts(pid):
    with open(f"/proc/{pid}/status") as file:
        masks = dict(line.split(":\t") for line in file.read().splitlines() if line.startswith("Sig"))
    return bool((int(masks["SigBlk"], 16) | int(masks["SigIgn"], 16)) >> (signal.SIGINT - 1) & 1)


@pytest.mark.parametrize("method", START_METHODS)
def test_workers_are_deaf_to_ctrl_c_from_their_first_instant(method):
    """Also while they import: or each would print a traceback of its own."""
    with MultiprocessingSampler(Agent(), Env, n_workers=2, start_method=method) as sampler:
        assert all(deaf_to_interrupts(pid) for pid in sampler.worker_pids())
        sampler.obtain_trajectories(2)
        assert all(deaf_to_interrupts(pid) for pid in sampler.worker_pids())
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("method", START_METHODS)
def test_garbage_collection(method):
    sampler = MultiprocessingSampler(Agent(), Env, n_workers=2, start_method=method)
    sampler.obtain_trajectories(2)
    pids = sampler.worker_pids()
    del sampler
    gc.collect()
    assert gone_within(pids, 2)


@pytest.mark.parametrize("method", START_METHODS)
def test_an_exception_in_the_with_block(method):
    pids = []

    def fail_inside():
        with MultiprocessingSampler(Agent(), Env, n_workers=2, start_method=method) as sampler:
            pids.extend(sampler.worker_pids())
            raise Boom

    with pytest.raises(Boom):
        fail_inside()
    assert gone_within(pids, 0)


def test_nothing_accumulates_over_samplers():
    def resources():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def cycle():
        with MultiprocessingSampler(Agent(), Env, n_workers=2) as sampler:
            sampler.obtain_trajectories(2)

    cycle()
    before = resources()
    for _ in range(10):
        cycle()
    assert resources() == before


def test_a_forked_copy_leaves_the_workers_alone():
    """A process forked by the user ends, by any way, without taking the sampler's workers along."""
    with MultiprocessingSampler(Agent(), Env, n_workers=2, seed=1) as sampler:
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
