"""The `evaluations.npz` of Stable-Baselines3: what its callback writes, and ours, for the same agent and seeds."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest

from streamsampler import evaluate
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.errors import UsageError
from streamsampler.formats import save_evaluations

SEEDS = [3, 1, 4, 15, 9]


class FromSeeds(gymnasium.Wrapper):
    """Begins each episode from the next of some seeds, over and over; ends in success where a return is high."""

    def __init__(self, seeds=()):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.seeds, self.n = seeds, 0

    def reset(self, *, seed=None, options=None):
        if self.seeds:
            seed, self.n = self.seeds[self.n % len(self.seeds)], self.n + 1
        self.t = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.t += 1
        *result, info = super().step(action)
        return *result, {**info, "is_success": self.t > 9}


def left(observation):
    return 0


@pytest.fixture(scope="module")
def evaluation():
    return evaluate(left, "CartPole-v1", seeds=SEEDS, n_workers=0)


def test_evaluations_are_written_in_order_with_successes_where_all_know_of_them(evaluation, tmp_path):
    path = save_evaluations({2_000: evaluation, 1_000: evaluation}, tmp_path / "evaluations")
    assert path == tmp_path / "evaluations.npz"
    with np.load(path) as found:
        assert sorted(found) == ["ep_lengths", "results", "timesteps"]
        assert found["timesteps"].tolist() == [1_000, 2_000]
        assert np.array_equal(found["results"], [evaluation.returns] * 2)
        assert np.array_equal(found["ep_lengths"], [evaluation.lengths] * 2)
    knowing = dataclasses.replace(evaluation, successes=np.arange(len(SEEDS)) % 2 == 0)
    for second, known in ((knowing, True), (evaluation, False)):
        with np.load(save_evaluations({1: knowing, 2: second}, tmp_path / "some")) as found:
            assert ("successes" in found) == known
            assert not known or found["successes"].tolist() == [[True, False, True, False, True]] * 2


def test_what_the_file_cannot_hold_is_an_error_and_the_file_before_stays(evaluation, tmp_path):
    fewer = evaluate(left, "CartPole-v1", seeds=SEEDS[:2], n_workers=0)
    path = save_evaluations({1: evaluation}, tmp_path / "evaluations.npz")
    before = path.read_bytes()
    for wrong, words in (
        ({}, "no evaluations to write"),
        ({1: evaluation, 2: fewer}, "5 at timestep 1, 2 at timestep 2"),
        ({-1: evaluation}, "at least 0, not -1"),
        ({"1": evaluation}, "at least 0, not '1'"),
        ({1: 2}, "needs evaluations, not 2"),
    ):
        with pytest.raises(UsageError, match=words):
            save_evaluations(wrong, path)  # type: ignore[arg-type]
    assert path.read_bytes() == before


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.core
def test_it_is_what_the_callback_writes(tmp_path):
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    evaluations = {}

    class Ours(BaseCallback):
        def _on_step(self):
            if self.n_calls % 64 == 0:
                agent = SB3Agent(self.model, deterministic=True)
                evaluations[self.num_timesteps] = evaluate(agent, FromSeeds, seeds=SEEDS, n_workers=0)
            return True

    class Restarting(BaseCallback):
        """Resets take the next seed, also the one at an evaluation's end: each evaluation starts over."""

        def _on_step(self):
            theirs.eval_env.envs[0].env.n = 0
            return True

    env = Monitor(FromSeeds(SEEDS))
    theirs = EvalCallback(env, n_eval_episodes=len(SEEDS), eval_freq=64, log_path=str(tmp_path), verbose=0)
    model = PPO("MlpPolicy", FromSeeds(), n_steps=64, n_epochs=1, batch_size=32, seed=1, device="cpu")
    model.learn(128, callback=CallbackList([Restarting(), theirs, Ours()]))
    save_evaluations(evaluations, tmp_path / "ours.npz")
    with np.load(tmp_path / "evaluations.npz") as one, np.load(tmp_path / "ours.npz") as other:
        assert sorted(one) == sorted(other)
        assert "successes" in one
        for name in one:
            assert one[name].dtype == other[name].dtype
            assert np.array_equal(one[name], other[name])
