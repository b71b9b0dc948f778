"""Workers that make no progress: asleep, holding the interpreter's lock, or stopped."""

import functools
import os
import signal
import threading
import time
from typing import Any

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.processes import stacks
from streamsampler.errors import RolloutError
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from tests.faults.conftest import kill_only_hung, state_of
from tests.faults.test_ends import gone_within
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.never_hangs import alarm
from tests.patience import PATIENCE

KINDS = ["hang", "hang_gil", "stop"]
PLACES = ["construct", "reset", "step", "close", "agent_construct", "agent_reset", "action", "agent_update"]
IN_TRAJECTORIES = {"reset", "step", "agent_reset", "action"}
QUICK = {("step", "hang_gil")}


def case(where, kind):
    return pytest.param(where, kind, marks=() if (where, kind) in QUICK else pytest.mark.slow)


@pytest.mark.parametrize(("where", "kind"), [case(where, kind) for where in PLACES for kind in KINDS])
def test_a_worker_that_hangs_is_replaced(tmp_path, where, kind):
    trajectory = 3 if where in IN_TRAJECTORIES else None
    faults = Faults(tmp_path, Fault(kind, where, trajectory=trajectory, step=3, version=2), seed=SEED)
    env = faults.env(ScriptedEnv)
    timeouts: dict[str, Any] = {"step_timeout": 0.4, "construction_timeout": 0.8}
    # One worker: of two, the other one might not wait for it, but run the trajectory a second time.
    with MultiprocessingSampler(faults.agent(ScriptedAgent()), env, n_workers=1, seed=SEED, **timeouts) as sampler:
        kill_only_hung(sampler, faults.pids)
        assert calls(sampler, 2, env_update=env) == undisturbed(2)
        assert sampler.stats.hangs == sampler.stats.restarts == faults.fired() == 1
        assert faults.pids()[0] not in sampler.worker_pids()


@pytest.mark.slow
def test_stacks_are_asked_for_without_a_process_number(tmp_path, monkeypatch, caplog):
    """The number may be another process's by then; the kernel's descriptor of the worker may not."""
    faults = Faults(tmp_path, Fault("hang", trajectory=3), seed=SEED)
    options: dict[str, Any] = {"n_workers": 1, "seed": SEED, "step_timeout": 0.4}
    with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), **options) as sampler:
        kill_only_hung(sampler, faults.pids)
        with monkeypatch.context() as patch:
            patch.delattr(os, "kill")
            patch.setattr(stacks, "_FIRST_SECONDS", PATIENCE)
            assert calls(sampler) == undisturbed()
    assert "most recent call first" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["hang", "hang_gil"])
def test_a_hang_in_close_does_not_hold_up_the_end(tmp_path, kind):
    faults = Faults(tmp_path, Fault(kind, "close", times=None))
    options: dict[str, Any] = {"n_workers": 2, "seed": SEED, "close_timeout": 1.0}
    with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), **options) as sampler:
        assert calls(sampler) == undisturbed()
        pids = sampler.worker_pids()
        begin = time.monotonic()
    assert time.monotonic() - begin < 30, "it would never end"
    assert faults.fired() >= 1
    assert gone_within(pids, 0)


def test_a_worker_that_was_stopped_and_goes_on(tmp_path):
    """Without a time limit that is no loss."""
    faults = Faults(tmp_path, Fault("stop", trajectory=3), seed=SEED)

    def go_on():
        faults.wait(1, PATIENCE)
        (pid,) = faults.pids()
        while state_of(pid) != "T":  # only its parent is notified of the stop
            os.sched_yield()
        os.kill(pid, signal.SIGCONT)

    with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), n_workers=2, seed=SEED) as sampler:
        helper = threading.Thread(target=go_on)
        helper.start()
        assert calls(sampler) == undisturbed()
        helper.join()
        assert faults.fired() == 1
        assert sampler.stats.restarts == 0


ENDLESS = functools.partial(ScriptedEnv, 10**9, seconds=0.0005)


@pytest.mark.slow
def test_an_endless_trajectory_is_no_hang():
    """It makes progress; the user's Ctrl-C ends it, and the sampler is usable afterwards."""
    with MultiprocessingSampler(ScriptedAgent(), ENDLESS, n_workers=2, seed=SEED, step_timeout=5.0) as sampler:
        with alarm(signal.default_int_handler):
            signal.setitimer(signal.ITIMER_REAL, 12.0)
            with pytest.raises(KeyboardInterrupt):
                sampler.obtain_trajectories(2)
        assert sampler.stats.hangs == sampler.stats.restarts == 0
        batch = sampler.obtain_trajectories(8, agent_update={"offset": 1}, env_update=ScriptedEnv)
        assert batch == undisturbed(2)[1]


def test_an_endless_trajectory_ends_where_the_user_says():
    options: dict[str, Any] = {"n_workers": 2, "seed": SEED, "max_episode_length": 30, "step_timeout": PATIENCE}
    with MultiprocessingSampler(ScriptedAgent(), ENDLESS, **options) as sampler:
        batch = sampler.obtain_trajectories(4)
        assert list(batch.lengths) == [30] * 4
        assert batch.truncated.all()


def test_an_exception_is_no_hang(tmp_path):
    faults = Faults(tmp_path, Fault("raise", trajectory=1, times=None), seed=SEED)
    options: dict[str, Any] = {"n_workers": 2, "seed": SEED, "step_timeout": PATIENCE}
    with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), **options) as sampler:
        with pytest.raises(RolloutError, match="injected in step"):
            calls(sampler)
        assert sampler.stats.hangs == 0
