"""C1 where each worker runs trajectories in lanes: each is a function of its seed alone, wherever it runs."""

from __future__ import annotations

import itertools
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, NewEnvUpdate, TrajectoryBatch, VecWorker
from streamsampler.samplers.base import Sampler
from tests.contracts.conftest import Maker
from tests.scripted.agents import Rowwise

N_ROWS = 3
LANES: dict[str, Any] = {"seed": 71, "worker_class": VecWorker, "worker_args": {"n_envs": N_ROWS}}
SHORTER = NewEnvUpdate(gymnasium.make, {"id": "CartPole-v1", "max_episode_steps": 12})


def calls_of_all_kinds(sampler: Sampler) -> list[TrajectoryBatch]:
    return [
        sampler.obtain_samples(300),
        sampler.obtain_trajectories(10, agent_update=np.array([0.1, 0.5, 3.0, 2.0])),
        sampler.obtain_samples(200, agent_update=Rowwise((0.0, 0.0, -1.0, 0.0)), env_update=SHORTER),
        *itertools.islice(sampler.stream(), 11),
        sampler.obtain_samples(1),
    ]


@cache
def reference() -> list[TrajectoryBatch]:
    with LocalSampler(Rowwise(), "CartPole-v1", **LANES) as sampler:
        return calls_of_all_kinds(sampler)


@pytest.mark.parametrize(
    "n_workers", [1, pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(7, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("engine", ["local", pytest.param("forkserver", marks=pytest.mark.slow)], indirect=True)
def test_the_same_batches_for_any_number_of_workers(make_sampler: Maker, n_workers: int) -> None:
    assert calls_of_all_kinds(make_sampler(Rowwise(), "CartPole-v1", n_workers=n_workers, **LANES)) == reference()


@pytest.mark.parametrize("engine", ["forkserver"], indirect=True)
def test_the_same_batches_in_processes(make_sampler: Maker) -> None:
    assert calls_of_all_kinds(make_sampler(Rowwise(), "CartPole-v1", n_workers=2, **LANES)) == reference()


def test_a_batch_begins_like_a_shorter_one_and_like_one_in_arrival_order() -> None:
    """In lanes no trajectory depends on how many others there are, nor on which ones run beside it."""
    make: Any = partial(LocalSampler, Rowwise(), "CartPole-v1", n_workers=2, **LANES)
    with make() as sampler:
        whole = sampler.obtain_trajectories(20)
    for n in (1, 2, 3, 4, 11):
        with make() as sampler:
            assert list(sampler.obtain_trajectories(n)) == [whole[index] for index in range(n)]
    with make(order="arrival") as sampler:
        arrived = sampler.obtain_trajectories(20)
    for place, index in enumerate(arrived.indices.tolist()):
        if index < 20:
            assert arrived[place] == whole[index]
