"""The code in the README and in docstrings runs as it stands."""

from typing import Any

import numpy as np
import pytest

import streamsampler
from streamsampler import MultiprocessingSampler
from tests.typed.test_types import snippets

FEWER = {
    "range(100)": "range(2)",
    "5_000": "500",
    "10_000": "500",
    "1_100": "1_004",
    "2_000": "500",
    "range(15)": "range(2)",
}
FEWER |= {'if __name__ == "__main__":': "if True:"}
# They need moviepy, and a cluster of several machines.
LEFT_OUT = {"streamsampler_environments___init___0", "streamsampler_samplers_ray_0"}


class LinearAgent:
    """What snippets call `agent`, with `parameters`."""

    def __init__(self):
        self.weights = np.zeros(4)

    def get_action(self, observation):
        return int(observation @ self.weights > 0), {}

    def get_actions(self, observations):
        return (observations @ self.weights > 0).astype(np.int64), {}

    def set_param_values(self, weights):
        self.weights = np.array(weights)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the files that snippets read."""
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    from streamsampler.cli.app import cli

    folder = tmp_path_factory.mktemp("snippets")
    env = VecNormalize(make_vec_env("CartPole-v1"))
    stable_baselines3.PPO("MlpPolicy", env).save(folder / "model.zip")
    env.save(folder / "vecnormalize.pkl")
    shards = ["--shard-size", "100000", "--out", str(folder / "big")]
    with pytest.raises(SystemExit, match=r"^0$"):
        cli(["sample", "CartPole-v1", "--num-samples", "300000", "--seed", "1", "--quiet", *shards])
    return folder


@pytest.mark.extras
@pytest.mark.parametrize("name", sorted(snippets().keys() - LEFT_OUT))
def test_it_runs(name, files, monkeypatch, tmp_path):
    import gymnasium
    import torch

    monkeypatch.chdir(files)
    code = snippets()[name]
    for many, few in FEWER.items():
        code = code.replace(many, few)
    with MultiprocessingSampler(LinearAgent(), "CartPole-v1", seed=1) as sampler:
        names = {
            "Any": Any,
            "streamsampler": streamsampler,
            "MultiprocessingSampler": MultiprocessingSampler,
            "sampler": sampler,
            "batch": sampler.obtain_samples(100),
            "agent": LinearAgent(),
            "parameters": np.ones(4),
            "critic": lambda observations: observations[:, 0],
            "update": lambda *minibatch: None,
            "improve": lambda parameters, batch: parameters + 0.1,
            "policy": torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)),
            "env": gymnasium.make("CartPole-v1"),
            "train": lambda sampler: [sampler.obtain_samples(500) for _ in range(2)],
        }
        exec(code, names)
        for test in [value for name, value in names.items() if name.startswith("test_")]:
            test(tmp_path)
