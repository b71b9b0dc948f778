"""Episodes that go on are restored when their worker is lost, and come out the same."""

from __future__ import annotations

import functools
import logging
import os
import random
import signal
from typing import Any

import numpy as np
import pytest

from streamsampler import DefaultWorker, LocalSampler, MultiprocessingSampler, RaySampler, VecWorker
from streamsampler.filters import RunningNorm
from streamsampler.testing import Fault, Faults
from tests.fragments.agents import (
    Counter,
    CountsRows,
    Forgetful,
    HalfState,
    Noisy,
    Recurrent,
    Restorable,
    Sticky,
    Wandering,
)
from tests.scripted.agents import Linear

SEED = 7
TWO = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
DIFFERENT = "did not lead to the same observations"


@functools.cache
def undisturbed(n_calls: int, n_timesteps: int, n_envs: int) -> list[Any]:
    with LocalSampler(Recurrent(), Sticky, seed=SEED) as sampler:
        return [one_call(sampler, call, n_timesteps, n_envs) for call in range(n_calls)]


def one_call(sampler: Any, call: int, n_timesteps: int, n_envs: int) -> Any:
    return sampler.obtain_fragments(n_timesteps, n_envs, agent_update=np.array([0.0, 0.0, 0.3, 0.1 * (call % 7)]))


def kill(pids: Any) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_killed_between_calls(n_workers):
    with MultiprocessingSampler(Recurrent(), Sticky, seed=SEED, n_workers=n_workers) as sampler:
        for call, expected in enumerate(undisturbed(6, 13, 5)):
            if call in (1, 2, 5):
                kill(sampler.worker_pids()[-2:])
            assert one_call(sampler, call, 13, 5) == expected
        assert sampler.stats.restarts >= 3


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_killed_within_calls(tmp_path, n_workers):
    faults = Faults(tmp_path, Fault("kill", "step", step=20, times=3))
    with MultiprocessingSampler(Recurrent(), faults.env(Sticky), seed=SEED, n_workers=n_workers) as sampler:
        for call, expected in enumerate(undisturbed(6, 13, 5)):
            assert one_call(sampler, call, 13, 5) == expected
        assert faults.fired() == 3
        assert sampler.stats.restarts == 3


@pytest.mark.parametrize(
    ("agent", "env", "options", "why"),
    [
        (Linear(), "CartPole-v1", {}, "no get_state"),
        (HalfState(), "CartPole-v1", {}, "no get_state"),
        (Restorable(), Forgetful, {}, DIFFERENT),
        pytest.param(Recurrent(), Noisy, {}, DIFFERENT, id="agent and environment draw from one generator"),
        pytest.param(Restorable(), Noisy, TWO, DIFFERENT, id="two environments do", marks=pytest.mark.slow),
        pytest.param(Linear(), "CartPole-v1", TWO, "no get_state", id="copies for rows", marks=pytest.mark.slow),
        pytest.param(HalfState(), "CartPole-v1", TWO, "no get_state", id="copies that take none"),
        pytest.param(CountsRows(), "CartPole-v1", TWO, "no get_state", id="a memory by rows without reset"),
    ],
)
def test_what_cannot_be_restored_begins_again(agent, env, options, why, caplog):
    with (
        caplog.at_level(logging.WARNING, "streamsampler"),
        MultiprocessingSampler(agent, env, seed=SEED, n_workers=1, check=None, **options) as sampler,
    ):
        first = sampler.obtain_fragments(5, 2)
        assert first.cut.all()
        kill(sampler.worker_pids())
        second = sampler.obtain_fragments(5, 2)
        assert sampler.stats.failed_trajectories in (2, 3)  # the ticket of the lost worker, too
    assert not second.continued.any()
    assert second.indices.tolist()[0] == 2
    assert caplog.text.count(why) == 2


@pytest.mark.parametrize("options", [{}, TWO])
@pytest.mark.slow
def test_an_agent_that_is_never_reset_goes_on_where_it_was(options):
    with (
        LocalSampler(Counter(), "CartPole-v1", seed=SEED, check=None, **options) as reference,
        MultiprocessingSampler(Counter(), "CartPole-v1", seed=SEED, n_workers=1, check=None, **options) as sampler,
    ):
        for _ in range(3):
            expected = reference.obtain_fragments(5, 2)
            assert expected.cut.all()
            assert sampler.obtain_fragments(5, 2) == expected
            kill(sampler.worker_pids())


@pytest.mark.parametrize("options", [{}, TWO])
def test_what_the_last_action_led_to_is_compared(options, caplog):
    """Of an episode of one timestep nothing else can differ."""
    with (
        caplog.at_level(logging.WARNING, "streamsampler"),
        MultiprocessingSampler("random", Wandering, seed=SEED, n_workers=1, check=None, **options) as sampler,
    ):
        sampler.obtain_fragments(1, 2)
        kill(sampler.worker_pids())
        assert not sampler.obtain_fragments(1, 2).continued.any()
    assert caplog.text.count(DIFFERENT) == 2


def test_an_environment_that_alone_draws_from_a_global_generator_is_restored():
    with (
        LocalSampler(Restorable(), Noisy, seed=SEED) as reference,
        MultiprocessingSampler(Restorable(), Noisy, seed=SEED, n_workers=1) as sampler,
    ):
        for _ in range(2):
            assert sampler.obtain_fragments(9, 3) == reference.obtain_fragments(9, 3)
            kill(sampler.worker_pids())
        assert sampler.obtain_fragments(9, 3) == reference.obtain_fragments(9, 3)


@pytest.mark.slow
def test_two_hundred_kills_over_fifty_calls():
    draw = random.Random(SEED)
    expected = undisturbed(50, 40, 7)
    kills = 0
    with MultiprocessingSampler(
        Recurrent(), Sticky, seed=SEED, n_workers=5, max_restarts=None, max_lifetime_restarts=None
    ) as sampler:
        for call in range(50):
            kill(draw.sample(sampler.worker_pids(), 4))
            kills += 4
            assert one_call(sampler, call, 40, 7) == expected[call]
        assert kills == 200


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}])
@pytest.mark.slow
def test_an_agent_that_was_replaced_begins_in_the_middle_of_restored_episodes(options):
    with (
        LocalSampler(Recurrent(), Sticky, seed=SEED, **options) as reference,
        MultiprocessingSampler(Recurrent(), Sticky, seed=SEED, n_workers=1, **options) as sampler,
    ):
        for sampled in (reference, sampler):
            sampled.obtain_fragments(9, 3)
        kill(sampler.worker_pids())
        expected = reference.obtain_fragments(9, 3, agent_update=Recurrent())
        assert expected.continued.any()
        assert sampler.obtain_fragments(9, 3, agent_update=Recurrent()) == expected
        kill(sampler.worker_pids())
        assert sampler.obtain_fragments(9, 3) == reference.obtain_fragments(9, 3)


@pytest.mark.slow
def test_the_random_agent_is_restored():
    with (
        LocalSampler("random", "Pendulum-v1", seed=SEED) as reference,
        MultiprocessingSampler("random", "Pendulum-v1", seed=SEED, n_workers=2) as sampler,
    ):
        for _ in range(3):
            assert sampler.obtain_fragments(20, 3) == reference.obtain_fragments(20, 3)
            kill(sampler.worker_pids())


@pytest.mark.extras
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_torch_agents_are_restored(env_id):
    from tests.adapters.test_torch_in_samplers import agent_for

    agent = agent_for(env_id)
    with (
        LocalSampler(agent, env_id, seed=SEED) as reference,
        MultiprocessingSampler(agent, env_id, seed=SEED, n_workers=1) as sampler,
    ):
        for _ in range(3):
            assert sampler.obtain_fragments(20, 3) == reference.obtain_fragments(20, 3)
            kill(sampler.worker_pids())


@pytest.mark.parametrize("worker_class", [pytest.param(DefaultWorker, marks=pytest.mark.slow), VecWorker])
@pytest.mark.slow
def test_filters_go_on_after_a_loss(worker_class):
    def sampler_of(make: Any, **options: Any) -> Any:
        norm = RunningNorm(clip=5.0)
        return make(Restorable(), Sticky, seed=SEED, worker_class=worker_class, observation_filter=norm, **options)

    with sampler_of(LocalSampler) as reference, sampler_of(MultiprocessingSampler, n_workers=2) as sampler:
        for call in range(4):
            expected = one_call(reference, call, 12, 9)
            assert one_call(sampler, call, 12, 9) == expected
            kill(sampler.worker_pids()[call % 2 :])


@pytest.mark.ray
@pytest.mark.extras
def test_actors_that_are_killed(ray_cluster):
    with RaySampler(Recurrent(), Sticky, seed=SEED, n_workers=2, worker_resources={"num_cpus": 0}) as sampler:
        for call, expected in enumerate(undisturbed(6, 13, 5)):
            assert one_call(sampler, call, 13, 5) == expected
            if call in (1, 3):
                kill(sampler.worker_pids()[:1])
