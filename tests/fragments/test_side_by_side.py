"""Fragments of environments that take each timestep together."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler, RandomAgent, VecWorker
from streamsampler.errors import RolloutError
from streamsampler.testing import Fault, Faults
from tests.fragments.agents import Drawn, Mixing, Restorable, Sticky
from tests.scripted.agents import always_zero
from tests.scripted.envs import Rough

SEED = 99
OPTIONS: dict[str, Any] = {"seed": SEED, "worker_class": VecWorker, "worker_args": {"n_envs": 3}}


AGENTS: list[Any] = [Mixing, Restorable, *(pytest.param(it, marks=pytest.mark.slow) for it in (Drawn, RandomAgent))]


def one_call(sampler: Any, agent: Any, call: int) -> Any:
    update = None if agent is RandomAgent else np.array([0.0, 0.0, 0.3, 0.1 * call] if agent is Restorable else [call])
    return sampler.obtain_fragments(12 if call != 3 else 25, 8, agent_update=update)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("n_workers", [*(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3)), 7])
def test_any_number_of_workers_gives_the_same(agent, n_workers):
    with (
        LocalSampler(agent(), Sticky, **OPTIONS) as one,
        LocalSampler(agent(), Sticky, n_workers=n_workers, **OPTIONS) as several,
    ):
        for call in range(10):
            assert one_call(several, agent, call) == one_call(one, agent, call)


@pytest.mark.parametrize("agent", [Restorable, RandomAgent])
def test_the_same_as_one_after_the_other(agent):
    """Where the agent is asked row by row, or draws for each row from its episode's seed."""
    with LocalSampler(agent(), Sticky, **OPTIONS) as vec, LocalSampler(agent(), Sticky, seed=SEED) as default:
        for call in range(5):
            assert one_call(vec, agent, call) == one_call(default, agent, call)


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.slow
def test_groups_of_one_environment(n_workers):
    options: dict[str, Any] = {**OPTIONS, "worker_args": {"n_envs": 1}}
    with (
        LocalSampler(Restorable(), Sticky, n_workers=n_workers, **options) as vec,
        LocalSampler(Restorable(), Sticky, seed=SEED) as default,
        MultiprocessingSampler(Restorable(), Sticky, n_workers=n_workers, **options) as disturbed,
    ):
        for call in range(3):
            expected = one_call(default, Restorable, call)
            assert one_call(vec, Restorable, call) == one_call(disturbed, Restorable, call) == expected
            os.kill(disturbed.worker_pids()[0], signal.SIGKILL)


@pytest.mark.parametrize("agent", AGENTS)
def test_lost_episodes_are_restored(agent):
    with (
        LocalSampler(agent(), Sticky, **OPTIONS) as reference,
        MultiprocessingSampler(agent(), Sticky, n_workers=2, **OPTIONS) as sampler,
    ):
        for call in range(5):
            expected = one_call(reference, agent, call)
            assert one_call(sampler, agent, call) == expected
            for pid in sampler.worker_pids()[call % 2 :]:
                os.kill(pid, signal.SIGKILL)
        assert sampler.stats.restarts >= 5


def test_the_limit_truncates_over_calls():
    with (
        LocalSampler(Restorable(), "CartPole-v1", max_episode_length=7, **OPTIONS) as vec,
        LocalSampler(Restorable(), "CartPole-v1", max_episode_length=7, seed=SEED) as default,
    ):
        for _ in range(4):
            assert vec.obtain_fragments(5, 4) == default.obtain_fragments(5, 4)


def test_exceptions_end_the_episodes():
    with LocalSampler(always_zero, Rough, **OPTIONS) as sampler:
        with pytest.raises(RolloutError, match="failed while stepping"):
            sampler.obtain_fragments(2000, 4)
        assert not sampler.obtain_fragments(1, 4).continued.any()


def test_a_vector_environment_is_refused():
    env = SyncVectorEnv([Sticky] * 3)
    refused = pytest.raises(RolloutError, match="a vector environment runs no fragments")
    with LocalSampler(always_zero, env, **OPTIONS) as sampler, refused:
        sampler.obtain_fragments(5, 3)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.slow
def test_a_group_that_was_complete_when_its_worker_was_lost_goes_on_in_the_next_call(replaced, tmp_path):
    """The worker that replaces the lost one runs only the other group again, and the complete one a call later."""
    with LocalSampler(Drawn(), Sticky, **OPTIONS) as reference:
        expected = [three_calls(reference, call, replaced) for call in range(3)]
    second = expected[1]
    (one, *_) = np.flatnonzero(second.continued & (second.env_numbers >= 3)).tolist()
    faults = Faults(tmp_path, Fault("kill", "step", trajectory=int(second.indices[one]), step=10), seed=SEED)
    with MultiprocessingSampler(Drawn(), faults.env(Sticky), n_workers=1, **OPTIONS) as sampler:
        for call in range(3):
            assert three_calls(sampler, call, replaced) == expected[call]
    assert faults.fired() == 1


def three_calls(sampler: Any, call: int, replaced: bool) -> Any:
    return sampler.obtain_fragments(9, 6, agent_update=Drawn() if replaced and call == 2 else None)
