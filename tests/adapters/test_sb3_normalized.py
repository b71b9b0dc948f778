"""A model that was trained under VecNormalize sees observations as it was trained on."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker, compare, evaluate
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.agents.vec_normalize import VecNormalizeWarning
from streamsampler.errors import UsageError

pytestmark = [pytest.mark.extras, pytest.mark.core]


class Offset(gymnasium.Env):
    """Observations far from zero; a Dict of a Box and what is not normalised, or the Box alone."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, *, dict_space=False):
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = spaces.Dict({"a": box, "b": spaces.Box(0, 1, (2,), np.float32)}) if dict_space else box

    def _observe(self):
        box = self.np_random.normal(50.0, 5.0, 3).astype(np.float32)
        return {"a": box, "b": box[:2] % 1} if isinstance(self.observation_space, spaces.Dict) else box

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), 100.0, self.t == 9, False, {}


def normalized(*, dict_space=False, **options):
    return VecNormalize(DummyVecEnv([lambda: Offset(dict_space=dict_space)]), **options)


def trained(*, dict_space=False, seed=1, **options):
    options = {"norm_obs_keys": ["a"]} | options if dict_space else options
    normalize = normalized(dict_space=dict_space, **options)
    policy = "MultiInputPolicy" if dict_space else "MlpPolicy"
    model = stable_baselines3.PPO(policy, normalize, n_steps=32, batch_size=32, n_epochs=1, seed=seed, device="cpu")
    model.learn(64)
    return model


@pytest.fixture(scope="module", params=[False, True], ids=["box", "dict"])
def model(request):
    return trained(dict_space=request.param)


def env_of(model):
    dict_space = isinstance(model.observation_space, spaces.Dict)
    return lambda: Offset(dict_space=dict_space)


def expected_actions(model, batch):
    normalized = model.get_vec_normalize_env().normalize_obs(batch.observations)
    return model.predict(normalized, deterministic=True)[0]


def test_it_acts_on_normalized_observations(model):
    agent = SB3Agent(model, deterministic=True)
    makers = {
        "local": lambda: LocalSampler(agent, env_of(model), seed=2),
        "processes": lambda: MultiprocessingSampler(agent, env_of(model), seed=2, n_workers=2),
        "vec": lambda: LocalSampler(
            agent, env_of(model), seed=2, worker_class=VecWorker, worker_args={"n_envs": 4, "block_size": 8}
        ),
    }
    batches = {}
    for name, make in makers.items():
        with make() as sampler:
            batches[name] = batch = sampler.obtain_trajectories(8)
        np.testing.assert_allclose(batch.actions, expected_actions(model, batch), atol=1e-6)
        assert (batch.rewards == 100.0).all(), "rewards are the environment's own"
        raw = batch.observations["a"] if isinstance(batch.observations, dict) else batch.observations
        assert raw.mean() > 40.0
    assert batches["local"] == batches["processes"]


def test_normalizing_is_vec_normalizes_to_the_bit_and_touches_nothing(model):
    normalize = model.get_vec_normalize_env()
    statistics = SB3Agent(model).statistics
    env = env_of(model)()
    observation, _ = env.reset(seed=0)
    batch: Any = [env.step(None)[0] for _ in range(5)]
    if isinstance(observation, dict):
        batch = {key: np.stack([one[key] for one in batch]) for key in observation}
    else:
        batch = np.stack(batch)
    for given in (observation, batch):
        before = pickle.dumps(given)
        for one, other in zip(
            leaves(statistics.normalized(given)), leaves(normalize.normalize_obs(given)), strict=True
        ):
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
        assert pickle.dumps(given) == before


def leaves(tree):
    return list(tree.values()) if isinstance(tree, dict) else [tree]


def test_a_batch_gives_what_its_rows_give(model):
    agent = SB3Agent(model, deterministic=True)
    with LocalSampler(agent, env_of(model), seed=2) as sampler:
        observations = sampler.obtain_trajectories(1).observations
    together, _ = agent.get_actions(observations)
    for row, action in enumerate(together):
        one = {k: v[row] for k, v in observations.items()} if isinstance(observations, dict) else observations[row]
        np.testing.assert_allclose(agent.get_action(one)[0], action, atol=1e-6)


def test_statistics_are_frozen_in_what_travels_and_live_in_this_process():
    model = trained()
    agent = SB3Agent(model, deterministic=True)
    copy = pickle.loads(cloudpickle.dumps(agent))
    before = {name: array.copy() for name, array in copy.get_param_values().items()}
    observation = np.full(3, 50.0, np.float32)
    for _ in range(3):
        copy.get_action(observation)
    model.learn(64)
    assert all(np.array_equal(before[name], array) for name, array in copy.get_param_values().items())
    assert not np.array_equal(before["vec_normalize.mean"], agent.get_param_values()["vec_normalize.mean"])
    copy.set_param_values(agent.get_param_values())
    assert np.array_equal(copy.get_action(observation)[0], agent.get_action(observation)[0])
    assert "VecNormalize" not in repr(pickle.loads(cloudpickle.dumps(copy)).__getstate__())


def test_a_model_that_learned_more_is_an_update_with_its_statistics():
    model, agents = trained(), []
    with LocalSampler(SB3Agent(model, deterministic=True), Offset, seed=2) as sampler:
        sampler.obtain_trajectories(1)
        model.learn(64)
        for update in (model, SB3Agent(model).get_param_values()):
            batch = sampler.obtain_trajectories(2, agent_update=update)
            np.testing.assert_allclose(batch.actions, expected_actions(model, batch), atol=1e-6)
            agents.append(batch)
        for update in (model.policy, model.policy.state_dict()):
            with pytest.raises(UsageError, match=r"vec_normalize\.mean is missing"):
                sampler.obtain_trajectories(1, agent_update=update)
        plain = stable_baselines3.PPO("MlpPolicy", DummyVecEnv([Offset]), device="cpu")
        with pytest.raises(UsageError, match=r"vec_normalize\.mean is missing"):
            sampler.obtain_trajectories(1, agent_update=plain)
        with pytest.raises(UsageError, match="clips at 3"):
            sampler.obtain_trajectories(1, agent_update=trained(clip_obs=3.0))
    with LocalSampler(SB3Agent(plain), Offset, seed=2) as sampler, pytest.raises(UsageError, match="is none of its"):
        sampler.obtain_trajectories(1, agent_update=model)


def test_statistics_from_a_file_and_a_warning_where_one_is_left_out(tmp_path):
    model = trained()
    model.save(tmp_path / "model.zip")
    model.get_vec_normalize_env().save(tmp_path / "vecnormalize.pkl")
    expected = SB3Agent(model).statistics
    observation = np.full(3, 50.0, np.float32)
    for path in (tmp_path / "vecnormalize.pkl", str(tmp_path / "vecnormalize.pkl")):
        agent = SB3Agent.load(tmp_path / "model.zip", "PPO", vec_normalize=path, deterministic=True)
        assert np.array_equal(agent.statistics.normalized(observation), expected.normalized(observation))
    for archive in ("model.zip", "model"):
        with pytest.warns(VecNormalizeWarning, match=r"pass vec_normalize='.*vecnormalize\.pkl', else .*=False"):
            assert SB3Agent.load(tmp_path / archive, "PPO").statistics is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SB3Agent.load(tmp_path / "model.zip", "PPO", vec_normalize=False).statistics is None
        assert SB3Agent(model, vec_normalize=False).statistics is None
        assert SB3Agent(model.policy, vec_normalize=model.get_vec_normalize_env()).statistics is not None


@pytest.mark.parametrize("norm_obs", [True, False])
def test_an_on_policy_model_without_its_statistics_is_told_by_itself(tmp_path, norm_obs):
    """Also where there is no file with statistics, and where the user loaded the model."""
    trained(norm_obs=norm_obs).save(tmp_path / "model.zip")
    message = "was trained under VecNormalize; if that normalised observations, pass vec_normalize=FILE"
    loaded = stable_baselines3.PPO.load(tmp_path / "model.zip", device="cpu")
    spent: dict[str, Any] = {"num_trajectories": 2, "n_workers": 0, "seed": 1}
    for name, use in {
        "model.zip": lambda **how: SB3Agent.load(tmp_path / "model.zip", **how),
        r"the model \(PPO\)": lambda **how: SB3Agent(loaded, **how),
        f"{tmp_path}/model.zip": lambda **how: evaluate(tmp_path / "model.zip", Offset, **spent, **how),
        "PPO": lambda **how: compare([loaded, "random"], Offset, **spent, **how),
    }.items():
        with pytest.warns(VecNormalizeWarning, match=f"{name}.* {message}") as caught:
            use()
        assert len(caught) == 1
        if name != "PPO":  # with compare, it is for all agents
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                use(vec_normalize=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SB3Agent(stable_baselines3.PPO.load(tmp_path / "model.zip", env=normalized(), device="cpu"))


def test_models_that_say_nothing_of_statistics_get_no_warning(tmp_path):
    """Those of off-policy algorithms keep the same attribute without a VecNormalize, and with one."""
    plain = stable_baselines3.PPO("MlpPolicy", DummyVecEnv([Offset]), n_steps=32, batch_size=32, device="cpu").learn(32)
    of_policy: dict[str, Any] = {"buffer_size": 100, "learning_starts": 5, "batch_size": 4, "device": "cpu"}
    off = stable_baselines3.TD3("MlpPolicy", DummyVecEnv([Offset]), **of_policy).learn(20)
    off_normalized = stable_baselines3.TD3("MlpPolicy", normalized(), **of_policy).learn(20)
    for model in (plain, off, off_normalized):
        model.save(tmp_path / "model.zip")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            SB3Agent.load(tmp_path / "model.zip")
            SB3Agent(type(model).load(tmp_path / "model.zip", device="cpu"))


def test_where_rl_zoo_puts_the_file(tmp_path):
    model = trained()
    model.save(tmp_path / "best.zip")
    (tmp_path / "best").mkdir()
    model.get_vec_normalize_env().save(tmp_path / "best" / "vec_normalize.pkl")
    with pytest.warns(VecNormalizeWarning, match=r"best/vec_normalize\.pkl"):
        SB3Agent.load(tmp_path / "best.zip", "PPO")


def test_what_does_not_suit(tmp_path):
    model = trained()
    (tmp_path / "no.pkl").write_bytes(b"no pickle")
    (tmp_path / "other.pkl").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UsageError, match=r"no\.pkl is no file of VecNormalize\.save"):
        SB3Agent(model, vec_normalize=tmp_path / "no.pkl")
    with pytest.raises(UsageError, match="is a VecNormalize or the file of one"):
        SB3Agent(model, vec_normalize=tmp_path / "other.pkl")
    with pytest.raises(OSError, match="nothing"):
        SB3Agent(model, vec_normalize=tmp_path / "nothing.pkl")
    with pytest.raises(UsageError, match=r"of the shape \(3,\), and an observation has \(4,\)"):
        SB3Agent(model).get_action(np.zeros(4, np.float32))
    assert SB3Agent(trained(norm_obs=False)).statistics is None
