"""What a signal handler of the caller raises passes as itself, in every kind of sampler and wherever it comes."""

import os
import signal
import threading
from functools import partial
from typing import Any

import pytest

from streamsampler import Limits, LocalSampler, MultiprocessingSampler, VecWorker
from tests.scripted.envs import Steps

LOCAL: Any = partial(LocalSampler, "random", seed=1)
PARALLEL: Any = partial(MultiprocessingSampler, "random", n_workers=1, seed=1)


class TimeIsUp(BaseException):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def handler():
    def raise_it(number, frame):
        raise TimeIsUp

    before = signal.signal(signal.SIGUSR1, raise_it)
    yield
    signal.signal(signal.SIGUSR1, before)


class Signals(Steps):
    """Lets the caller get a signal in the second trajectory, at a chosen place.

    Args:
        where: In "make", "reset", "step" or "close".
        pid: The caller, if it is another process: then this one stays at this place for ever.
    """

    n_resets = 0

    def __init__(self, where, pid=None):
        super().__init__(3)
        self.where, self.pid = where, pid
        self.signal_in("make")

    def signal_in(self, where):
        if where != self.where:
            return
        if self.pid is None:
            signal.raise_signal(signal.SIGUSR1)
        else:
            os.kill(self.pid, signal.SIGUSR1)
            threading.Event().wait()

    def reset(self, **options):
        self.n_resets += 1
        if self.n_resets == 2:
            self.signal_in("reset")
        return super().reset(**options)

    def step(self, action):
        if self.n_resets == 2:
            self.signal_in("step")
        return super().step(action)

    def close(self):
        self.signal_in("close")


PLACES = ["make", "reset", "step"]
OPTIONS: dict[str, dict[str, Any]] = {
    "DefaultWorker": {},
    "VecWorker": {"worker_class": VecWorker, "worker_args": {"n_envs": 1}},
    "checked": {"check": "error"},
    "dropping": {"on_failure": "drop"},
    "restarting": {"restart_on": BaseException},
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("options", OPTIONS)
def test_in_the_thread_that_samples(where, options):
    with LOCAL(partial(Signals, where), **{"check": None, **OPTIONS[options]}) as sampler:
        with pytest.raises(TimeIsUp):
            sampler.obtain_trajectories(3)
        batch = sampler.obtain_trajectories(3, env_update=Steps)
    assert batch.lengths.tolist() == [3, 3, 3]


def test_in_the_thread_that_samples_fragments():
    with LOCAL(partial(Signals, "step"), check=None) as sampler, pytest.raises(TimeIsUp):
        sampler.obtain_fragments(12, 1)


def test_in_the_agent():
    def act(observation):
        signal.raise_signal(signal.SIGUSR1)

    with LocalSampler(act, Steps, seed=1) as sampler, pytest.raises(TimeIsUp):
        sampler.obtain_trajectories(1)


def test_while_an_environment_is_closed_here():
    sampler = LOCAL(partial(Signals, "close"))
    sampler.obtain_trajectories(1)
    with pytest.raises(TimeIsUp):
        sampler.close()
    sampler.close()


WAITED: list[tuple[str, dict[str, Any]]] = [
    ("step", {}),
    ("step", {"engine": "queues"}),
    *((where, {"inference": "parent", "worker_args": {"n_envs": 1}}) for where in PLACES),
    *((where, {"inference": "parent", "worker_args": {"n_envs": 1}, "engine": "queues"}) for where in PLACES),
]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "options"), WAITED)
def test_while_workers_are_waited_for(where, options):
    with PARALLEL(
        partial(Signals, where, os.getpid()), check=None, limits=Limits(close_timeout=0.5), **options
    ) as sampler:
        with pytest.raises(TimeIsUp):
            sampler.obtain_trajectories(3)
        batch = sampler.obtain_trajectories(3, env_update=Steps)
    assert batch.lengths.tolist() == [3, 3, 3]


@pytest.mark.parametrize("make", [LOCAL, PARALLEL])
def test_what_was_finished_can_be_salvaged(make):
    env = partial(Signals, "step", None if make is LOCAL else os.getpid())
    with (
        make(env, check=None, limits=Limits(close_timeout=0.5))
        if make is PARALLEL
        else make(env, check=None) as sampler
    ):
        with pytest.raises(TimeIsUp):
            sampler.obtain_trajectories(3)
        salvaged = sampler.salvage()
    assert salvaged is None or salvaged.lengths.tolist() == [3]
    assert salvaged is not None or make is PARALLEL


@pytest.mark.parametrize("options", [{}, {"inference": "parent", "worker_args": {"n_envs": 1}}])
def test_what_an_environment_raises_in_another_process_is_a_failure_of_it(options):
    with PARALLEL(partial(Interrupted, "no"), **options) as sampler, pytest.raises(Exception, match="TimeIsUp"):
        sampler.obtain_trajectories(1)


class Interrupted(Signals):
    """Raises what a handler would raise."""

    def step(self, action):
        raise TimeIsUp
