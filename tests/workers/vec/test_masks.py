"""Masks of actions in vector environments: of all slots, in all autoreset modes, from all places."""

from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from tests.scripted.masks import PLACES, Alone, InBlocks, assert_masks, make
from tests.tiers import mostly_slow

MODES = ["NEXT_STEP", "SAME_STEP", "DISABLED"]


def vector(kind, mode, place, space="discrete"):
    return kind([partial(make, place, space)] * 3, autoreset_mode=AutoresetMode[mode])


def options(**more):
    return {"seed": 5, "worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}, **more}


@pytest.mark.parametrize("agent", mostly_slow([InBlocks(), Alone()]))
@pytest.mark.parametrize("place", mostly_slow(PLACES))
@pytest.mark.parametrize("mode", mostly_slow(MODES))
def test_slots_act_with_their_masks_and_silent_ones_as_is_allowed(mode, place, agent):
    """The environments refuse what they do not allow, also where a slot stands silent at a block's end."""
    with LocalSampler(agent, partial(vector, SyncVectorEnv, mode, place), **options()) as sampler:
        assert_masks(batch := sampler.obtain_trajectories(20))
    with MultiprocessingSampler(
        agent, partial(vector, SyncVectorEnv, mode, place), n_workers=2, **options()
    ) as sampler:
        assert sampler.obtain_trajectories(20) == batch


@pytest.mark.slow
@pytest.mark.parametrize("space", ["nested multi", "nested binary"])
@pytest.mark.parametrize("mode", MODES)
def test_random_actions_of_several_parts_are_allowed(mode, space):
    for place in PLACES:
        with LocalSampler("random", partial(vector, SyncVectorEnv, mode, place, space), **options()) as sampler:
            assert len(np.unique(sampler.obtain_trajectories(20).actions, axis=0)) > 3


def test_environments_of_other_processes_are_asked_there():
    with LocalSampler(InBlocks(), partial(vector, AsyncVectorEnv, "NEXT_STEP", "method"), **options()) as sampler:
        assert_masks(sampler.obtain_trajectories(9))
