"""Samplers in several threads whose environments and agents draw from global generators: the bits of one alone."""

import os
import random
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.errors import SamplerError
from streamsampler.workers import turns
from tests.scripted.envs import Steps

AGENT: Any = lambda observation: random.randrange(100)  # noqa: E731
PARENT: Any = partial(MultiprocessingSampler, n_workers=1, inference="parent", worker_args={"n_envs": 1}, seed=7)
LOCAL: Any = partial(LocalSampler, AGENT, seed=7)


class Drawing(Steps):
    """Draws its rewards from global generators."""

    def __init__(self, meanwhile=None):
        super().__init__(6)
        self.meanwhile = meanwhile

    def step(self, action):
        observation, _, *rest = super().step(action)
        if self.meanwhile is not None and self.t == 3:
            MEANWHILE[self.meanwhile]()
        return observation, random.random() + np.random.random(), *rest


MEANWHILE: dict[str, Any] = {}
"""What environments call by name: they are copied, and what they call is not."""


def seen(batch):
    return batch.rewards.tolist(), batch.actions.tolist()


def alone(make, env=Drawing, seed=7):
    with make(env, seed=seed) as sampler:
        return seen(sampler.obtain_trajectories(4))


class Watched:
    """A lock that says when a thread is about to wait for it."""

    def __init__(self):
        self.lock, self.is_waited_for = threading.RLock(), threading.Event()

    def acquire(self, timeout):
        if self.lock.acquire(blocking=False):
            return True
        self.is_waited_for.set()
        return self.lock.acquire(timeout=timeout)

    def release(self):
        self.lock.release()


class Second:
    """A second sampler, in a thread.

    If threads did not take turns, it would be in the middle of a trajectory while the first one goes on.
    """

    def __init__(self, monkeypatch):
        self.watched, self.found, self.first_has_ended = Watched(), [], threading.Event()
        monkeypatch.setattr(turns._turn, "lock", self.watched)
        self.thread = None

    def begin(self, sample):
        """Begin in the first one's trajectory, once; wait until it has begun with its own, or waits for its turn."""
        if self.thread is None:
            self.thread = threading.Thread(target=lambda: self.found.append(sample()))
            self.thread.start()
            assert self.watched.is_waited_for.wait(60)

    def pause(self):
        """Wait, in the second one's trajectory, for the end of the first one, unless there are turns."""
        if not self.watched.is_waited_for.is_set():
            self.watched.is_waited_for.set()
            assert self.first_has_ended.wait(60)

    def result(self):
        self.first_has_ended.set()
        self.thread.join()
        return self.found[0]


@pytest.fixture
def second(monkeypatch):
    return Second(monkeypatch)


def test_two_samplers_in_two_threads_draw_as_each_alone(second, monkeypatch):
    expected, of_second = alone(LOCAL), alone(LOCAL, seed=8)
    paused = partial(alone, LOCAL, partial(Drawing, "pause"), seed=8)
    monkeypatch.setitem(MEANWHILE, "begin", lambda: second.begin(paused))
    monkeypatch.setitem(MEANWHILE, "pause", second.pause)
    with LOCAL(partial(Drawing, "begin"), check=None) as sampler:
        assert seen(sampler.obtain_trajectories(4)) == expected
    assert second.result() == of_second


def test_two_samplers_in_two_threads_whose_agents_draw_here_draw_as_each_alone(second):
    env = partial(Steps, 6)
    expected, of_second = alone(partial(PARENT, AGENT), env), alone(partial(PARENT, AGENT), env, seed=8)

    def pausing(observation):
        if observation[0] == 3:
            second.pause()
        return AGENT(observation)

    def act(observation):
        action = AGENT(observation)
        if observation[0] == 3:
            second.begin(lambda: alone(partial(PARENT, pausing), env, seed=8))
        return action

    with PARENT(act, env, check=None) as sampler:
        assert seen(sampler.obtain_trajectories(4)) == expected
    assert second.result() == of_second


def test_the_samplers_of_a_stream_in_two_threads_take_turns():
    """A stream that is not read holds no turn: another thread samples, and closes it."""
    expected = alone(LOCAL)
    with LOCAL(Drawing) as one, LOCAL(Drawing) as other:
        stream = one.stream()
        next(stream)
        found: list[Any] = []

        def use():
            found.append(seen(other.obtain_trajectories(4)))
            stream.close()

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert found == [expected]
        one.obtain_trajectories(1)


def test_a_sampler_in_an_environment_of_another_one_has_the_turn(monkeypatch):
    expected = alone(LOCAL)
    inner: list[Any] = []
    monkeypatch.setitem(MEANWHILE, "sample", lambda: inner.append(alone(LOCAL)))
    with LOCAL(partial(Drawing, "sample"), check=None) as sampler:
        assert seen(sampler.obtain_trajectories(4)) == expected
    assert inner == 4 * [expected]


def test_a_thread_that_the_one_with_the_turn_waits_for_gets_an_error(monkeypatch):
    """It would wait for ever: C5."""
    monkeypatch.setattr(turns, "_LOOK_SECONDS", 0.01)
    raised: list[Any] = []

    def sample():
        try:
            alone(LOCAL)
        except SamplerError as error:
            raised.append(str(error))

    def wait():
        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()

    monkeypatch.setitem(MEANWHILE, "wait", wait)
    with LOCAL(partial(Drawing, "wait"), check=None) as sampler:
        sampler.obtain_trajectories(1)
    assert len(raised) == 1
    assert f"which thread {threading.current_thread().name!r} uses" in raised[0]
    assert "MultiprocessingSampler" in raised[0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_that_it_does_not_have():
    has_turn, forked = threading.Event(), threading.Event()

    def hold():
        with turns.turn():
            has_turn.set()
            forked.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has_turn.wait(60)
    pid = os.fork()
    if not pid:
        with turns.turn():
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    forked.set()
    thread.join()
