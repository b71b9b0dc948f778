"""While workers start: side by side, nothing is left when one cannot start, or when the parent is gone meanwhile."""

import os
import signal
import subprocess
import sys

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.launch import children, worker_child
from streamsampler.engines.processes import engine as processes
from streamsampler.engines.processes import links
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import descendants, open_files
from tests.faults.conftest import slow
from tests.faults.test_ends import gone_within

METHODS = ["fork", "forkserver", slow("spawn")]


def make(n_workers, method):
    return MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=n_workers, start_method=method)


def assert_nothing_new(processes, files):
    assert gone_within(descendants() - processes, 5)
    children.reap_strays()  # a watchdog that took long to end, on a busy machine
    assert children._strays == []
    assert open_files() == files


def test_workers_start_side_by_side_and_not_all_at_once(monkeypatch):
    launch, await_start, said = links.launch, worker_child.WorkerChild.await_start, []  # type: ignore[attr-defined]

    def asking(method, main, number, *rest):
        said.append(f"ask for {number}")
        return launch(method, main, number, *rest)

    def waiting(child):
        said.append("wait")
        await_start(child)

    monkeypatch.setattr(processes, "_AT_ONCE", 3)
    monkeypatch.setattr(links, "launch", asking)
    monkeypatch.setattr(worker_child.WorkerChild, "await_start", waiting)
    make(4, "fork").close()
    assert said == ["ask for 0", "ask for 1", "ask for 2", "wait", "ask for 3", "wait", "wait", "wait"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_nothing_is_left_when_a_worker_cannot_be_asked_for(monkeypatch, method, error):
    launch = links.launch  # type: ignore[attr-defined]

    def fail(method, main, number, *rest):
        if number == 2:
            raise error
        return launch(method, main, number, *rest)

    make(1, method).close()  # the fork server stays, once there is one
    before = descendants(), open_files()
    monkeypatch.setattr(links, "launch", fail)
    with pytest.raises(error):
        make(4, method)
    assert_nothing_new(*before)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("failing", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3))])
def test_nothing_is_left_when_a_worker_cannot_be_known(monkeypatch, method, failing):
    """The process runs, and there is no descriptor left for it."""
    open_pidfd, pids = worker_child.open_pidfd, []  # type: ignore[attr-defined]

    def fail(pid):
        pids.append(pid)
        if len(pids) == failing:
            raise OSError("none left")
        return open_pidfd(pid)

    make(1, method).close()
    before = descendants(), open_files()
    monkeypatch.setattr(worker_child, "open_pidfd", fail)
    with pytest.raises(OSError, match="none left"):
        make(3, method)
    assert len(pids) == 3
    assert_nothing_new(*before)


# Python imports `sitecustomize` before anything else. What is started here says so, and imports no further.
SLOW_TO_START = """
import os, time
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
        assert gone_within([starting], 1)
    os.close(started)
