"""Managers as `VecEnv`s of Stable-Baselines3; its PPO, and a script of CleanRL's, are in the proof `faces`."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from streamsampler.errors import ActionError, RolloutError, UsageError
from streamsampler.stepping.managers import SerialEnvManager
from tests.stepping.environments import Counting, Varied, following

pytestmark = pytest.mark.extras


class Flat(Varied):
    """Has spaces that Stable-Baselines3 knows."""

    observation_space: Any = spaces.Dict(
        position=spaces.Box(-np.inf, np.inf, (2,), np.float32), image=spaces.Box(0, 255, (2, 2), np.uint8)
    )

    def __init__(self, action_space, render_mode="rgb_array"):
        super().__init__(render_mode)
        self.action_space = action_space

    def step(self, action):
        return super().step({"choice": np.sum(action), "force": np.resize(action, 2)})

    def _observation(self, force):
        whole = super()._observation(force)
        return {key: whole[key] for key in self.observation_space}


class Wide(Flat):
    """Has pictures, as `VecTransposeImage` and `VecFrameStack` take them."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def _observation(self, force):
        return np.resize(Varied._observation(self, force)["image"], (8, 8, 3))


def same_step(new_manager, env, n_envs=3, **options):
    return new_manager(env, n_envs=n_envs, seed=0, autoreset="same_step", **options).sb3_env()


def assert_same(one, other):
    one, other = without_seconds(one), without_seconds(other)
    assert data_equivalence(one, other, exact=True), f"{one}\n\nis not\n\n{other}"


def without_seconds(value):
    if isinstance(value, dict):
        return {key: without_seconds(it) for key, it in value.items() if key != "t"}
    return type(value)(map(without_seconds, value)) if isinstance(value, tuple | list) else value


ACTIONS = [
    spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(3)
]  # fmt: skip
WRAPPERS: dict[str, dict[str, Any]] = {
    "VecNormalize": {"norm_obs": False},
    "VecMonitor": {},
    "VecFrameStack": {"n_stack": 2},
    "VecCheckNan": {},
    "VecTransposeImage": {},
}


CORE = pytest.mark.core


@pytest.mark.parametrize(
    ("space", "wrapper"),
    [
        *(pytest.param(space, None, marks=CORE) for space in ACTIONS[:2]),
        *((space, None) for space in ACTIONS[2:]),
        *(pytest.param(ACTIONS[0], name, marks=CORE if name == "VecNormalize" else ()) for name in WRAPPERS),
    ],
    ids=str,
)
def test_all_is_that_of_a_dummy_vec_env(new_manager, space, wrapper):
    from stable_baselines3.common import monitor, vec_env

    def env():
        return monitor.Monitor(Flat(space)) if wrapper is None else Wide(space)

    ours, theirs = same_step(new_manager, env), vec_env.DummyVecEnv(following(env, 3))
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    if wrapper is not None:
        ours, theirs = (getattr(vec_env, wrapper)(it, **WRAPPERS[wrapper]) for it in (ours, theirs))
        assert ours.unwrapped.manager.n_envs == 3
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


def test_attributes_methods_and_indices():
    env = same_step(SerialEnvManager, Counting)
    assert not env.has_attr("dummy")
    env.set_attr("level", 12)
    env.set_attr("level", [1], indices=1)
    assert env.get_attr("level", indices=[0, -2]) == [12, [1]]
    assert env.env_method("set_level", 2, indices=[0, 2], factor=3) == [6, 6]
    assert env.get_attr("level") == [6, [1], 6]
    assert env.env_method("set_wrapper_attr", "level", 5, indices=0) == [True]
    with pytest.raises(AttributeError, match=r"environment 1 .* has no attribute 'depth'"):
        env.get_attr("depth", 1)
    with pytest.raises(IndexError):
        env.get_attr("level", 3)
    with pytest.warns(UserWarning, match="the render mode is None"):
        assert env.get_images() == [None] * 3


class Mine(gymnasium.Wrapper):
    pass


def test_wrapped(new_manager):
    from stable_baselines3.common.monitor import Monitor

    statistics = gymnasium.wrappers.RecordEpisodeStatistics
    env = same_step(new_manager, [lambda: statistics(Mine(Counting())), Counting, lambda: Monitor(Mine(Counting()))])
    assert env.env_is_wrapped(Monitor) == [False, False, True]
    assert env.env_is_wrapped(statistics) == [True, False, False]
    assert env.env_is_wrapped(Mine) == [True, False, True]
    assert env.env_is_wrapped(gymnasium.Wrapper, indices=[1, 2]) == [False, True]


def test_options_hold_for_one_reset():
    env = same_step(SerialEnvManager, Counting)
    env.set_options({"hello": 1})
    env.reset()
    assert env.get_attr("options") == [{"hello": 1}] * 3
    for _ in range(3):
        _, _, ended, infos = env.step(np.zeros(3, np.int64))
    assert ended.all()
    assert [info["terminal_observation"][1] for info in infos] == [3, 3, 3]
    assert env.get_attr("options") == [None] * 3
    env.set_options([{"hello": 1}, {}, {"hello": 2}])
    env.seed(2)
    first = env.reset()
    assert env.get_attr("options") == [{"hello": 1}, None, {"hello": 2}]
    env.seed(2)
    assert_same(env.reset(), first)
    assert env.get_attr("options") == [None] * 3
    env.set_options([{"hello": 1}])
    with pytest.raises(UsageError, match="options for 1 environments, but 3"):
        env.reset()


class Bits(gymnasium.Env):
    """Shows its action; its `reset` takes no options, as Stable-Baselines3 allows."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space: Any = spaces.MultiBinary(2)

    def __init__(self):
        self.lock = threading.Lock()

    def reset(self, *, seed=None):  # type: ignore[override]
        return np.zeros(2), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return action.astype(np.float64), 0.0, bool(action.all()), False, {}


def test_a_reset_that_takes_no_options(new_manager):
    env = same_step(new_manager, Bits, n_envs=2)
    assert env.reset().tolist() == [[0, 0]] * 2
    env.seed(3)
    env.reset()
    _, _, ended, _ = env.step(np.ones((2, 2), np.int8))
    assert ended.all()
    env.set_options({"hello": 1})
    with pytest.raises(RolloutError, match="unexpected keyword argument 'options'"):
        env.reset()


def test_whole_numbers_of_networks_are_actions(new_manager):
    import torch

    env = same_step(new_manager, Bits, n_envs=2)
    env.reset()
    assert env.step(np.array([[0, 1], [1, 0]], np.float32))[0].tolist() == [[0, 1], [1, 0]]
    for wrong in (np.full((2, 2), 0.5, np.float32), np.full((2, 2), np.nan, np.float32), np.full((2, 2), 300.0)):
        with pytest.raises(ActionError, match="without loss"):
            env.step(wrong)
    for zeros in (np.zeros((2, 2), np.float64), torch.zeros((2, 2), dtype=torch.int8), [[0, 0], [0, 0]]):
        assert env.step(zeros)[0].tolist() == [[0, 0]] * 2


def test_attributes_that_stay_in_their_process(new_manager):
    env = same_step(new_manager, Bits, n_envs=2)
    assert env.has_attr("lock")
    assert not env.has_attr("key")


def test_calls_out_of_turn(new_manager):
    env = same_step(new_manager, Counting)
    actions = np.zeros(3, np.int64)
    with pytest.raises(UsageError, match="call reset"):
        env.step(actions)
    first = env.reset()
    with pytest.raises(UsageError, match="nothing to receive"):
        env.step_wait()
    env.step_async(actions)
    with pytest.raises(UsageError, match="no result yet"):
        env.step_async(actions)
    assert env.step_wait()[0][:, 1].tolist() == [1, 1, 1]
    env.step_async(actions)
    again = env.reset()
    assert again[:, 1].tolist() == [0, 0, 0]
    assert not np.intersect1d(again[:, 0], first[:, 0]).size
    assert env.step(actions)[0][:, 1].tolist() == [1, 1, 1]
    env.step_async(actions)
    env.close()
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="launch"):
        env.step(actions)


def test_metadata_are_those_of_the_environments(new_manager):
    assert same_step(new_manager, lambda: Wide(ACTIONS[0])).metadata == Wide.metadata


def test_an_episode_that_fails():
    env = same_step(SerialEnvManager, Counting, on_failure="reset")
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
