"""Managers as `VecEnv`s of Stable-Baselines3: what its own tests ask of vector environments, and more."""

import contextlib
import itertools
import os
import signal
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from streamsampler.errors import UsageError
from streamsampler.stepping.managers import SerialEnvManager
from tests.stepping.environments import Counting, Varied
from tests.stepping.following import following

pytestmark = pytest.mark.extras


class Flat(Varied):
    """Has spaces that Stable-Baselines3 knows."""

    observation_space: Any = spaces.Dict(
        position=spaces.Box(-np.inf, np.inf, (2,), np.float32), image=spaces.Box(0, 255, (2, 2), np.uint8)
    )

    def __init__(self, kind="Discrete", render_mode="rgb_array"):
        super().__init__(render_mode)
        self.kind = kind
        self.action_space = {
            "Discrete": spaces.Discrete(5),
            "Box": spaces.Box(-1, 1, (2,), np.float32),
            "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
            "MultiBinary": spaces.MultiBinary(3),
        }[kind]
        self.options = None

    def reset(self, *, seed=None, options=None):
        self.options = options
        return super().reset(seed=seed)

    def step(self, action):
        return super().step({"choice": np.sum(action), "force": np.resize(action, 2)})

    def _observation(self, force):
        whole = super()._observation(force)
        return {key: whole[key] for key in self.observation_space}


def flat(kind):
    return lambda: Flat(kind)


def same_step(new_manager, env, n_envs=3, **options):
    return new_manager(env, n_envs=n_envs, seed=0, autoreset="same_step", **options).sb3_env()


@pytest.mark.parametrize("kind", ["Discrete", "Box", "MultiDiscrete", "MultiBinary"])
@pytest.mark.core
def test_all_is_that_of_a_dummy_vec_env(new_manager, kind):
    compare(same_step(new_manager, flat(kind)), flat(kind))


def test_with_a_monitor():
    from stable_baselines3.common.monitor import Monitor

    def monitored():
        return Monitor(Flat())

    compare(same_step(SerialEnvManager, monitored), monitored)


def compare(ours, env):
    """Compare an environment with Stable-Baselines3's own, and close both."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    theirs = DummyVecEnv(following(env, 3))
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    ours.action_space.seed(3)
    n_ends = 0
    for seed in (4, None, 9):
        if seed is not None:
            assert ours.seed(seed) == theirs.seed(seed) == [seed, seed + 1, seed + 2]
        assert_same(ours.reset(), theirs.reset())
        for _ in range(15):
            actions = np.stack([ours.action_space.sample() for _ in range(3)])
            result = ours.step(actions)
            assert_same(result, theirs.step(actions))
            assert_same(ours.reset_infos, theirs.reset_infos)
            n_ends += result[2].sum()
    assert n_ends > 15
    assert np.array_equal(ours.render(), theirs.render())
    ours.close()
    theirs.close()


def assert_same(one, other):
    one, other = without_seconds(one), without_seconds(other)
    assert data_equivalence(one, other, exact=True), f"{one}\n\nis not\n\n{other}"


def without_seconds(value):
    if isinstance(value, dict):
        return {key: without_seconds(it) for key, it in value.items() if key != "t"}
    return type(value)(map(without_seconds, value)) if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("name", ["VecNormalize", "VecMonitor", "VecFrameStack", "VecCheckNan", "VecTransposeImage"])
@pytest.mark.core
def test_wrappers(new_manager, name):
    from stable_baselines3.common import vec_env

    class Wide(Flat):
        observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

        def _observation(self, force):
            return np.resize(Varied._observation(self, force)["image"], (8, 8, 3))

    of_some: dict[str, dict[str, Any]] = {"VecFrameStack": {"n_stack": 2}, "VecNormalize": {"norm_obs": False}}
    arguments = of_some.get(name, {})
    wrapper = getattr(vec_env, name)
    ours = wrapper(same_step(new_manager, Wide), **arguments)
    theirs = wrapper(vec_env.DummyVecEnv(following(Wide, 3)), **arguments)
    for env in (ours, theirs):
        env.seed(3)
    assert_same(ours.reset(), theirs.reset())
    for _ in range(20):
        actions = np.ones(3, np.int64)
        assert_same(ours.step(actions), theirs.step(actions))
    assert ours.unwrapped.manager.n_envs == 3
    ours.close()


def test_attributes_methods_and_indices(new_manager):
    env = same_step(new_manager, Counting)
    assert not env.has_attr("dummy")
    env.set_attr("level", 12)
    assert env.get_attr("level") == [12] * 3
    for index in range(3):
        env.set_attr("level", [index], indices=index)
    assert env.get_attr("level", indices=[0, -1]) == [[0], [2]]
    assert env.env_method("set_level", 2, indices=[0, 2], factor=3) == [6, 6]
    assert env.get_attr("level") == [6, [1], 6]
    assert env.env_method("set_wrapper_attr", "level", 5, indices=0) == [True]
    with pytest.raises(AttributeError, match=r"environment 1 .* has no attribute 'depth'"):
        env.get_attr("depth", 1)
    with pytest.raises(IndexError):
        env.get_attr("level", 3)
    with pytest.raises(UsageError, match="would go past the manager's accounts"):
        env.env_method("step", 1)
    with pytest.raises(UsageError, match="nothing to receive from environment 0"):
        env.step_wait()
    with pytest.warns(UserWarning, match="the render mode is None"):
        assert env.get_images() == [None] * 3


class Mine(gymnasium.Wrapper):
    pass


def test_wrapped(new_manager):
    from stable_baselines3.common.monitor import Monitor

    statistics = gymnasium.wrappers.RecordEpisodeStatistics
    env = same_step(new_manager, [lambda: statistics(Mine(Counting())), Counting, lambda: Mine(Counting())])
    assert env.env_is_wrapped(Monitor) == [False, False, False]
    assert env.env_is_wrapped(statistics) == [True, False, False]
    assert env.env_is_wrapped(Mine) == [True, False, True]
    assert env.env_is_wrapped(gymnasium.Wrapper, indices=[1, 2]) == [False, True]


def test_options_hold_for_one_reset(new_manager):
    env = same_step(new_manager, flat("Discrete"))
    assert env.get_attr("options") == [None] * 3
    env.set_options({"hello": 1})
    env.reset()
    assert env.get_attr("options") == [{"hello": 1}] * 3
    env.reset()
    assert env.get_attr("options") == [None] * 3
    given = [{"hello": 1}, {}, {"hello": 2}]
    env.set_options(given)
    env.seed(2)
    first = env.reset()
    assert env.get_attr("options") == [{"hello": 1}, None, {"hello": 2}]
    env.seed(2)
    assert_same(env.reset(), first)
    env.set_options([{"hello": 1}])
    with pytest.raises(UsageError, match="options for 1 environments, but 3"):
        env.reset()


def test_options_do_not_hold_for_automatic_resets(new_manager):
    env = same_step(new_manager, Counting)
    env.set_options({"hello": 1})
    env.reset()
    for _ in range(3):
        _, _, ended, infos = env.step(np.zeros(3, np.int64))
    assert ended.all()
    assert [info["terminal_observation"][1] for info in infos] == [3, 3, 3]
    assert env.get_attr("options") == [None] * 3


def test_an_episode_that_fails(new_manager):
    env = same_step(new_manager, Counting, on_failure="reset")
    env.reset()
    env.step(np.ones(3, np.int64))
    observations, rewards, ended, infos = env.step(np.array([1, 9, 1]))
    assert (rewards.tolist(), ended.tolist()) == ([1, 0, 1], [False, True, False])
    assert observations[:, 1].tolist() == [2, 0, 2]
    assert infos[1].pop("terminal_observation").tolist()[1] == 1
    assert infos == [{"TimeLimit.truncated": is_cut, **({"env_failed": True} if is_cut else {})} for is_cut in ended]


def test_other_modes_are_refused():
    for autoreset in ("next_step", "disabled"):
        with pytest.raises(UsageError, match=rf'make the manager with autoreset="same_step" \(it has "{autoreset}"'):
            SerialEnvManager(Counting, n_envs=1, autoreset=autoreset).sb3_env()
    with pytest.raises(UsageError, match="without max_episodes"):
        SerialEnvManager(Counting, n_envs=1, autoreset="same_step", max_episodes=1).sb3_env()


@contextlib.contextmanager
def killed_every_second(manager, stepped):
    """Kill one of the workers in turn each second, whatever it does, if there was a step since the last time."""
    over = threading.Event()

    def kill():
        for number in itertools.count():
            if over.wait(1.0):
                return
            stepped.wait()  # on a busy machine it may take longer to restore environments
            stepped.clear()
            if (pid := manager.worker_pids()[number % 2]) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        yield
    finally:
        over.set()
        stepped.set()
        killing.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("meanwhile", [lambda *_: contextlib.nullcontext(), killed_every_second])
def test_ppo_solves_cartpole(meanwhile):
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    from streamsampler.stepping.managers import EnvManager

    stepped = threading.Event()
    torch.set_num_threads(1)  # several wait for one another where other programs run

    def note(*_):
        stepped.set()
        return True

    with (
        EnvManager(
            "CartPole-v1", n_envs=8, n_workers=2, seed=1, autoreset="same_step", max_restarts=None
        ) as manager,
        meanwhile(manager, stepped),
    ):  # fmt: skip
        env = manager.sb3_env()
        schedule = {"learning_rate": lambda left: left * 1e-3, "clip_range": lambda left: left * 0.2}
        model = PPO(
            "MlpPolicy", env, n_steps=32, batch_size=256, n_epochs=20, gae_lambda=0.8, gamma=0.98, seed=1,
            device="cpu", **schedule,
        )  # fmt: skip
        model.learn(100_000, callback=note)
        mean, _ = evaluate_policy(model, env, n_eval_episodes=50, callback=note)
        assert mean >= 475
