"""Models of Stable-Baselines3: `evaluate` returns what `evaluate_policy` returns, episode by episode."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, evaluate
from streamsampler.adapters.sb3 import SB3Agent

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore::UserWarning")]

SEEDS = [*range(40, 56), 3, 3]


class FromSeeds(gymnasium.Wrapper):
    """Begins each episode from the next of some seeds."""

    def __init__(self, env, seeds):
        super().__init__(env)
        self.seeds = list(seeds)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=self.seeds.pop(0) if self.seeds else 0, options=options)


def train(env_id, folder, *, normalize):
    import stable_baselines3
    import torch
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)
    venv = DummyVecEnv([lambda: gymnasium.make(env_id)])
    if normalize:
        venv = VecNormalize(venv)
    model = stable_baselines3.PPO("MlpPolicy", venv, n_steps=256, n_epochs=2, seed=1, device="cpu")
    model.learn(512)
    model.save(folder / "model.zip")
    if normalize:
        venv.save(str(folder / "statistics.pkl"))
    return model


def theirs(model, env_id, statistics):
    """Return the returns and lengths that `evaluate_policy` finds in one environment."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    venv = DummyVecEnv([lambda: Monitor(FromSeeds(gymnasium.make(env_id), SEEDS))])
    if statistics is not None:
        venv = VecNormalize.load(str(statistics), venv)
        venv.training = venv.norm_reward = False
    return evaluate_policy(model, venv, n_eval_episodes=len(SEEDS), deterministic=True, return_episode_rewards=True)


@pytest.fixture(scope="module", params=[("CartPole-v1", False), ("Pendulum-v1", True)], ids=["plain", "normalized"])
def trained(request, tmp_path_factory):
    env_id, normalize = request.param
    folder = tmp_path_factory.mktemp("model")
    model = train(env_id, folder, normalize=normalize)
    return env_id, model, folder, folder / "statistics.pkl" if normalize else None


def test_the_same_episodes_on_any_number_of_workers(trained):
    env_id, model, _, statistics = trained
    returns, lengths = theirs(model, env_id, statistics)
    found = [evaluate(model, env_id, seeds=SEEDS, n_workers=2)]
    for n_workers in (1, 3, 7):  # here: to load PyTorch in eleven processes takes most of a minute
        with LocalSampler(SB3Agent(model, deterministic=True), env_id, n_workers=n_workers) as sampler:
            found.append(evaluate(model, sampler=sampler, seeds=SEEDS))
    for each in found:
        # Monitor rounds returns to six digits.
        np.testing.assert_allclose(each.returns, returns, rtol=0, atol=1e-6)
        assert each.lengths.tolist() == lengths
        assert each.to_json() == found[0].to_json()
    assert len(set(found[0].returns.tolist())) > 5


def test_a_file_is_the_model_that_was_saved(trained):
    env_id, model, folder, statistics = trained
    given = False if statistics is None else statistics
    from_file, here = (
        evaluate(each, env_id, seeds=SEEDS, vec_normalize=which, n_workers=1)
        for each, which in ((folder / "model.zip", given), (model, None))
    )
    assert (from_file.agent["name"], here.agent["name"]) == ("model.zip", type(model).__name__)
    assert from_file == replace(here, agent=from_file.agent)
    assert from_file.agent["deterministic"] is True
    assert from_file.agent["parameters"].startswith("sha256:")
    assert "stable_baselines3" in from_file.versions
    assert str(folder) not in from_file.to_json()


def test_a_torch_module_is_asked_about_the_environments_actions():
    import torch

    module = torch.nn.Linear(4, 2)
    drawn = evaluate(module, "CartPole-v1", seeds=SEEDS, n_workers=1)
    mode = evaluate(module, "CartPole-v1", seeds=SEEDS, deterministic=True, n_workers=1)
    assert drawn.agent["name"] == mode.agent["name"] == "TorchAgent(Linear, CategoricalHead)"
    assert (drawn.agent["deterministic"], mode.agent["deterministic"]) == (False, True)
    assert drawn.agent["parameters"] == mode.agent["parameters"]
    assert not np.array_equal(drawn.returns, mode.returns)
