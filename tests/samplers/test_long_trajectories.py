"""A trajectory that seems never to end is reported while it runs, once, and the call goes on."""

import logging
from typing import Any

import pytest

from streamsampler import MultiprocessingSampler, VecWorker
from tests.scripted.agents import always_zero
from tests.scripted.envs import AnyLength


class Endless(AnyLength):
    """Ends its trajectories when a file is there."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.path.exists(), False, info


class Ends(logging.Handler):
    """Lets trajectories end when one is reported."""

    def __init__(self, path):
        super().__init__()
        self.path, self.messages = path, []

    def emit(self, record):
        if "more than ten times" in record.getMessage():
            self.messages.append(record.getMessage())
            self.path.touch()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}])
def test_a_trajectory_without_end_is_reported_once(tmp_path, monkeypatch, options: Any):
    monkeypatch.setattr("streamsampler.protocol.long_trajectories._FIRST_LOOK", 0.01)
    path = tmp_path / "enough"
    handler = Ends(path)
    logger = logging.getLogger("streamsampler")
    logger.addHandler(handler)
    try:
        with MultiprocessingSampler(
            always_zero, lambda: Endless(path), n_workers=1, seed=1, check=None, **options
        ) as sampler:
            assert sampler.obtain_samples(10).n_timesteps > 100
            sampler.obtain_samples(10)
    finally:
        logger.removeHandler(handler)
    assert len(handler.messages) == 1
    assert "more than ten times the 10 timesteps" in handler.messages[0]
    assert "max_episode_length" in handler.messages[0]
