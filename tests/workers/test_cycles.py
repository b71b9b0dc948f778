"""What is raised is freed with its last reference: its frames hold memory, some of which is shared with processes.

An exception in a variable of a function that it has left is a cycle: of itself, its traceback and that frame.
"""

import gc
import weakref
from collections.abc import Iterator
from types import GeneratorType
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from streamsampler import DefaultWorker, LocalSampler
from streamsampler.errors import RolloutError
from streamsampler.rollouts.script import trajectory
from streamsampler.workers import purity
from streamsampler.workers.vec.worker import VecWorker
from tests.tiers import mostly_slow


class BrokenError(Exception):
    """An exception that is told from others."""


class Breaks(gymnasium.Env):
    """Raises in its first reset or step."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    raised: ClassVar["list[weakref.ref[Exception]]"] = []

    def __init__(self, place: str) -> None:
        self.place = place

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.fail("reset")
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.fail("step")
        return np.zeros(1, np.float32), 1.0, True, False, {}

    def fail(self, place: str) -> None:
        if place == self.place:
            error = BrokenError("broken")
            self.raised.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("place", mostly_slow(["reset", "step"]))
@pytest.mark.parametrize("worker_class", mostly_slow([DefaultWorker, VecWorker]))
def test_what_a_check_meets_is_freed(worker_class, place, uncollected):
    Breaks.raised.clear()
    sampler = LocalSampler("random", Breaks(place), worker_class=worker_class)
    with sampler, pytest.raises(RolloutError):
        sampler.obtain_trajectories(1)
    in_check, _ = Breaks.raised
    assert in_check() is None


@pytest.mark.parametrize("worker_class", mostly_slow([DefaultWorker, VecWorker]))
def test_what_breaks_a_check_off_is_freed(worker_class, uncollected, monkeypatch):
    monkeypatch.setattr(purity, "SECONDS", 0.0)
    with LocalSampler("random", Breaks("nowhere"), worker_class=worker_class) as sampler:
        sampler.obtain_trajectories(1)
    # By the type: `isinstance` asks an object for its `__class__`, and proxies of other packages warn then.
    assert not [one for one in gc.get_objects() if issubclass(type(one), purity.CheckStopped)]


def test_scripts_that_a_check_leaves_are_closed(uncollected, monkeypatch):
    """Their frames have observations, which may lie in memory that is shared with a process."""
    monkeypatch.setattr(purity, "TIMESTEPS", 0)  # a check runs the resets, and no more
    options: Any = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
    with LocalSampler("random", Breaks("nowhere"), **options) as sampler:
        sampler.obtain_trajectories(1)
        generators = [one for one in gc.get_objects() if type(one) is GeneratorType]
        assert [one for one in generators if one.gi_code is trajectory.__code__ and one.gi_frame is not None] == []
