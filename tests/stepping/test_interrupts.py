"""Ctrl-C at any line of a call: the manager can be used again, and mixes nothing up."""

import os
import sys
from typing import Any, ClassVar

import numpy as np
import pytest

import streamsampler.stepping
from streamsampler.engines import linked
from streamsampler.engines.launch import start
from streamsampler.engines.processes import engine, links
from streamsampler.errors import UsageError
from streamsampler.stepping.ledger import EnvState
from streamsampler.stepping.managers import SerialEnvManager
from tests.stepping.conftest import MANAGERS
from tests.stepping.environments import Counting
from tests.stepping.test_together import kill_all

CODE = (os.path.dirname(streamsampler.stepping.__file__), os.path.dirname(engine.__file__), linked.__file__)


def interrupted_at(line, call):
    """Raise KeyboardInterrupt when so many lines of the package have run; return whether the call took as many."""
    left = line

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left < 0  # where something has caught it


def check_goes_on(manager):
    """Step and reset the manager: its data are those of its seeds and actions."""
    try:
        steps = manager.recv_from() if EnvState.STEPPING in manager.states else manager.step(np.array([1, 2]))
    except UsageError:
        steps = None  # some have failed, or have no result to hand out
    if steps is not None:
        goes_on = ~steps.failed
        assert steps.observations[goes_on, 1].tolist() == steps.timesteps[goes_on].tolist()
    assert manager.reset(seed=[5, 6]).observations.tolist() == [[5, 0], [6, 0]]
    steps = manager.step(np.array([1, 2]))
    assert steps.observations.tolist() == [[5, 1], [6, 1]]
    assert steps.rewards.tolist() == [1, 2]
    assert steps.timesteps.tolist() == [1, 1]
    assert manager.step(np.array([3, 4])).rewards.tolist() == [3, 4]


CALLS: dict[str, Any] = {
    "step": lambda m: m.step(np.array([1, 2])),
    "reset": lambda m: m.reset(seed=[1, 2], options={"a": 1}),
    "call": lambda m: m.call("set_level", 3),
    "stats": lambda m: m.stats,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "on_failure", ["restore", *(pytest.param(it, marks=pytest.mark.slow) for it in ("reset", "raise"))]
)
@pytest.mark.slow
def test_in_this_process(name, on_failure):
    with SerialEnvManager(Counting, n_envs=2, seed=0, on_failure=on_failure) as manager:
        manager.reset()
        line = 0
        while interrupted_at(line, lambda: CALLS[name](manager)):
            check_goes_on(manager)
            line += 1
        assert line > 5
        assert manager.failures == 0


@pytest.mark.slow  # which lines run depends on what has arrived
@pytest.mark.parametrize(("name", "stride"), [("step", 41), *((name, 3) for name in CALLS)])
def test_in_processes(name, stride):
    with MANAGERS["processes"](Counting, n_envs=2, seed=0) as manager:
        manager.reset()
        line = 0
        while interrupted_at(line, lambda: CALLS[name](manager)):
            check_goes_on(manager)
            line += stride
        assert line > 5
        assert manager.failures == 0


class Interrupted(Counting):
    """Is interrupted by Ctrl-C, once, in a step."""

    times: ClassVar[list[None]] = []

    def step(self, action):
        if action == 8 and self.times:
            self.times.pop()
            raise KeyboardInterrupt
        return super().step(action)


@pytest.mark.parametrize("on_failure", ["restore", "reset", "raise"])
def test_in_a_step_of_an_environment(on_failure):
    with SerialEnvManager(Interrupted, n_envs=3, seed=0, on_failure=on_failure) as manager:
        manager.reset()
        manager.step(np.array([1, 1, 1]))
        Interrupted.times.append(None)
        with pytest.raises(KeyboardInterrupt):
            manager.step(np.array([1, 8, 1]))
        assert manager.reset().timesteps.tolist() == [0, 0, 0]
        assert manager.step(np.array([1, 1, 1])).timesteps.tolist() == [1, 1, 1]


def test_a_worker_that_cannot_be_started_again_at_once(monkeypatch):
    """The call that needs it is left in the middle as well."""
    failures = [OSError("too many open files")]

    def launched(*arguments):
        if failures:
            raise failures.pop()
        return start.launch(*arguments)

    with MANAGERS["processes"](Counting, n_envs=2, seed=0) as manager:
        manager.reset()
        kill_all(manager, 1)
        monkeypatch.setattr(links, "launch", launched)
        with pytest.raises(OSError, match="too many open files"):
            manager.step(np.array([1, 2]))
        check_goes_on(manager)


def test_another_thread_may_ask_for_process_ids():
    """While the manager is in the middle of a call, it is not taken for interrupted."""
    with MANAGERS["processes"](Counting, n_envs=2, seed=0) as manager:
        manager.reset()
        before = manager.worker_pids()
        manager._transport.in_hand = True
        assert manager.worker_pids() == before
        manager._transport.in_hand = False
        assert manager.step(np.array([1, 2])).timesteps.tolist() == [1, 1]
        assert manager.worker_pids() == before
