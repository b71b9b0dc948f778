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
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.launch import worker_child
from streamsampler.engines.processes import pool
from streamsampler.errors import ClosedError
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import descendants, open_files
from tests.faults.child_processes import KINDS, StartsProcesses, notes
from tests.faults.conftest import slow
from tests.patience import PATIENCE
from tests.shared_memory import shared_memory


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


def make(n_workers=2, env=ScriptedEnv, **options):
    return MultiprocessingSampler(ScriptedAgent(), env, n_workers=n_workers, **options)


WITHIN = 2.0
# The environment, and the fault that each of three workers meets in its first step; a leak of no bytes only counts it.
BUSY = {
    "idle": ("ScriptedEnv", None),
    "idle with the agent in the parent": ("ScriptedEnv", None),
    "idle with the agent in the parent of queues": ("ScriptedEnv", None),
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
from streamsampler.samplers import life
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv

end, fault, patience = {end!r}, {fault!r}, {patience!r}
if patience:
    life._CANCEL_SECONDS = patience
faults = Faults({folder!r}, *([Fault(fault, times=3, n_bytes=0)] if fault else []))
sampler = MultiprocessingSampler(ScriptedAgent(), faults.env({envs}), n_workers=3, **{options!r})
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

# How the program ends: the signal and whether all of its group get it, its exit code, and how many tracebacks it shows.
ENDS = {
    "kill": (signal.SIGKILL, False, -signal.SIGKILL, 0),
    "terminate": (signal.SIGTERM, False, -signal.SIGTERM, 0),  # ends a program at once that does not handle it
    "interrupt": (signal.SIGINT, True, -signal.SIGINT, 1),  # the terminal sends it to the whole process group
    "exit": (None, False, 5, 0),
    "raise": (None, False, 1, 1),
    "close": (signal.SIGKILL, False, -signal.SIGKILL, 0),  # while another thread is in a call, which then fails
}
QUICK = [("hung holding the lock", "kill", PATIENCE)]


@pytest.mark.parametrize(
    ("busy", "end", "within"), [*QUICK, *(slow(busy, end, WITHIN) for busy in BUSY for end in ENDS)]
)
def test_the_end_of_a_program(tmp_path, busy, end, within):
    shm, script, temporary = shared_memory(), tmp_path / "script.py", tmp_path / "tmp"
    envs, fault = BUSY[busy]
    values = {"envs": envs, "fault": fault, "end": end, "folder": str(tmp_path / "faults")}
    engine = {"engine": "queues"} if "queues" in busy else {}
    values["options"] = {"inference": "parent", **engine} if "parent" in busy else {}
    script.write_text(textwrap.dedent(SCRIPT).format(**values, patience=within if within > WITHIN else None))
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.getcwd()}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    number, to_all, exit_code, n_tracebacks = ENDS[end]
    with subprocess.Popen([sys.executable, script], start_new_session=True, env=environ, **pipes) as process:
        try:
            pids = [int(word) for word in process.stdout.readline().split()]
            assert len(pids) == 3, process.stderr.read()
            if end == "close":
                assert gone_within(pids, within)
                assert process.stdout.readline() == ("closed\n" if fault else "ready\n")
            elif not fault and number:
                assert process.stdout.readline() == "ready\n"
            if number:
                os.killpg(process.pid, number) if to_all else process.send_signal(number)
            assert process.wait(PATIENCE) == exit_code
            assert gone_within(pids, within)
            said = process.stderr.read()
            assert said.count("Traceback") == n_tracebacks
            if end in ("kill", "terminate") and "queues" not in busy:  # `multiprocessing` tells what it cleans up then
                assert [line for line in said.splitlines() if "has no get_actions" not in line] == []
        finally:
            process.kill()  # or one that does not end would be waited for, after the test has failed
    assert not list(temporary.iterdir()), "temporary files"
    assert not shared_memory() - shm


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


@pytest.mark.slow
def test_a_parent_that_forked_is_killed():
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


def ignores_interrupts(pid):
    with open(f"/proc/{pid}/status") as file:
        masks = dict(line.split(":\t") for line in file.read().splitlines() if line.startswith("Sig"))
    return bool((int(masks["SigBlk"], 16) | int(masks["SigIgn"], 16)) >> (signal.SIGINT - 1) & 1)


def test_workers_ignore_ctrl_c_from_their_start_and_end_with_the_garbage():
    """Also while they import: or each would print a traceback of its own."""
    sampler = make()
    pids = sampler.worker_pids()
    assert all(map(ignores_interrupts, pids))
    sampler.obtain_trajectories(2)
    assert all(map(ignores_interrupts, pids))
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    del sampler
    gc.collect()
    assert gone(pids)


@pytest.mark.usefixtures("patient")
def test_close_while_a_worker_is_being_started(monkeypatch):
    """The call of another thread starts it; a start that takes long is not waited for."""
    started, go_on = threading.Event(), threading.Event()
    launch, children, raised = pool.launch, [], []  # type: ignore[attr-defined]

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

    monkeypatch.setattr("streamsampler.samplers.life._CANCEL_SECONDS", 0.05)
    make(1).close()
    gc.collect()  # or what an earlier test left would be closed while this one runs
    files = open_files()
    sampler = make()
    pids = sampler.worker_pids()
    os.kill(pids[0], signal.SIGKILL)
    # The first that the call sees is this death, while there is work: or no worker would be started.
    assert gone(pids[:1])
    monkeypatch.setattr(pool, "launch", launch_slowly)
    call = threading.Thread(target=obtain)
    call.start()
    started.wait()
    sampler.close()
    go_on.set()
    call.join()
    assert len(raised) == len(children) == 1
    assert open_files() <= files, "what an earlier test left may be closed meanwhile"
    assert gone_within([*pids, *(child.pid for child in children)], 0)


def test_a_forked_copy_leaves_the_workers_alone():
    """A process forked by the user ends, or leaves a loop over a stream, without stopping the sampler's workers."""
    with make(seed=1) as sampler:
        stream = sampler.stream()
        next(stream)
        pid = os.fork()
        if pid == 0:
            try:
                stream.close()
                sampler.obtain_trajectories(2)
            except Exception as error:
                sampler.close()
                os._exit(11 if "belongs to process" in str(error) else 12)
            os._exit(13)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 11
        assert len([next(stream) for _ in range(100)]) == 100
        stream.close()
        assert sampler.obtain_trajectories(4).n_trajectories == 4
        assert sampler.stats.restarts == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.slow
def test_nothing_accumulates_over_samplers():
    def resources():
        gc.collect()
        return open_files(), set(os.listdir("/proc/self/task")), descendants(), shared_memory()

    def cycle():
        with make() as sampler:
            sampler.obtain_trajectories(2)

    cycle()
    before = resources()
    for _ in range(200):
        cycle()
    # What an earlier test left may go meanwhile; nothing may come.
    assert [now - then for now, then in zip(resources(), before, strict=True)] == [set()] * 4


def test_workers_start_side_by_side_and_not_all_at_once(monkeypatch):
    launch, await_start, said = pool.launch, worker_child.WorkerChild.await_start, []  # type: ignore[attr-defined]

    def asking(main, number, *rest):
        said.append(f"ask for {number}")
        return launch(main, number, *rest)

    def waiting(child):
        said.append("wait")
        await_start(child)

    monkeypatch.setattr(pool, "_AT_ONCE", 3)
    monkeypatch.setattr(pool, "launch", asking)
    monkeypatch.setattr(worker_child.WorkerChild, "await_start", waiting)
    make(4).close()
    assert said == ["ask for 0", "ask for 1", "ask for 2", "wait", "ask for 3", "wait", "wait", "wait"]


# Python imports `sitecustomize` before anything else: the fork server imports no further.
NEVER_STARTS = "import signal\nwhile True: signal.pause()\n"

# Says which process the fork server is, as soon as its end is arranged.
PROGRAM = """
import os, sys
os.environ["PYTHONPATH"] = sys.argv[1]
from streamsampler import MultiprocessingSampler
from streamsampler.engines.launch import start
from streamsampler.testing import ScriptedAgent, ScriptedEnv

def arrange(fd, pid, arrange=start.kill_at_end_of):
    arrange(fd, pid)
    os.write(1, f"{pid}\\n".encode())

start.kill_at_end_of = arrange
MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1)
"""


@pytest.mark.slow
def test_a_fork_server_that_is_orphaned_in_its_start_up(tmp_path):
    """It notices it before its imports, not after."""
    (tmp_path / "sitecustomize.py").write_text(NEVER_STARTS)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        starting = int(process.stdout.readline())
        assert not gone_within([starting], 0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert gone([starting])


@pytest.mark.usefixtures("patient")
@pytest.mark.slow
def test_what_a_killed_worker_leaves_has_ended_before_it_is_replaced(tmp_path):
    """The new worker may need the same port. All other ends with such environments are those of the proof `ends`."""
    os.mkfifo(tmp_path / "events")
    events = os.open(tmp_path / "events", os.O_RDWR)
    with make(env=[partial(StartsProcesses, str(tmp_path))] * 2, seed=1) as sampler:
        sampler.obtain_exact_trajectories(2)
        os.read(events, 1000)
        killed, other = sampler.worker_pids()
        os.kill(killed, signal.SIGKILL)
        (died,) = sampler._life.session.engine.wait(PATIENCE)
        assert died.worker == 0
        left, others = (list(map(int, filter(str.isdigit, notes(tmp_path)[pid]))) for pid in (killed, other))
        assert gone_within(left, 0)
        # Daemons of a worker that lives go on: which worker's they are is known.
        assert len(others) == len(KINDS)
        assert not any(gone_within([pid], 0) for pid in others)
    assert gone_within(others, 0)
    os.close(events)


class Daemonic(ScriptedEnv):
    """Each reset leaves a daemon behind that ends at once."""

    def reset(self, *, seed=None, options=None):
        subprocess.run(["sh", "-c", "setsid true &"], check=True)
        return super().reset(seed=seed, options=options)


def parent_of(pid):
    """A worker's watchdog."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_ends_while_its_worker_lives_leaves_no_zombie():
    """A watchdog reaps the daemons that it has adopted."""
    with make(1, Daemonic) as sampler:
        for _ in range(3):
            sampler.obtain_trajectories(1)
        watchdog = parent_of(sampler.worker_pids()[0])
        children = Path(f"/proc/{watchdog}/task/{watchdog}/children")  # dead ones included
        while len(children.read_text().split()) > 1:  # for ever, if they are not reaped: the test's own limit ends it
            os.sched_yield()
