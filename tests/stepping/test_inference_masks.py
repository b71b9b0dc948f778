"""Masks of actions with the agent in the sampler's process: of observations and infos; methods are refused."""

from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError, UsageError
from tests.scripted.masks import Alone, InBlocks, InRows, Overwriting, assert_masks, make
from tests.stepping.conftest import kill
from tests.tiers import mostly_slow


def run(sampler: Any, disturbed: bool = False) -> list[Any]:
    batches = [sampler.obtain_trajectories(9)]
    for n_timesteps in (1, 3, 2):
        if disturbed:
            kill(sampler)
        batches.append(sampler.obtain_fragments(n_timesteps, 3))
    return [*batches, sampler.obtain_samples(30)]


@pytest.mark.parametrize("hooks", mostly_slow([None, Overwriting()]), ids=["", "hooks"])
@pytest.mark.parametrize("agent", mostly_slow([InRows, InBlocks, Alone], 2))
@pytest.mark.parametrize("place", mostly_slow(["info", "observation"]))
def test_batches_with_masks_are_those_of_one_vec_worker(place, agent, hooks):
    options: dict[str, Any] = {"seed": 5, "env_kwargs": {"place": place}, "worker_args": {"n_envs": 3}, "hooks": hooks}
    with LocalSampler(agent(), make, worker_class=VecWorker, **options) as sampler:
        expected = run(sampler)
    with MultiprocessingSampler(agent(), make, n_workers=2, inference="parent", **options) as sampler:
        found = run(sampler)
    for batch in found:
        assert_masks(batch)
    assert found == expected


@pytest.mark.parametrize("agent", mostly_slow([InRows, InBlocks]))
def test_environments_that_are_restored_have_their_masks(agent):
    options: dict[str, Any] = {"seed": 5, "worker_args": {"n_envs": 3}, "inference": "parent", "max_restarts": None}
    found = []
    for disturbed in (False, True):
        with MultiprocessingSampler(agent(), make, env_kwargs={"place": "info"}, n_workers=2, **options) as sampler:
            found.append(run(sampler, disturbed))
            assert (sampler.stats.restarts > 0) == disturbed
    assert found[0] == found[1]


@pytest.mark.parametrize("agent", ["random", InRows()])
def test_masks_by_a_method_which_cannot_be_called_are_refused(agent):
    options: dict[str, Any] = {"seed": 5, "worker_args": {"n_envs": 3}, "inference": "parent"}
    with MultiprocessingSampler(agent, make, env_kwargs={"place": "method"}, n_workers=2, **options) as sampler:
        with pytest.raises(RolloutError, match='use inference="worker"') as caught:
            sampler.obtain_trajectories(3)
        assert isinstance(caught.value.original, UsageError)
