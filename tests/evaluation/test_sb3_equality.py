"""Models of Stable-Baselines3: `evaluate` returns what `evaluate_policy` returns, episode by episode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, evaluate
from streamsampler.adapters.sb3 import SB3Agent

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore::UserWarning")]

SEEDS = [*range(40, 56), 3, 4]


class FromSeeds(gymnasium.Wrapper):
    """Begins each episode from the next of some seeds."""

    def __init__(self, env):
        super().__init__(env)
        self.seeds = list(SEEDS)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=self.seeds.pop(0) if self.seeds else 0, options=options)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_same_episodes_on_any_number_of_workers_from_a_file_or_not(env_id, tmp_path):
    """Of Pendulum, under VecNormalize."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)
    venv, fixed = (DummyVecEnv([make]) for make in (
        lambda: gymnasium.make(env_id), lambda: Monitor(FromSeeds(gymnasium.make(env_id)))
    ))  # fmt: skip
    statistics = tmp_path / "statistics.pkl" if env_id == "Pendulum-v1" else False
    if statistics:
        venv = VecNormalize(venv)
    model = stable_baselines3.PPO("MlpPolicy", venv, n_steps=256, n_epochs=2, seed=1, device="cpu").learn(512)
    model.save(tmp_path / "model.zip")
    if statistics:
        venv.save(str(statistics))
        fixed = VecNormalize.load(str(statistics), fixed)
        fixed.training = fixed.norm_reward = False
    returns, lengths = evaluate_policy(
        model, fixed, n_eval_episodes=len(SEEDS), deterministic=True, return_episode_rewards=True
    )
    found = [evaluate(model, env_id, seeds=SEEDS, n_workers=2)]
    for n_workers in (1, 7):  # here: to load PyTorch in eight processes takes most of a minute
        with LocalSampler(SB3Agent(model, deterministic=True), env_id, n_workers=n_workers) as sampler:
            found.append(evaluate(model, sampler=sampler, seeds=SEEDS))
    for each in found:
        # Monitor rounds returns to six digits.
        np.testing.assert_allclose(each.returns, returns, rtol=0, atol=1e-6)
        assert each.lengths.tolist() == lengths
        assert each.to_json() == found[0].to_json()
    from_file = evaluate(tmp_path / "model.zip", env_id, seeds=SEEDS, vec_normalize=statistics, n_workers=1)
    assert (from_file.agent["name"], from_file.agent["deterministic"]) == ("model.zip", True)
    assert from_file == replace(found[0], agent=from_file.agent)
    assert from_file.agent["parameters"].startswith("sha256:")
    assert "stable_baselines3" in from_file.versions
    assert str(tmp_path) not in from_file.to_json()


def test_a_torch_module_is_asked_about_the_environments_actions():
    import torch

    module = torch.nn.Linear(4, 2)
    given: Any = {"env": "CartPole-v1", "seeds": SEEDS, "n_workers": 0}
    drawn, mode = evaluate(module, **given), evaluate(module, deterministic=True, **given)
    assert drawn.agent["name"] == mode.agent["name"] == "TorchAgent(Linear, CategoricalHead)"
    assert (drawn.agent["deterministic"], mode.agent["deterministic"]) == (False, True)
    assert drawn.agent["parameters"] == mode.agent["parameters"]
    assert not np.array_equal(drawn.returns, mode.returns)
