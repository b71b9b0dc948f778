"""The engine `queues`: what it cannot do it says, and no half message, however it came about, is waited for."""

import contextlib
import functools
import gc
import logging
import multiprocessing
import multiprocessing.heap
import multiprocessing.spawn
import os
import signal
import threading
from typing import Any

import pytest

from streamsampler import Limits, MultiprocessingSampler, RaySampler
from streamsampler.engines import queue_link, queues
from streamsampler.engines.registry import ENGINES
from streamsampler.errors import SamplerError, UsageError
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import open_files
from tests.faults.conftest import kill_only_hung
from tests.faults.test_ends import gone
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.patience import PATIENCE

LARGE = (20_000,)  # an observation is larger than what a pipe holds


def make(envs=ScriptedEnv, n_workers=1, start_method="fork", **options):
    return MultiprocessingSampler(
        ScriptedAgent(), envs, n_workers=n_workers, seed=SEED, engine="queues", start_method=start_method, **options
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"engine": "queues", "limits": Limits(max_worker_memory=1 << 30)},
            "takes no limits.max_worker_memory: not every system reports",
        ),
        (
            {"start_method": "spawn", "limits": Limits(max_worker_memory=1 << 30)},
            r'start_method="spawn" takes no .* two out',
        ),
        ({"engine": "queue"}, f"engine must be one of {', '.join(ENGINES)}, got 'queue'"),
        ({"engine": "processes", "start_method": "fork"}, "does not support start_method='fork': .*engine=\"queues\""),
    ],
)
def test_what_it_cannot_do_it_says_at_construction(options, words):
    with pytest.raises(UsageError, match=words):
        MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, **options)


def test_ray_has_no_agent_in_the_parent_and_says_why():
    with pytest.raises(UsageError, match="'inference': only MultiprocessingSampler has it"):
        RaySampler(ScriptedAgent(), ScriptedEnv, inference="parent")  # type: ignore[call-arg]


def test_start_methods_that_only_it_has_choose_it():
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, start_method="fork") as sampler:
        assert isinstance(sampler._life.session.engine, queues.QueueEngine)


def in_a_daemonic_process():
    for options in ({}, {"inference": "parent", "worker_args": {"n_envs": 2}}):
        with pytest.raises(SamplerError, match="daemon=False"):
            make(**options)


def test_a_daemonic_process_is_told_why_it_cannot():
    process = multiprocessing.get_context("fork").Process(target=in_a_daemonic_process, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("what", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_or_stops_in_the_middle_of_an_answer_is_noticed(what):
    """One stops whose code holds the interpreter's lock: the rest of the answer never comes."""
    seen: list[str] = []
    signalled: list[int] = []
    limits = {"step_timeout": 0.4, "limits": Limits(construction_timeout=0.4)} if what == signal.SIGSTOP else {}
    with make(functools.partial(ScriptedEnv, shape=LARGE), **limits) as sampler:
        link = sampler._life.session.engine._links[0]
        get = link._answers.get

        def interrupted():
            """Send the worker a signal once it has written a part of its next answer, but not all of it."""
            link._answers.get = get
            os.kill(link.process.pid, what)
            signalled.append(link.process.pid)
            os.waitid(os.P_PID, link.process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            try:
                return get()
            except (EOFError, OSError):  # of the message, or of what comes after its length
                seen.append("half a message")
                raise

        link._answers.get = interrupted
        if limits:
            kill_only_hung(sampler, lambda: signalled)
        assert calls(sampler) == undisturbed(shape=LARGE)
        assert (sampler.stats.restarts, sampler.stats.hangs) == (1, 1 if limits else 0)
    assert seen == ["half a message"]


class Forks(ScriptedEnv):
    """Leaves a copy of its worker behind, which does nothing, and kills the worker, once."""

    def __init__(self, path):
        super().__init__(5)
        self.path = path

    def step(self, action):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
            if (copy := os.fork()) == 0:
                signal.pause()
            self.path.write_text(str(copy))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_copy_of_a_dead_worker_does_not_hide_its_death(tmp_path, method):
    with make(functools.partial(Forks, tmp_path / "forked"), start_method=method) as sampler:
        assert calls(sampler) == undisturbed()
        assert sampler.stats.restarts == 1
    assert gone([int((tmp_path / "forked").read_text())])


class LogsAtTheEnd(ScriptedEnv):
    def close(self):
        for number in range(100):
            logging.getLogger("at the end").warning("%d %s", number, 9_000 * "x")


@pytest.mark.usefixtures("patient")
def test_what_is_sent_last_arrives(caplog):
    """More than a pipe holds: the worker ends when the rest of it is written, too."""
    make(LogsAtTheEnd).close()
    with make(LogsAtTheEnd, limits=Limits(close_timeout=PATIENCE)) as sampler:
        sampler.obtain_trajectories(1)
    assert sum(record.name == "at the end" for record in caplog.records) == 100


@pytest.mark.usefixtures("patient")
def test_close_while_a_worker_is_being_started(monkeypatch):
    """The call of another thread starts it; a start that takes long is not waited for."""
    monkeypatch.setattr("streamsampler.samplers.life._CANCEL_SECONDS", 0.05)
    started, go_on, raised = threading.Event(), threading.Event(), []
    make().close()
    gc.collect()
    files, children = open_files(), set(multiprocessing.active_children())
    sampler = make(n_workers=2)
    engine: Any = sampler._life.session.engine
    new_link, links = engine._new_link, []

    def new_link_slowly(number):
        started.set()
        go_on.wait()
        links.append(new_link(number))
        return links[-1]

    def obtain():
        try:
            sampler.obtain_trajectories(8)
        except SamplerError as error:
            raised.append(error)

    monkeypatch.setattr(engine, "_new_link", new_link_slowly)
    os.kill(sampler.worker_pids()[0], signal.SIGKILL)
    # The first that the call sees is this death, while there is work: or no worker would be started.
    engine._links[0]._reader.join()
    call = threading.Thread(target=obtain)
    call.start()
    started.wait()
    sampler.close()
    go_on.set()
    call.join()
    assert len(raised) == len(links) == 1
    assert open_files() <= files, "what an earlier test left may be closed meanwhile"
    assert set(multiprocessing.active_children()) <= children


def test_a_closed_sampler_keeps_no_shared_memory():
    """Also while somebody still has it."""

    def taken():
        heap: Any = multiprocessing.heap.BufferWrapper
        return sum(len(blocks) for blocks in heap._heap._allocated_blocks.values())

    gc.collect()
    gc.disable()  # or what an earlier test left might be given back meanwhile
    try:
        before = taken()
        sampler = make()
        assert taken() == before + 1
        sampler.close()
        assert taken() == before
    finally:
        gc.enable()


def test_only_the_threads_own_processes_are_started_without_the_main_module():
    prepared = []
    with queue_link._main_module_left_out():
        prepared.append(multiprocessing.spawn.get_preparation_data("ours"))
        other = threading.Thread(target=lambda: prepared.append(multiprocessing.spawn.get_preparation_data("theirs")))
        other.start()
        other.join()
    prepared.append(multiprocessing.spawn.get_preparation_data("later"))
    assert [any(key.startswith("init_main") for key in data) for data in prepared] == [False, True, True]


@pytest.mark.slow
def test_a_stopped_worker_does_not_hold_up_the_end():
    """It would never end; the test has a limit."""
    sampler = make(functools.partial(ScriptedEnv, shape=LARGE), n_workers=2)
    assert calls(sampler) == undisturbed(shape=LARGE)
    os.kill(sampler.worker_pids()[0], signal.SIGSTOP)
    sampler.close()
