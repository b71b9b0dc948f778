"""Managers as Gymnasium's vector environments: what Gymnasium's own tests ask of vector environments, and more.

Gymnasium's peers are given the seeds that the manager gives to episodes after the first.
"""

import functools
import re
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from streamsampler.errors import ClosedError, RolloutError, UsageError
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.patience import PATIENCE
from tests.stepping.environments import Counting, Gated, Varied, gate
from tests.stepping.following import following

MODES = ["next_step", "same_step", "disabled"]


def test_all_is_gymnasiums(new_manager):
    """Step for step, over many episodes."""
    for autoreset in MODES:
        ours = new_manager(Varied, n_envs=3, seed=0, autoreset=autoreset).vector_env()
        assert_same(ours, SyncVectorEnv(following(Varied, 3), autoreset_mode=AutoresetMode[autoreset.upper()]))


@pytest.mark.slow  # its processes are forked from this one, whatever threads are at work here
@pytest.mark.parametrize("autoreset", MODES)
def test_all_is_that_of_gymnasiums_processes(autoreset):
    ours = EnvManager(Varied, n_envs=3, n_workers=3, seed=0, autoreset=autoreset).vector_env()
    # With shared memory: without it Gymnasium 1.4 resets an environment twice that is reset after its end.
    modes: dict[str, Any] = {"autoreset_mode": AutoresetMode[autoreset.upper()]}
    theirs = AsyncVectorEnv(following(Varied, 3), shared_memory=True, context="fork", **modes)
    assert_same(ours, theirs)


def assert_same(ours, theirs, n_steps=45):
    """Compare two vector environments, and close them."""
    assert ours.num_envs == theirs.num_envs
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.metadata == theirs.metadata
    assert ours.render_mode == theirs.render_mode
    ours.action_space.seed(5)
    n_ends = 0
    for seed in (3, [7, None, 9], None):
        assert_equal(ours.reset(seed=seed), theirs.reset(seed=seed))
        if seed is not None:
            assert ours.np_random_seed[0] == theirs.np_random_seed[0]
        for _ in range(n_steps // 3):
            actions = ours.action_space.sample()
            result = ours.step(actions)
            assert_equal(result, theirs.step(actions))
            ended = result[2] | result[3]
            n_ends += ended.sum()
            if ours.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
                reset = {"seed": [4, 5, 6], "options": {"reset_mask": ended}}
                assert_equal(ours.reset(**reset), theirs.reset(**{**reset, "options": {"reset_mask": ended}}))
    assert n_ends > 15
    assert [it.bit_generator.state for it in ours.np_random] == [it.bit_generator.state for it in theirs.np_random]
    assert_equal(ours.call("render"), theirs.call("render"))
    ours.close()
    theirs.close()


def assert_equal(one, other):
    assert data_equivalence(one, other, exact=True), f"{one}\n\nis not\n\n{other}"


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.slow
def test_a_mask_resets_some(new_manager, autoreset):
    """In every mode; the others go on, and one that had ended is reset with its next action."""
    ours = new_manager(Varied, n_envs=3, seed=0, autoreset=autoreset).vector_env()
    theirs = SyncVectorEnv(following(Varied, 3), autoreset_mode=AutoresetMode[autoreset.upper()])
    draw = np.random.default_rng(1)
    assert_equal(ours.reset(seed=3), theirs.reset(seed=3))
    for step in range(20):
        actions = ours.action_space.sample()
        result = ours.step(actions)
        assert_equal(result, theirs.step(actions))
        mask = draw.random(3) < 0.5
        if autoreset == "disabled":
            mask |= result[2] | result[3]
        if mask.any():
            # What it returned before is the caller's: a change of it is not seen in what a mask leaves alone.
            result[0]["position"][:] = np.nan
            seed: list[int | None] | None = None if step % 2 else [step] * 3
            found = ours.reset(seed=seed, options={"reset_mask": mask.copy()})
            assert_equal(found, theirs.reset(seed=seed, options={"reset_mask": mask}))
    theirs.close()


@pytest.mark.parametrize(
    "mask", [[True, False], np.array([True]), np.array([[True, True]]), np.zeros(2, bool), np.ones(2), np.arange(2)]
)
def test_masks_that_cannot_be(mask):
    env = SerialEnvManager(Counting, n_envs=2).vector_env()
    env.reset()
    with pytest.raises(UsageError, match=r"reset_mask.* must be a boolean array of 2, not all False, got"):
        env.reset(options={"reset_mask": mask})


def test_the_first_reset_is_one_of_all(new_manager):
    env = new_manager(Counting, n_envs=2).vector_env()
    with pytest.raises(UsageError, match=r"environments \[1\] were never reset"):
        env.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(UsageError, match=r"VOID: call reset\(\) first"):
        env.step(np.zeros(2, np.int64))


def test_observations_rewards_and_ends(new_manager):
    env = new_manager("FrozenLake-v1", n_envs=4).vector_env()
    assert isinstance(env, VectorEnv)
    assert env.unwrapped is env
    assert env.spec.id == "FrozenLake-v1"
    assert repr(env) == "ManagedVectorEnv(FrozenLake-v1, num_envs=4)"
    observations, infos = env.reset()
    assert observations.dtype == env.observation_space.dtype
    assert observations in env.observation_space
    assert infos["prob"].tolist() == [1, 1, 1, 1]
    for actions in ([env.single_action_space.sample() for _ in range(4)], env.action_space.sample()):
        observations, rewards, terminated, truncated, infos = env.step(actions)
        assert observations in env.observation_space
        assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
        assert rewards.shape == terminated.shape == truncated.shape == (4,)
        assert infos["_prob"].all()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (), np.float64),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Box(-1, 1, (3,), np.float16),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 4, 5]),
        spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])),
        spaces.MultiBinary((2, 3)),
        spaces.Tuple([spaces.Discrete(7), spaces.Dict(x=spaces.Box(0, 1, (2,)), y=spaces.Tuple([spaces.Discrete(2)]))]),
    ],
    ids=str,
)
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_spaces(space, autoreset):
    """An environment that returns its action; its action space has the space's generator, also in a process."""

    class Echo(gymnasium.Env):
        def __init__(self):
            self.observation_space = self.action_space = space

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self._t = 0
            return space.sample(), {}

        def step(self, action):
            self._t += 1
            return action, 0.5, self._t % 3 == 0, False, {}

    class Strict(Echo):
        def step(self, action):
            assert action in space
            return super().step(action)

    env = SerialEnvManager(Strict, n_envs=3, autoreset=autoreset).vector_env()
    peer = SyncVectorEnv([Echo] * 3, autoreset_mode=env.metadata["autoreset_mode"])
    assert env.reset()[0] in env.observation_space
    peer.reset()
    for timestep in range(1, 4):
        actions = env.action_space.sample()
        result, expected = env.step(actions), peer.step(actions)
        assert result[0] in env.observation_space
        if timestep < 3:
            assert_equal(result, expected)
            assert_equal(result[0], actions)
        elif autoreset == "same_step":
            assert_equal(result[4], expected[4])


def test_random_actions_are_gymnasiums():
    """The batched space draws as Gymnasium's own, from the generator of the environment's space."""

    def make():
        env = gymnasium.make("CartPole-v1")
        env.action_space.seed(123)
        return env

    with EnvManager(make, n_envs=3, n_workers=1) as manager:
        ours, theirs = manager.vector_env().action_space, SyncVectorEnv([make] * 3).action_space
        for _ in range(20):
            assert ours.sample().tolist() == theirs.sample().tolist()


def test_seeds(new_manager):
    env = new_manager("CartPole-v1", n_envs=3).vector_env()
    env.reset(seed=42)
    assert env.np_random_seed == (42, 43, 44)
    first = env.reset(seed=[1, 2, 3])[0]
    assert env.np_random_seed == (1, 2, 3)
    assert np.array_equal(env.reset(seed=np.array([1, 2, 3]))[0], first)
    assert np.array_equal(env.reset(seed=1)[0], first)
    assert not np.array_equal(env.reset()[0], first)
    assert len(set(env.np_random_seed)) == 3
    for seed, match in (
        ([1, 2], "seed has 2 items, but there are 3"),
        (-1, "seed must be at least 0"),
        (1.5, "seed must be an integer, got 1.5"),
        ("abc", "seed must be an integer, got 'abc'"),
        ([1, 2, "x"], "seed of environment 2 must be an integer, got 'x'"),
        ([1, 2, 1 << 63], "seed of environment 2 must be less than"),
    ):
        with pytest.raises(UsageError, match=re.escape(match)):
            env.reset(seed=seed)
    with pytest.raises(UsageError, match="options must be a dict, got list"):
        env.reset(options=[])
    assert np.array_equal(env.reset(seed=1)[0], first)


def test_options_hold_for_one_reset(new_manager):
    """As in Gymnasium; a manager remembers them."""
    ours = new_manager(Counting, n_envs=2, seed=0).vector_env()
    theirs = SyncVectorEnv(following(Counting, 2))
    for given in ({"hard": True}, {}, None):
        for env in (ours, theirs):
            env.reset(options=given)
            assert env.get_attr("options") == (given, given)
            for _ in range(4):
                env.step(np.zeros(2, np.int64))
            assert env.get_attr("options") == (None, None)


class Drawing(CartPoleEnv):
    """Draws a picture without the library that CartPole needs for it."""

    # Gymnasium 1.2 writes into that of CartPole.
    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 50}  # type: ignore[misc]

    def render(self):
        return np.full((2, 2, 3), round(100 * self.gravity) % 256, np.uint8)


def test_calls_and_attributes(new_manager):
    made = new_manager(Drawing, n_envs=4, env_kwargs={"render_mode": "rgb_array"}).vector_env()
    made.reset()
    assert made.render_mode == "rgb_array"
    frames = made.render()
    assert isinstance(frames, tuple)
    assert np.array_equal(frames, made.call("render"))
    assert made.call("gravity") == made.get_attr("gravity") == (9.8,) * 4
    made.set_attr("gravity", [9.81, 3.72, 8.87, 1.62])
    assert made.get_attr("gravity") == (9.81, 3.72, 8.87, 1.62)
    made.set_attr("gravity", 7.0)
    assert made.get_attr("gravity") == (7.0,) * 4
    with pytest.raises(UsageError, match="there are 2 values for 4 environments"):
        made.set_attr("gravity", (1, 2))
    with pytest.raises(UsageError, match="gravity of environment 0 is no method, and takes no arguments"):
        made.call("gravity", 3)
    with pytest.raises(UsageError, match=r"call\('reset'\) would go past the manager's accounts: use reset\(\)"):
        made.call("reset")
    with pytest.raises(AttributeError, match="has no attribute 'levity'"):
        made.get_attr("levity")
    assert "autoreset_mode" not in Drawing.metadata


def test_closing(new_manager):
    env = new_manager(Counting, n_envs=2).vector_env()
    env.reset()
    env.close(timeout=3)
    env.close()
    assert env.closed
    for call in (env.reset, env.render, lambda: env.step(np.zeros(2, np.int64)), lambda: env.call("level")):
        with pytest.raises(ClosedError, match="the environments are closed"):
            call()


def test_an_episode_that_fails_is_truncated_and_marked(new_manager):
    for autoreset in MODES:
        env = new_manager(Counting, n_envs=2, seed=0, on_failure="reset", autoreset=autoreset).vector_env()
        env.reset()
        env.step(np.array([1, 1]))
        observations, rewards, terminated, truncated, infos = env.step(np.array([1, 9]))
        assert (rewards.tolist(), terminated.tolist()) == ([1, 0], [False, False])
        assert truncated.tolist() == infos["env_failed"].tolist() == infos["_env_failed"].tolist() == [False, True]
        if autoreset == "same_step":
            assert infos["final_obs"][1][1] == 1
            assert infos["_final_info"].tolist() == [False, True]
            assert observations[:, 1].tolist() == [2, 0]
        elif autoreset == "disabled":
            env.reset(options={"reset_mask": truncated})
        else:
            assert env.step(np.array([1, 1]))[0][:, 1].tolist() == [3, 0]


def test_no_end(new_manager):
    with pytest.raises(UsageError, match="without max_episodes"):
        new_manager(Counting, n_envs=2, max_episodes=1).vector_env()


@pytest.mark.parametrize("autoreset", ["next_step", pytest.param("same_step", marks=pytest.mark.slow)])
@pytest.mark.parametrize("on_failure", ["raise", "restore"])
def test_after_an_error_all_environments_can_be_stepped_and_reset(new_manager, on_failure, autoreset, caplog):
    """The next step resets those that failed, of which the first is in the error and the others in the log."""
    env = new_manager(Counting, n_envs=3, seed=0, on_failure=on_failure, autoreset=autoreset).vector_env()
    env.reset()
    for _ in range(2):
        with pytest.raises(RolloutError, match="environment 1 raised in step"):
            env.step(np.array([1, 9, 1]))
        env.step(np.array([1, 1, 1]))
        assert env.step(np.array([1, 1, 1]))[1][1] == 1
    with pytest.raises(RolloutError, match=r"environment \d raised in step"):
        env.step(np.array([9, 1, 9]))
    assert ["in the same step: environment" in record.message for record in caplog.records] == [True]
    assert env.reset()[0][:, 1].tolist() == [0, 0, 0]
    assert env.step(np.array([1, 1, 1]))[1].tolist() == [1, 1, 1]


def test_calls_that_begin_and_wait(new_manager):
    """The same data as with `reset` and `step`; an `AsyncVectorEnv`'s names."""
    whole, parts = (new_manager(Varied, n_envs=2, seed=0).vector_env() for _ in range(2))
    whole.action_space.seed(3)
    parts.reset_async(seed=4)
    assert_equal(parts.reset_wait(timeout=PATIENCE), whole.reset(seed=4))
    for _ in range(12):
        actions = whole.action_space.sample()
        parts.step_async(actions)
        assert_equal(parts.step_wait(), whole.step(actions))
    parts.call_async("render")
    assert parts.call_wait()[0].shape == whole.call("render")[0].shape
    with pytest.raises(UsageError, match=r"call call_async\(\) first"):
        parts.call_wait()
    with pytest.raises(UsageError, match="nothing to receive"):
        parts.step_wait()


def test_waiting_for_no_longer_than_a_time(tmp_path):
    with gate(tmp_path / "pipe") as let_end:
        made = EnvManager(functools.partial(Gated, tmp_path / "pipe"), n_envs=2, seed=0).vector_env()
        made.reset()
        made.step_async(np.array([1, 2]))
        with pytest.raises(TimeoutError, match=r"environments \[0, 1\] have no results after 0.01 s"):
            made.step_wait(timeout=0.01)
        let_end(2)
        assert made.step_wait(timeout=PATIENCE)[1].tolist() == [1, 2]
        made.close()


def test_the_spec_is_that_of_the_environments(new_manager):
    assert new_manager("CartPole-v1", n_envs=2, seed=0).vector_env().spec.id == "CartPole-v1"
    assert new_manager(Counting, n_envs=2, seed=0).vector_env().spec is None
