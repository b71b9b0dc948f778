"""`drop_if` with the agent in the sampler's process: what is left out of `VecWorker`'s batches, whatever is lost."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, VecWorker
from streamsampler.errors import RolloutError, UsageError
from streamsampler.testing import Fault, Faults
from tests.contracts.test_hooks import Env, crashed
from tests.workers.vec.test_hooks import Apart, InBlocks, OneByOne

N_ENVS = 3
GIVEN: dict[str, Any] = {"seed": 4, "worker_args": {"n_envs": N_ENVS}, "drop_if": crashed, "check": None}


def in_parent(agent: Any, env: Any, n_workers: int = 2, **options: Any) -> MultiprocessingSampler[Any, Any]:
    return MultiprocessingSampler(agent, env, n_workers=n_workers, inference="parent", **{**GIVEN, **options})


def outcomes(sampler: Any) -> Any:
    batches = [
        sampler.obtain_trajectories(13),
        sampler.obtain_samples(70, (3,)),
        sampler.obtain_trajectories(seeds=list(range(40, 60))),
        TrajectoryBatch.concatenate(list(sampler.stream(n_trajectories=8))),
    ]
    dropped = [
        [(each.index, each.phase, each.error) for each in batch.stats.dropped] for batch in batches if batch.stats
    ]
    return batches, dropped, sampler.stats.kept_timesteps


def expected(agent: Any, **options: Any) -> Any:
    with LocalSampler(agent(), Env((2, 9)), worker_class=VecWorker, **GIVEN, **options) as sampler:
        return outcomes(sampler)


@pytest.mark.parametrize("agent", [Apart, *(pytest.param(it, marks=pytest.mark.slow) for it in (OneByOne, InBlocks))])
@pytest.mark.parametrize("n_workers", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_the_same_are_left_out_as_with_vec_worker(agent, n_workers):
    with in_parent(agent(), Env((2, 9)), n_workers, max_episode_length=6) as sampler:
        found = outcomes(sampler)
    assert found == expected(agent, max_episode_length=6)
    assert any(found[1])


@pytest.mark.parametrize("agent", [*(pytest.param(it, marks=pytest.mark.slow) for it in (Apart, OneByOne)), InBlocks])
@pytest.mark.slow
def test_lost_processes_change_nothing(agent, tmp_path):
    faults = Faults(tmp_path, Fault("kill", "reset"), *(Fault("kill", "step", step=step) for step in (1, 3, 7)))
    with in_parent(agent(), faults.env(functools.partial(Env, (2, 9)))) as sampler:
        found = outcomes(sampler)
        assert 1 <= sampler.stats.restarts <= faults.fired() == 4
    assert found[:2] == expected(agent)[:2]


@pytest.mark.slow  # how much is run in vain depends on timing
def test_what_is_left_out_is_accounted_for():
    with in_parent(Apart(), Env((2, 9))) as sampler:
        stats = sampler.obtain_trajectories(12).stats
    parts = stats.kept_timesteps, stats.lost_timesteps, stats.surplus_timesteps, stats.abandoned_timesteps
    assert sum(stats.worker_timesteps) == sum(parts)
    assert stats.dropped_trajectories > 1


def test_what_cannot_be_is_an_error():
    with (
        in_parent(Apart(), Env(3), drop_if=lambda _info: True) as sampler,
        pytest.raises(RolloutError, match=r"too many to leave out.*drop_if is true for the reset's info"),
    ):
        sampler.obtain_trajectories(5)
    with (
        in_parent(Apart(), Env(3), drop_if=lambda info: info["no"]) as sampler,
        pytest.raises(RolloutError, match=r"calling drop_if in trajectory 0.*KeyError"),
    ):
        sampler.obtain_trajectories(2)
    with in_parent(Apart(), Env(3)) as sampler, pytest.raises(UsageError, match="fragments take no hooks, no drop_if"):
        sampler.obtain_fragments(2)
