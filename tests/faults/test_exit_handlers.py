"""Exit handlers of environments and libraries run in a worker that ends cleanly, and no others, and keep none alive."""

import atexit
import logging
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from streamsampler import EnvManager, Limits, MultiprocessingSampler
from tests.scripted.envs import Steps

SAMPLER: Any = partial(MultiprocessingSampler, "random", n_workers=2, seed=1)


def queues(start_method):
    return partial(SAMPLER, engine="queues", start_method=start_method)


WAYS: dict[str, Any] = {
    "processes": partial(SAMPLER, engine="processes"),
    "forkserver": queues("forkserver"),
    "spawn": queues("spawn"),
    "fork": queues("fork"),
    "parent": partial(SAMPLER, inference="parent", worker_args={"n_envs": 2}),
    "parent of spawn": partial(queues("spawn"), inference="parent", worker_args={"n_envs": 2}),
    "manager": partial(EnvManager, n_envs=2, n_workers=2, seed=1),
}


# Of another start method, which takes a second more for each worker.
SLOW = ("forkserver", "spawn", "parent of spawn")


@pytest.fixture(params=[pytest.param(way, marks=[pytest.mark.slow] * (way in SLOW)) for way in WAYS])
def way(request):
    return WAYS[request.param]


def use(one):
    if isinstance(one, EnvManager):
        one.reset()
    else:
        one.obtain_trajectories(4)


def write(folder, name):
    Path(folder, f"{name}-{os.getpid()}").touch()


class Leaving(Steps):
    """Makes what only the end of its process removes: its constructor is the only place that knows of it."""

    def __init__(self, folder):
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory(dir=folder)
        file = Path(folder, f"file-{os.getpid()}-{id(self)}")
        file.touch()
        atexit.register(file.unlink)
        atexit.register(write, folder, "first")
        weakref.finalize(self.temporary, write, folder, "finalizer")


def test_what_an_environment_registered_for_the_end_of_its_process_runs(way, tmp_path):
    with way(partial(Leaving, tmp_path)) as one:
        use(one)
        assert any(path.is_dir() for path in tmp_path.iterdir())
    # Where one worker was slow to start, the other one may have run all trajectories.
    left = sorted(tuple(path.name.split("-")) for path in tmp_path.iterdir())
    pids = {pid for _, pid in left}
    assert len(pids) in (1, 2)
    assert left == sorted((name, pid) for name in ("finalizer", "first") for pid in pids)


class Failing(Steps):
    """Fails when its process ends: in one handler, and others run nevertheless."""

    def __init__(self, folder):
        super().__init__()
        atexit.register(write, folder, "last")
        atexit.register(self.fail)
        self.end = weakref.finalize(Failing.fail, self.give_up)

    def fail(self):
        raise ValueError("the arm was not parked")

    @staticmethod
    def give_up():
        sys.exit("no")


def test_an_exit_handler_that_raises_is_logged_and_the_others_run(way, tmp_path, caplog):
    with way(partial(Failing, tmp_path)) as one:
        use(one)
    assert len(list(tmp_path.iterdir())) == 2
    texts = [record.getMessage() for record in caplog.records]
    for number in (0, 1):
        mine = [text for text in texts if text.startswith("an exit handler") and f" of worker {number} raised" in text]
        assert len(mine) == 2, texts
        assert sum("ValueError: the arm was not parked" in text for text in mine) == 1
        assert sum("SystemExit: no" in text for text in mine) == 1


class Hanging(Steps):
    """Never comes to its process's end."""

    def __init__(self):
        super().__init__()
        atexit.register(threading.Event().wait)


@pytest.mark.slow
def test_an_exit_handler_that_hangs_keeps_no_worker_alive_and_is_logged(way, caplog):
    one = way(Hanging, limits=Limits(close_timeout=0.2))
    use(one)
    pids = [pid for pid in one.worker_pids() if pid]
    one.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    killed = [text for text in map(logging.LogRecord.getMessage, caplog.records) if "close_timeout=0.2 s" in text]
    assert len(killed) == len(pids) == 2


FORKED = """
import atexit, os, sys, tempfile, weakref
import gymnasium
from streamsampler import MultiprocessingSampler
folder = tempfile.TemporaryDirectory()
atexit.register(print, "the script's own end")
weakref.finalize(gymnasium, print, "the script's own finalizer")
with MultiprocessingSampler("random", "CartPole-v1", n_workers=2, engine="queues", start_method="fork") as sampler:
    sampler.obtain_trajectories(2)
print("a folder" if os.path.isdir(folder.name) else "no folder", flush=True)
"""


def test_a_forked_worker_does_not_run_what_its_script_registered():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == ["a folder", "the script's own end", "the script's own finalizer"]


class WithChildren(gymnasium.Wrapper):
    """Has a process of `multiprocessing` that never ends, and a temporary folder of that library."""

    def __init__(self, folder):
        import multiprocessing.util

        super().__init__(Steps())
        tempfile.tempdir = str(folder)
        Path(multiprocessing.util.get_temp_dir(), "file").touch()
        multiprocessing.get_context("fork").Process(target=threading.Event().wait).start()


def test_a_child_process_that_never_ends_keeps_no_worker_waiting_and_temporary_folders_go(tmp_path, caplog):
    with WAYS["processes"](partial(WithChildren, tmp_path), limits=Limits(close_timeout=300)) as one:
        use(one)
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []
    assert "close_timeout" not in caplog.text


ENDS = """
    import os, signal, sys
    from functools import partial
    from tests.faults.test_exit_handlers import Leaving, WAYS, use
    one = WAYS[sys.argv[1]](partial(Leaving, sys.argv[2]))
    use(one)
    if sys.argv[3] == "interrupt":
        with one:
            signal.raise_signal(signal.SIGINT)
            use(one)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["none", "interrupt"])
@pytest.mark.parametrize("way", ["processes", "manager", "spawn"])
def test_exit_handlers_run_where_nothing_closes_a_sampler_and_after_ctrl_c(way, end, tmp_path):
    code = textwrap.dedent(ENDS)
    done = subprocess.run([sys.executable, "-c", code, way, tmp_path, end], capture_output=True, text=True)
    assert (done.returncode != 0) == (end == "interrupt"), done.stderr
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"finalizer", "first"}
