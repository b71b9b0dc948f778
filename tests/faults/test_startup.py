"""While workers start: side by side, nothing is left when one cannot start, or when the parent is gone meanwhile."""

import gc
import os
import signal
import subprocess
import sys

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.launch import child as children
from streamsampler.engines.launch import worker_child
from streamsampler.engines.processes import engine, links
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import descendants, open_files
from tests.faults.conftest import slow
from tests.faults.test_ends import gone

METHODS = ["fork", "forkserver", slow("spawn")]


def make(n_workers, method):
    return MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=n_workers, start_method=method)


def what_there_is():
    """Return this process's descendants and files, and the watchdogs that an earlier test has left to be reaped."""
    gc.collect()
    return descendants(), open_files(), set(children._strays)


def assert_nothing_new(before):
    """What an earlier test left may go meanwhile: it is reaped, or collected as garbage, at any time."""
    new = [now - then for now, then in zip(what_there_is(), before, strict=True)]
    assert new == [set()] * 3


def test_workers_start_side_by_side_and_not_all_at_once(monkeypatch):
    launch, await_start, said = links.launch, worker_child.WorkerChild.await_start, []  # type: ignore[attr-defined]

    def asking(method, main, number, *rest):
        said.append(f"ask for {number}")
        return launch(method, main, number, *rest)

    def waiting(child):
        said.append("wait")
        await_start(child)

    monkeypatch.setattr(engine, "_AT_ONCE", 3)
    monkeypatch.setattr(links, "launch", asking)
    monkeypatch.setattr(worker_child.WorkerChild, "await_start", waiting)
    make(4, "fork").close()
    assert said == ["ask for 0", "ask for 1", "ask for 2", "wait", "ask for 3", "wait", "wait", "wait"]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.slow
def test_nothing_is_left_when_a_worker_cannot_be_asked_for(monkeypatch, method, error):
    launch = links.launch  # type: ignore[attr-defined]

    def fail(method, main, number, *rest):
        if number == 2:
            raise error
        return launch(method, main, number, *rest)

    make(1, method).close()  # the fork server stays, once there is one
    before = what_there_is()
    monkeypatch.setattr(links, "launch", fail)
    with pytest.raises(error):
        make(4, method)
    assert_nothing_new(before)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("failing", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3))])
@pytest.mark.slow
def test_nothing_is_left_when_a_worker_cannot_be_known(monkeypatch, method, failing):
    """The process runs, and there is no descriptor left for it."""
    open_pidfd, pids = worker_child.open_pidfd, []  # type: ignore[attr-defined]

    def fail(pid):
        pids.append(pid)
        if len(pids) == failing:
            raise OSError("none left")
        return open_pidfd(pid)

    make(1, method).close()
    before = what_there_is()
    monkeypatch.setattr(worker_child, "open_pidfd", fail)
    with pytest.raises(OSError, match="none left"):
        make(3, method)
    assert len(pids) == 3
    assert_nothing_new(before)


# Python imports `sitecustomize` before anything else. What is started here says so once its end is arranged, which its
# parent does for the fork server, and imports no further.
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
os.environ["PYTHONPATH"] = sys.argv[2]
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, start_method=sys.argv[1])
"""

SPAWNED_LATER = """
import os, sys
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, start_method=sys.argv[1]).close()
os.environ["PYTHONPATH"] = sys.argv[2]
sampler = MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, start_method=sys.argv[1])
sampler.obtain_trajectories(1)
"""


@pytest.mark.parametrize(
    ("method", "program"),
    [("forkserver", PROGRAM), slow("spawn", SPAWNED_LATER)],
    ids=["the fork server", "a spawned worker"],
)
@pytest.mark.slow
def test_orphans_in_start_up(tmp_path, method, program):
    """They notice it before their imports, not after."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_TO_START)
    os.mkfifo(tmp_path / "started")
    started = os.open(tmp_path / "started", os.O_RDWR)
    command = [sys.executable, "-c", program, method, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "STARTED": str(tmp_path / "started")}) as process:
        starting = int(os.read(started, 100))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert gone([starting])
    os.close(started)
