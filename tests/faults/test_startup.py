"""While workers start: side by side, nothing is left when one cannot start, or when the parent is gone meanwhile."""

import gc
import os
import signal
import subprocess
import sys

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.launch import worker_child
from streamsampler.engines.processes import engine, links
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import descendants, open_files
from tests.faults.test_ends import gone


def make(n_workers):
    return MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=n_workers)


def what_there_is():
    """Return this process's descendants and files."""
    gc.collect()
    return descendants(), open_files()


def assert_nothing_new(before):
    """What an earlier test left may go meanwhile: it is reaped, or collected as garbage, at any time."""
    new = [now - then for now, then in zip(what_there_is(), before, strict=True)]
    assert new == [set()] * 2


def test_workers_start_side_by_side_and_not_all_at_once(monkeypatch):
    launch, await_start, said = links.launch, worker_child.WorkerChild.await_start, []  # type: ignore[attr-defined]

    def asking(main, number, *rest):
        said.append(f"ask for {number}")
        return launch(main, number, *rest)

    def waiting(child):
        said.append("wait")
        await_start(child)

    monkeypatch.setattr(engine, "_AT_ONCE", 3)
    monkeypatch.setattr(links, "launch", asking)
    monkeypatch.setattr(worker_child.WorkerChild, "await_start", waiting)
    make(4).close()
    assert said == ["ask for 0", "ask for 1", "ask for 2", "wait", "ask for 3", "wait", "wait", "wait"]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.slow
def test_nothing_is_left_when_a_worker_cannot_be_asked_for(monkeypatch, error):
    launch = links.launch  # type: ignore[attr-defined]

    def fail(main, number, *rest):
        if number == 2:
            raise error
        return launch(main, number, *rest)

    make(1).close()  # the fork server stays, once there is one
    before = what_there_is()
    monkeypatch.setattr(links, "launch", fail)
    with pytest.raises(error):
        make(4)
    assert_nothing_new(before)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("failing", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3))])
@pytest.mark.slow
def test_nothing_is_left_when_a_worker_cannot_be_known(monkeypatch, failing):
    """The process runs, and there is no descriptor left for it."""
    open_pidfd, pids = worker_child.open_pidfd, []  # type: ignore[attr-defined]

    def fail(pid):
        pids.append(pid)
        if len(pids) == failing:
            raise OSError("none left")
        return open_pidfd(pid)

    make(1).close()
    before = what_there_is()
    monkeypatch.setattr(worker_child, "open_pidfd", fail)
    with pytest.raises(OSError, match="none left"):
        make(3)
    assert len(pids) == 3
    assert_nothing_new(before)


# Python imports `sitecustomize` before anything else. The fork server says here that its parent has arranged its end,
# and imports no further.
SLOW_TO_START = """
import contextlib, fcntl, os, time

def ends_with_parent():
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ASYNC:
                return True
    return False

while not ends_with_parent():
    time.sleep(0.01)
with open(os.environ["STARTED"], "w") as started:
    started.write(f"{os.getpid()}\\n")
time.sleep(1000)
"""

PROGRAM = """
import os, sys
os.environ["PYTHONPATH"] = sys.argv[1]
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1)
"""


@pytest.mark.slow
def test_a_fork_server_that_is_orphaned_in_its_start_up(tmp_path):
    """It notices it before its imports, not after."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_TO_START)
    os.mkfifo(tmp_path / "started")
    started = os.open(tmp_path / "started", os.O_RDWR)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "STARTED": str(tmp_path / "started")}) as process:
        starting = int(os.read(started, 100))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert gone([starting])
    os.close(started)
