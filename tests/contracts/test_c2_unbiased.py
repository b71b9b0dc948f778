"""C2: long trajectories are as likely to be returned as short ones; `order="arrival"` is the exception."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from streamsampler import LocalSampler, TrajectoryBatch
from tests.contracts.conftest import ENGINES, PROCESSES, RAY, Maker, on, slow
from tests.contracts.scenarios import SIDE_BY_SIDE, Lanes, World
from tests.scripted.agents import always_zero
from tests.scripted.envs import AnyLength, TwoOrFifty

SEED = 3


def share_of_short_ones(batches: list[TrajectoryBatch]) -> float:
    return float((np.concatenate([batch.lengths for batch in batches]) == 2).mean())


@pytest.mark.slow
@on("waiting processes", *PROCESSES)
def test_the_share_of_short_trajectories(make_sampler: Maker, make_local: Callable[..., LocalSampler]) -> None:
    """Steps take real time here, so that with eight workers the short trajectories come in first."""
    timed = partial(TwoOrFifty, pause=0.0002)
    alone = make_local(always_zero, TwoOrFifty, seed=SEED)
    together = make_sampler(always_zero, timed, n_workers=8, seed=SEED)
    by_arrival = make_sampler(always_zero, timed, n_workers=8, seed=SEED, order="arrival")
    reference, batches, arrived = (
        [sampler.obtain_samples(60) for _ in range(100)] for sampler in (alone, together, by_arrival)
    )
    assert batches == reference
    assert share_of_short_ones(reference) == pytest.approx(0.5, abs=0.05)
    assert share_of_short_ones(arrived) > share_of_short_ones(reference) + 0.05


@on(*ENGINES, RAY)
def test_obtain_samples_returns_the_shortest_prefix(
    make_sampler: Maker, make_local: Callable[..., LocalSampler]
) -> None:
    sampler = make_sampler(always_zero, AnyLength, n_workers=3, seed=SEED)
    twin = make_local(always_zero, AnyLength, seed=SEED)
    for num_samples in (1, 2, 7, 50, 51, 52, 53, 200):
        batch = sampler.obtain_samples(num_samples)
        assert batch.n_timesteps - batch.lengths[-1] < num_samples <= batch.n_timesteps
        assert batch.indices.tolist() == list(range(len(batch)))
        assert batch == twin.obtain_trajectories(len(batch))


@on("local", "waiting", "processes", *slow("queues fork", "lanes processes"))
def test_what_arrives_is_what_its_index_says(make_sampler: Maker, make_local: Callable[..., LocalSampler]) -> None:
    """In order of arrival, too, each trajectory is a function of its index."""
    sampler = make_sampler(always_zero, partial(TwoOrFifty, pause=0.0002), n_workers=4, seed=SEED, order="arrival")
    twin = make_local(always_zero, TwoOrFifty, seed=SEED)
    for num_samples in (1, 30, 100):
        batch = sampler.obtain_samples(num_samples)
        every = twin.obtain_trajectories(int(batch.indices.max()) + 1)
        assert batch.n_timesteps - batch.lengths[-1] < num_samples <= batch.n_timesteps
        assert len(set(batch.indices.tolist())) == len(batch)
        assert all(trajectory == every[int(trajectory.indices[0])] for trajectory in batch)


def test_in_lanes_a_batch_begins_like_a_shorter_one(make_local: Callable[..., LocalSampler]) -> None:
    """No trajectory depends on how many others there are, nor on which ones run beside it."""
    make = partial(make_local, Lanes(), partial(World, noise=False), n_workers=2, seed=SEED, **SIDE_BY_SIDE)
    whole = make().obtain_trajectories(20)
    for n in (1, 2, 3, 4, 11):
        assert list(make().obtain_trajectories(n)) == [whole[index] for index in range(n)]
    arrived = make(order="arrival").obtain_trajectories(20)
    assert all(one == whole[int(one.indices[0])] for one in arrived if one.indices[0] < 20)
