"""MaskablePPO's models act with the masks of their environment, in any kind of worker."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker, evaluate
from streamsampler.adapters.sb3 import SB3Agent
from tests.scripted.masks import PLACES, Masked, make

pytestmark = pytest.mark.extras


def model_for(env: Any) -> Any:
    maskable = pytest.importorskip("sb3_contrib").MaskablePPO
    policy = "MultiInputPolicy" if env.place == "observation" else "MlpPolicy"
    return maskable(policy, env, n_steps=16, batch_size=16, seed=1, device="cpu")


@pytest.mark.parametrize(("place", "space"), [*((place, "multi") for place in PLACES), ("info", "binary")])
def test_no_action_is_chosen_that_is_not_allowed(place, space, tmp_path):
    env = partial(make, place, space)
    model = model_for(env())
    model.save(tmp_path / "model.zip")
    with MultiprocessingSampler(SB3Agent(model), env, seed=3, n_workers=2) as sampler:
        expected = sampler.obtain_trajectories(9)  # the environment raises otherwise
    with LocalSampler(SB3Agent.load(tmp_path / "model.zip"), env, seed=3) as sampler:
        assert np.array_equal(sampler.obtain_trajectories(9).actions, expected.actions)
    for agent in (SB3Agent(model), SB3Agent(model, deterministic=True)):
        with LocalSampler(agent, env, seed=3, worker_class=VecWorker, worker_args={"n_envs": 4}) as sampler:
            sampler.obtain_trajectories(9)
            sampler.obtain_fragments(5, 4)
    assert len(evaluate(model, env, seeds=range(5)).returns) == 5


def test_actions_are_those_of_predict_with_the_masks():
    model = model_for(make("info", "multi"))
    with LocalSampler(SB3Agent(model, deterministic=True), Masked, env_kwargs={"space": "multi"}, seed=3) as sampler:
        batch = sampler.obtain_trajectories(9)
    env = Masked(space="multi")
    for observation, action in zip(batch.observations, batch.actions, strict=True):
        env.episode, env.t = map(int, observation)
        assert np.array_equal(model.predict(observation, deterministic=True, action_masks=env.mask())[0], action)
