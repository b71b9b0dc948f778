"""A factory that returns the same environment again is refused where several are to be stepped at the same time."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError, UsageError
from tests.fragments.agents import Restorable, Sticky
from tests.scripted.envs import Steps

SEED = 1
TWO: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
ONE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 1}}
the_only = Sticky()


def only() -> Sticky:
    return the_only


def wrapped() -> Any:
    return TimeLimit(the_only, 100)


@pytest.mark.parametrize("env", [only, wrapped])
@pytest.mark.parametrize("options", [{}, {"n_workers": 3}, ONE, {**ONE, "n_workers": 3}])
def test_fragments(env, options):
    with LocalSampler(Restorable(), env, seed=SEED, check=None, **options) as sampler:
        for _ in range(2):
            with pytest.raises(RolloutError, match=f"{env.__name__} must make a new environment each time") as caught:
                sampler.obtain_fragments(10, 3)
            assert isinstance(caught.value.original, UsageError)
            assert caught.value.phase == "making the environment"
        assert sampler.obtain_trajectories(2).n_trajectories == 2


@pytest.mark.parametrize("env", [only, wrapped])
def test_whole_trajectories_side_by_side(env):
    with (
        LocalSampler(Restorable(), env, seed=SEED, check=None, **TWO) as sampler,
        pytest.raises(RolloutError, match=f"{env.__name__} must make a new environment each time"),
    ):
        sampler.obtain_trajectories(3)


@pytest.mark.parametrize("options", [{}, {"n_workers": 3}, ONE])
def test_one_environment_alone_goes_on(options):
    """One is enough for one environment of fragments, however often other ones begin, and for whole trajectories."""
    with (
        LocalSampler(Restorable(), only, seed=SEED, check=None, **options) as sampler,
        LocalSampler(Restorable(), Sticky, seed=SEED) as reference,
    ):
        for _ in range(2):
            for sampled in (sampler, reference):
                sampled.obtain_trajectories(4)
            for _ in range(2):
                assert sampler.obtain_fragments(7, 1) == reference.obtain_fragments(7, 1)
            for sampled in (sampler, reference):
                sampled.obtain_fragments(7, 1, env_update=only if sampled is sampler else Sticky)
    # It is free again.
    with LocalSampler(Restorable(), only, seed=SEED, check=None, **options) as sampler:
        sampler.obtain_fragments(7, 1)


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.slow), TWO])
def test_processes_have_one_each(options):
    with MultiprocessingSampler(Restorable(), only, seed=SEED, n_workers=2, check=None, **options) as sampler:
        if not options:
            with LocalSampler(Restorable(), Sticky, seed=SEED) as reference:
                assert sampler.obtain_fragments(10, 2) == reference.obtain_fragments(10, 2)
        with pytest.raises(RolloutError, match="only must make a new environment each time"):
            sampler.obtain_fragments(10, 3)


@pytest.mark.parametrize("options", [{}, {"n_workers": 2}, TWO])
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.slow
def test_an_environment_that_a_function_brings_along_is_copied(options, wraps):
    env = gymnasium.make("CartPole-v1")
    with (
        LocalSampler(Restorable(), lambda: TimeLimit(env, 500) if wraps else env, seed=SEED, **options) as sampler,
        LocalSampler(Restorable(), "CartPole-v1", seed=SEED, **options) as reference,
    ):
        for _ in range(2):
            assert sampler.obtain_fragments(9, 4) == reference.obtain_fragments(9, 4)
        assert sampler.obtain_trajectories(9) == reference.obtain_trajectories(9)


class Closing(Steps):
    """Counts those that are open."""

    n_open = 0

    def __init__(self) -> None:
        super().__init__(5)
        Closing.n_open += 1

    def close(self) -> None:
        Closing.n_open -= 1


@pytest.mark.parametrize(("options", "n_made"), [({}, 5), ({"n_workers": 2}, 5), (TWO, 6)])
def test_all_environments_are_closed(options, n_made):
    """Of those that a worker makes itself some may have nothing to do."""
    with LocalSampler("random", Closing, seed=SEED, check=None, **options) as sampler:
        sampler.obtain_fragments(3, 5)
        assert Closing.n_open in (5, n_made)
        sampler.obtain_fragments(3, 2)
        sampler.obtain_trajectories(1)
    assert Closing.n_open == 0
