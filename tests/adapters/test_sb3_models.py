"""SB3Agent with Stable-Baselines3's own models, and with the statistics of VecNormalize that they were trained with."""

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
from streamsampler.agents.moments import Moments
from streamsampler.agents.vec_normalize import VecNormalizeWarning, read_vec_normalize, write_vec_normalize
from streamsampler.data.trees import leaves, map_trees
from streamsampler.errors import UsageError
from streamsampler.filters import Filters, RunningNorm, RunningReturnNorm

pytestmark = [pytest.mark.extras, pytest.mark.core]
PPO = stable_baselines3.PPO


@pytest.fixture(scope="module")
def ppo():
    return PPO("MlpPolicy", "CartPole-v1", seed=1, device="cpu")


def test_actions_are_predicts_in_any_process_with_the_parameters_of_the_call(ppo):
    agent, batches = SB3Agent(ppo), []
    update = {name: array * 3 for name, array in agent.get_param_values().items()}
    for make, n_workers in ((LocalSampler, 1), (MultiprocessingSampler, 2)):
        with make(agent, "CartPole-v1", seed=2, n_workers=n_workers) as sampler:
            batches.append([sampler.obtain_samples(300), sampler.obtain_samples(300, agent_update=update)])
    assert batches[0] == batches[1]
    assert len(np.unique(batches[0][0].actions)) == 2
    with LocalSampler(SB3Agent(ppo, deterministic=True), "CartPole-v1", seed=2) as sampler:
        batch = sampler.obtain_samples(200)
    assert np.array_equal(batch.actions, ppo.predict(batch.observations, deterministic=True)[0])


def test_trajectories_in_flight_share_a_policy(ppo):
    agent = SB3Agent(ppo, deterministic=True)
    shared = agent.sharing_parameters()
    assert shared.policy is agent.policy
    assert SB3Agent(Zeros()).sharing_parameters() is None

    class Own(SB3Agent):
        pass

    assert Own(ppo).sharing_parameters() is None
    update = {name: array * 3 for name, array in agent.get_param_values().items()}
    arguments = {"in_flight": 7, "threads": True}
    with (
        LocalSampler(agent, "CartPole-v1", seed=2, worker_args=arguments) as sampler,
        LocalSampler(agent, "CartPole-v1", seed=2) as expected,
    ):
        for given in (None, update):
            assert sampler.obtain_trajectories(12, agent_update=given) == expected.obtain_trajectories(
                12, agent_update=given
            )


class Zeros:
    """Is no torch module."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return np.int64(0), None


def test_only_the_policy_is_sent():
    dqn = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", buffer_size=100_000, device="cpu")
    agent = cloudpickle.loads(data := cloudpickle.dumps(SB3Agent(dqn)))
    assert len(data) < 300_000
    assert agent.policy.optimizer is None
    assert dqn.policy.optimizer is not None
    observation = np.zeros(4, np.float32)
    assert agent.get_action(observation)[0] == dqn.predict(observation, deterministic=True)[0]


def test_models_are_loaded_by_the_name_of_their_algorithm_or_by_its_class(ppo, tmp_path):
    ppo.save(tmp_path / "model.zip")
    observation = gymnasium.make("CartPole-v1").reset(seed=0)[0]
    for algorithm in ("PPO", PPO):
        agent = SB3Agent.load(tmp_path / "model.zip", algorithm, deterministic=True)
        assert agent.get_action(observation)[0] == ppo.predict(observation, deterministic=True)[0]
    with pytest.raises(UsageError, match="no algorithm 'PPPO'"):
        SB3Agent.load(tmp_path / "model.zip", "PPPO")


class Offset(gymnasium.Env):
    """Observations far from zero: a Box, or a Dict of two and of pictures that are not normalised."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, *, is_dict=False):
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        both: Any = {
            "a": box,
            "b": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "c": spaces.Box(0, 255, (2,), np.uint8),
        }
        self.observation_space = spaces.Dict(both) if is_dict else box

    def _observe(self):
        box = self.np_random.normal(50.0, 5.0, 3).astype(np.float32)
        both: Any = {"a": box, "b": self.np_random.normal(2, 5, 2), "c": np.array([3, 200], np.uint8)}
        return both if isinstance(self.observation_space, spaces.Dict) else box

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), 100.0, self.t == 9, False, {}


def dict_env():
    return Offset(is_dict=True)


def normalized(env=Offset, **options):
    options = {"norm_obs_keys": ["a", "b"]} | options if env is dict_env else options
    return VecNormalize(DummyVecEnv([env]), **options)


def trained(env=Offset, **options):
    policy = "MultiInputPolicy" if env is dict_env else "MlpPolicy"
    model = PPO(policy, normalized(env, **options), n_steps=32, batch_size=32, n_epochs=1, seed=1, device="cpu")
    return model.learn(64)


@pytest.fixture(scope="module", params=[Offset, dict_env], ids=["box", "dict"])
def env_and_model(request):
    return request.param, trained(request.param)


def assert_acts_as_trained(batch, model):
    seen = model.get_vec_normalize_env().normalize_obs(batch.observations)
    np.testing.assert_allclose(batch.actions, model.predict(seen, deterministic=True)[0], atol=1e-6)


def test_it_acts_on_normalized_observations(env_and_model):
    env, model = env_and_model
    agent, batches = SB3Agent(model, deterministic=True), []
    vec: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 4, "block_size": 8}}
    for make, options in ((LocalSampler, {}), (MultiprocessingSampler, {"n_workers": 2}), (LocalSampler, vec)):
        with make(agent, env, seed=2, **options) as sampler:
            batches.append(batch := sampler.obtain_trajectories(8))
        assert_acts_as_trained(batch, model)
        assert (batch.rewards == 100.0).all(), "rewards are the environment's own"
    assert batches[0] == batches[1]
    observations = batch.observations
    raw = observations["a"] if env is dict_env else observations
    assert raw.mean() > 40.0
    together, _ = agent.get_actions(observations)
    for row, action in enumerate(together):
        np.testing.assert_allclose(
            agent.get_action(map_trees(lambda x, row=row: x[row], observations))[0], action, atol=1e-6
        )
    # To the bit, and nothing is touched.
    for given in (observations, map_trees(lambda x: x[0], observations)):
        before = pickle.dumps(given)
        found, expected = agent.statistics.normalized(given), model.get_vec_normalize_env().normalize_obs(given)
        for (_, one), (_, other) in zip(leaves(found), leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
        assert pickle.dumps(given) == before


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
    model, plain = trained(), PPO("MlpPolicy", DummyVecEnv([Offset]), device="cpu")
    with LocalSampler(SB3Agent(model, deterministic=True), Offset, seed=2) as sampler:
        sampler.obtain_trajectories(1)
        model.learn(64)
        for update in (model, SB3Agent(model).get_param_values()):
            assert_acts_as_trained(sampler.obtain_trajectories(2, agent_update=update), model)
        for update, words in (
            *((it, r"vec_normalize\.mean is missing") for it in (model.policy, model.policy.state_dict(), plain)),
            (trained(clip_obs=3.0), "clips at 3"),
        ):
            with pytest.raises(UsageError, match=words):
                sampler.obtain_trajectories(1, agent_update=update)
    with (
        LocalSampler(SB3Agent(plain), Offset, seed=2) as sampler,
        pytest.raises(UsageError, match="is not among its parameters"),
    ):
        sampler.obtain_trajectories(1, agent_update=model)


def test_statistics_from_a_file_and_a_warning_where_one_is_left_out(tmp_path):
    model = trained()
    statistics, observation = model.get_vec_normalize_env(), np.full(3, 50.0, np.float32)
    (tmp_path / "zoo" / "best").mkdir(parents=True)
    for name in ("model.zip", "zoo/best.zip"):
        model.save(tmp_path / name)
    statistics.save(tmp_path / "vecnormalize.pkl")
    statistics.save(tmp_path / "zoo" / "best" / "vec_normalize.pkl")  # where RL Zoo puts it
    for path in (tmp_path / "vecnormalize.pkl", str(tmp_path / "vecnormalize.pkl")):
        agent = SB3Agent.load(tmp_path / "model.zip", "PPO", vec_normalize=path, deterministic=True)
        assert np.array_equal(agent.statistics.normalized(observation), statistics.normalize_obs(observation))
    for archive, file in (
        ("model.zip", r"vecnormalize\.pkl"),
        ("model", r"vecnormalize\.pkl"),
        ("zoo/best.zip", "best/"),
    ):
        with pytest.warns(VecNormalizeWarning, match=rf"pass vec_normalize='.*{file}.*, else .*=False"):
            assert SB3Agent.load(tmp_path / archive, "PPO").statistics is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SB3Agent.load(tmp_path / "model.zip", "PPO", vec_normalize=False).statistics is None
        assert SB3Agent(model, vec_normalize=False).statistics is None
        assert SB3Agent(model.policy, vec_normalize=statistics).statistics is not None


@pytest.mark.parametrize("norm_obs", [True, False])
def test_an_on_policy_model_without_its_statistics_is_told_by_itself(tmp_path, norm_obs):
    """Also where there is no file with statistics, and where the user loaded the model."""
    trained(norm_obs=norm_obs).save(path := tmp_path / "model.zip")
    message = "was trained under VecNormalize; if that normalised observations, pass vec_normalize=FILE"
    loaded = PPO.load(path, device="cpu")
    spent: dict[str, Any] = {"num_trajectories": 2, "n_workers": 0, "seed": 1}
    for name, use in {
        "model.zip": lambda **how: SB3Agent.load(path, **how),
        r"the model \(PPO\)": lambda **how: SB3Agent(loaded, **how),
        f"{path}": lambda **how: evaluate(path, Offset, **spent, **how),
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
        SB3Agent(PPO.load(path, env=normalized(), device="cpu"))


def test_models_that_say_nothing_of_statistics_get_no_warning(tmp_path):
    """Those of off-policy algorithms keep the same attribute without a VecNormalize, and with one."""
    of_policy: dict[str, Any] = {"buffer_size": 100, "learning_starts": 5, "batch_size": 4, "device": "cpu"}
    for model in (
        PPO("MlpPolicy", DummyVecEnv([Offset]), n_steps=32, batch_size=32, device="cpu"),
        stable_baselines3.TD3("MlpPolicy", DummyVecEnv([Offset]), **of_policy),
        stable_baselines3.TD3("MlpPolicy", normalized(), **of_policy),
    ):
        model.learn(20).save(tmp_path / "model.zip")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            SB3Agent.load(tmp_path / "model.zip")
            SB3Agent(type(model).load(tmp_path / "model.zip", device="cpu"))


def test_statistics_that_do_not_suit(tmp_path):
    model = trained()
    (tmp_path / "no.pkl").write_bytes(b"no pickle")
    (tmp_path / "other.pkl").write_bytes(pickle.dumps({"a": 1}))
    for name, error, words in (
        ("no.pkl", UsageError, r"no\.pkl is not a file of VecNormalize\.save"),
        ("other.pkl", UsageError, "must be a VecNormalize or its file"),
        ("nothing.pkl", OSError, "nothing"),
    ):
        with pytest.raises(error, match=words):
            SB3Agent(model, vec_normalize=tmp_path / name)
    with pytest.raises(UsageError, match=r"of the shape \(3,\), and an observation has \(4,\)"):
        SB3Agent(model).get_action(np.zeros(4, np.float32))
    assert SB3Agent(trained(norm_obs=False)).statistics is None


# --- VecNormalize's statistics as filters of samplers


def test_filters_do_what_vec_normalize_does(tmp_path):
    normalize = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]), clip_obs=1.5, clip_reward=2.0)
    normalize.seed(0)
    normalize.reset()
    for _ in range(50):
        normalize.step(np.array([[0.5]], np.float32))
    filters = read_vec_normalize(normalize)
    observations, rewards = np.random.default_rng(0).normal(size=(20, 3)) * 3, np.linspace(-20.0, 1.0, 20)
    found, expected = filters.observation.apply(observations), normalize.normalize_obs(observations)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(filters.reward.apply(rewards), normalize.normalize_reward(rewards), rtol=1e-6)
    normalize.save(str(tmp_path / "normalize.pkl"))
    assert read_vec_normalize(tmp_path / "normalize.pkl") == filters


@pytest.mark.parametrize("env", [Offset, dict_env])
def test_vec_normalize_does_what_filters_do(tmp_path, env):
    """Pictures, which no filter changes, stay as they are."""
    rewards_clipped = RunningReturnNorm(0.9, clip=0.1)
    given: dict[str, Any] = {"observation_filter": RunningNorm(clip=1.5), "reward_filter": rewards_clipped}
    with LocalSampler("random", env, seed=1, **given) as sampler:
        sampler.warm_up(90)
        batch, filters = sampler.obtain_trajectories(2), sampler.filters
    write_vec_normalize(filters, path := tmp_path / "normalize.pkl", env)
    normalize = VecNormalize.load(str(path), DummyVecEnv([env]))
    expected = filters.observation.apply(batch.raw_observations)
    read = [read_vec_normalize(source).observation.apply(batch.raw_observations) for source in (normalize, path)]
    theirs = normalize.normalize_obs(batch.raw_observations)
    for tree, rtol, atol in ((theirs, 1e-7, 1e-5), *((tree, 1e-12, 0.0) for tree in read)):
        for (_, one), (_, other) in zip(leaves(tree), leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol, atol)
    rewards = filters.reward.apply(batch.raw_rewards)
    assert set(rewards.tolist()) == {0.1}, "or the clip does not show"
    np.testing.assert_allclose(rewards, normalize.normalize_reward(batch.raw_rewards), rtol=1e-6)
    assert normalize.gamma == 0.9
    if env is dict_env:
        assert normalize.norm_obs_keys == ["a", "b"]


def moments(*shape: int) -> Moments:
    return Moments(10.0, np.zeros(shape), np.ones(shape))


def of(statistics: Any, **options: Any) -> Any:
    return RunningNorm(**options).with_moments(statistics)


@pytest.mark.parametrize(
    ("filters", "env", "words"),
    [
        (Filters(RunningNorm()), "Pendulum-v1", "no statistics yet"),
        (Filters(of(moments(3))), "CartPole-v1", r"statistics of the shape \(3,\), but .* \(4,\)"),
        (Filters(of({"a": moments(3)})), dict_env, "of the keys a, but the environment has observations Dict"),
        (Filters(of({"a": moments(3), "b": moments(3), "c": None})), dict_env, r"\['b'\] has .* the shape \(3,\)"),
        (
            Filters(of(moments(4), epsilon=0.5), RunningReturnNorm(epsilon=0.1).with_moments(moments())),
            "CartPole-v1",
            r"observation_filter has epsilon=0.5, and reward_filter has epsilon=0.1",
        ),
    ],
)
def test_what_cannot_be_read_or_written(tmp_path, filters, env, words):
    with pytest.raises(UsageError, match=words):
        write_vec_normalize(filters, tmp_path / "a.pkl", env)
    assert not (tmp_path / "a.pkl").exists()
    for source, said in (
        (3, "this is not a VecNormalize, but a int"),
        (normalized(dict_env, norm_obs_keys=["a"]), "normalises only a"),
    ):
        with pytest.raises(UsageError, match=said):
            read_vec_normalize(source)
