"""Trajectories with everything that a format may stumble over, as a batch, a file and a folder of shards."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, TrajectoryFolder, sample_to_folder
from tests.scripted.envs import Nested


class Odd(Nested):
    """Has infos of all kinds, whose keys come and go; some change their kind from one shard to the next."""

    action_space = spaces.Dict({"move": spaces.Discrete(3), "push": spaces.Box(-1, 1, (2,), np.float32)})  # type: ignore[assignment]

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "start/x": 0.5, "late": "at reset"}

    def step(self, action):
        observation, reward, _, _, info = super().step(action["move"])
        info |= {"big": 2**62 + self.t, "time/fps": self.t * 0.5, "half": np.float16(self.t), "flag": self.t % 2 == 0}
        if self.t > 2:
            info["late"] = "naïve \N{SNOWMAN}"
        if self.t > 8:
            info["mixed"] = self.t * 0.25  # a float, an integer in shorter trajectories
            info["nothing"] = None
        elif self.t > 6:
            info["mixed"] = self.t
        if self.t == 5:
            info["list"] = [1, "two", {"three": np.arange(3)}]
            info["rare"] = np.arange(6, dtype=np.uint8).reshape(2, 3)
        ended = self.t >= 3 + int(self.place[1] * 7) % 9
        return observation, reward, ended and self.t % 2 == 0, (ended and self.t % 3 != 0) or self.t > 20, info


class Actor:
    """Draws actions, and says something about each."""

    def __init__(self):
        self.space = Odd.action_space

    def reset(self, *, seed=None):
        self.space.seed(seed)

    def get_action(self, observation):
        action = self.space.sample()
        return action, {"logits": np.arange(3.0) + action["move"], "nested": {"value": float(observation["place"][0])}}


@pytest.fixture(scope="session")
def odd_folder(tmp_path_factory):
    """A folder of several shards."""
    path = tmp_path_factory.mktemp("formats") / "odd"
    with LocalSampler(Actor(), Odd, seed=3) as sampler:
        sample_to_folder(sampler, path, n_timesteps=220, shard_size=40)
    folder = TrajectoryFolder(path)
    assert len(folder.shards) > 4
    return folder


@pytest.fixture(scope="session")
def odd(odd_folder):
    """The same as a batch."""
    batch = odd_folder.to_batch()
    assert {"big", "_late", "_mixed", "_rare", "_list", "_nothing"} <= batch.env_infos.keys()
    assert (batch.terminated & batch.truncated).any()
    return batch
