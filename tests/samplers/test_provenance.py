"""What samplers say of where their trajectories come from: everything that it takes to run one of them again."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import gymnasium
import pytest

from streamsampler import DefaultWorker, LocalSampler, VecWorker


class Own(DefaultWorker):
    """A worker from outside the package."""


def provenance(env: Any = "CartPole-v1", **options: Any) -> dict[str, Any]:
    with LocalSampler("random", env, seed=1, **options) as sampler:
        found = sampler.provenance()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def test_what_is_the_default_is_not_named():
    assert not {"env_kwargs", "worker_class", "worker_args", "worker"} & provenance().keys()


@pytest.mark.parametrize(
    ("env", "options", "kwargs"),
    [
        ("FrozenLake-v1", {"env_kwargs": {"is_slippery": False}}, {"is_slippery": False}),
        ("CartPole-v1", {"env_kwargs": {"max_episode_steps": 7}}, {"max_episode_steps": 7}),
        ("CartPole-v1", {"env_kwargs": {"max_episode_steps": -1}}, {"max_episode_steps": -1}),
        (dataclasses.replace(gymnasium.spec("CartPole-v1"), max_episode_steps=9), {}, {"max_episode_steps": 9}),
    ],
)
def test_arguments_of_an_environment(env, options, kwargs):
    found = provenance(env, **options)
    assert found["env_kwargs"] == kwargs
    assert gymnasium.make(found["environment"], **found["env_kwargs"])


def test_kinds_of_workers():
    lanes = provenance(worker_class=VecWorker, worker_args={"n_envs": 3})
    assert (lanes["worker_class"], lanes["worker_args"]) == ("VecWorker", {"n_envs": 3})
    assert provenance(worker_class=Own)["worker_class"] == f"{__name__}:Own"
