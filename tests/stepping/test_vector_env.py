"""Managers as Gymnasium's vector environments: what Gymnasium's own return, and more.

Gymnasium's peers are given the seeds that the manager gives to episodes after the first.
"""

import functools
import multiprocessing
import pickle
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import error, spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from streamsampler.errors import ActionError, ClosedError, RolloutError, UsageError
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from streamsampler.testing import Fault, Faults
from tests.patience import PATIENCE
from tests.stepping.conftest import MODES
from tests.stepping.environments import Counting, Gated, Varied, following, gate
from tests.stepping.test_failures import Sick
from tests.stepping.test_spaces import as_sampled
from tests.tiers import mostly_slow

ONES = np.array([1, 1])


def serial(env=Counting, n_envs=2, **options):
    return SerialEnvManager(env, n_envs=n_envs, seed=0, **options).vector_env()


def assert_equal(one, other):
    assert data_equivalence(one, other, exact=True), f"{one}\n\nis not\n\n{other}"


def reset_both(ours, theirs, seed, mask=None):
    given = [{} if mask is None else {"options": {"reset_mask": mask.copy()}} for _ in range(2)]
    assert_equal(ours.reset(seed=seed, **given[0]), theirs.reset(seed=seed, **given[1]))


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_all_is_gymnasiums(new_manager, autoreset, masked):
    """Step for step, over many episodes; also where a mask resets some, and the others go on."""
    mode = AutoresetMode[autoreset.upper()]
    ours = new_manager(Varied, n_envs=3, seed=0, autoreset=autoreset if masked else mode).vector_env()
    theirs: Any = SyncVectorEnv(following(Varied, 3), autoreset_mode=mode)
    assert isinstance(ours.unwrapped, VectorEnv)
    for name in (
        "num_envs", "observation_space", "action_space", "single_observation_space", "single_action_space", "metadata",
        "render_mode",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(theirs, name)
    ours.action_space.seed(5)
    draw, n_ends = np.random.default_rng(1), 0
    for seed in (3, [7, None, 9], None):
        reset_both(ours, theirs, seed)
        for _ in range(15):
            actions = ours.action_space.sample()
            result = ours.step(actions)
            assert_equal(result, theirs.step(actions))
            mask = ended = result[2] | result[3]
            n_ends += ended.sum()
            if masked:
                mask = mask | (draw.random(3) < 0.5)
            if mask.any() and (masked or autoreset == "disabled"):
                # What it returned is the caller's: a change of it is not seen in what a mask leaves alone.
                result[0]["position"][:] = np.nan
                reset_both(ours, theirs, [4, 5, 6] if draw.random() < 0.5 else None, mask)
    assert n_ends > 15
    assert [it.bit_generator.state for it in ours.np_random] == [it.bit_generator.state for it in theirs.np_random]
    assert ours.np_random_seed == theirs.np_random_seed
    assert_equal(ours.call("render"), theirs.call("render"))


SPACES: list[Any] = [
    spaces.Box(-1, 1, (), np.float64), spaces.Discrete(5, start=-2), spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])),
    spaces.Tuple([spaces.Box(-1, 1, (3,), np.float16), spaces.Dict(x=spaces.MultiBinary((2, 3)))]),
]  # fmt: skip


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_values_of_all_spaces_are_those_of_gymnasiums(space):
    class Echo(gymnasium.Env):
        observation_space = action_space = space

        def reset(self, *, seed=None, options=None):
            space.seed(seed)
            return space.sample(), {}

        def step(self, action):
            return action, 0.5, False, False, {}

    class Strict(Echo):
        def step(self, action):
            assert as_sampled(space, action) in space
            return super().step(action)

    ours, theirs = serial(Strict), SyncVectorEnv([Echo] * 2)
    reset_both(ours, theirs, [4, 5])
    for _ in range(2):
        actions = ours.action_space.sample()
        result = ours.step(actions)
        assert_equal(result, theirs.step(actions))
        assert_equal(result[0], actions)
        assert result[0] in ours.observation_space


def test_random_actions_are_gymnasiums():
    """The batched space draws as Gymnasium's own, from the generator of the environment's space."""

    def make():
        env = gymnasium.make("CartPole-v1")
        env.action_space.seed(123)
        return env

    with EnvManager(make, n_envs=3, n_workers=1) as manager:
        ours, theirs = manager.vector_env(), SyncVectorEnv([make] * 3)
        assert (ours.spec.id, repr(ours)) == ("CartPole-v1", "ManagedVectorEnv(CartPole-v1, num_envs=3)")
        drawn = [[env.action_space.sample().tolist() for _ in range(20)] for env in (ours, theirs)]
        assert drawn[0] == drawn[1]


def test_seeds_and_masks():
    env = serial(n_envs=3)
    with pytest.raises(UsageError, match=r"environments \[1, 2\] were never reset"):
        env.reset(options={"reset_mask": np.array([True, False, False])})
    with pytest.raises(UsageError, match=r"VOID .*: call reset\(\) first"):
        env.step(np.zeros(3, np.int64))
    given_seeds: list[Any] = [(42, [42, 43, 44]), (np.array([1, 2, 3]), [1, 2, 3]), ([1, None, 3], [1, None, 3])]
    for seed, seeds in given_seeds:
        found = env.reset(seed=seed)[0][:, 0].tolist()
        assert all(given in (None, each) for given, each in zip(seeds, found, strict=True))
    assert len(set(env.reset()[0][:, 0].tolist())) == 3
    wrong: list[tuple[Any, str]] = [
        ([1, 2], "seed has 2 items, but there are 3"),
        (-1, "seed must be at least 0"),
        ("abc", "seed must be an integer, got 'abc'"),
        ([1, 2, "x"], "seed of environment 2 must be an integer, got 'x'"),
    ]
    for seed, match in wrong:
        with pytest.raises(UsageError, match=re.escape(match)):
            env.reset(seed=seed)
    masks: list[Any] = [[True, False, True], np.array([True]), np.zeros(3, bool), np.ones(3), np.arange(3)]
    for mask in masks:
        with pytest.raises(UsageError, match=r"reset_mask.* must be a boolean array of 3, not all False, got"):
            env.reset(options={"reset_mask": mask})
    with pytest.raises(UsageError, match="options must be a dict, got list"):
        env.reset(options=[])


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


def test_a_vector_environment_that_nothing_holds_closes_no_manager(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=0)
    manager.vector_env().reset()
    assert manager.reset().timesteps.tolist() == [0, 0]


def test_calls_and_attributes(monkeypatch):
    # Gymnasium's own, before 1.3, write into that of the class.
    monkeypatch.setattr(Varied, "metadata", {"render_modes": ["rgb_array"], "render_fps": 5})
    env = serial(Varied, env_kwargs={"render_mode": "rgb_array"})
    env.reset()
    assert env.render_mode == "rgb_array"
    assert isinstance(env.render(), tuple)
    assert np.array_equal(env.render(), env.call("render"))
    env.set_attr("gravity", (9.81, 3.72))
    assert env.call("gravity") == env.get_attr("gravity") == (9.81, 3.72)
    env.set_attr("gravity", 7.0)
    assert env.get_attr("gravity") == (7.0, 7.0)
    with pytest.raises(UsageError, match="values has 3 items, but there are 2 environments"):
        env.set_attr("gravity", (1, 2, 3))
    with pytest.raises(UsageError, match=r"call\('reset'\) would bypass the manager's records: use manager.reset\(\)"):
        env.call("reset")
    assert "autoreset_mode" not in Varied.metadata
    env.call_async("gravity")
    assert env.call_wait() == (7.0, 7.0)
    with pytest.raises(UsageError, match=r"call call_async\(\) first"):
        env.call_wait()


def test_steps_and_resets_that_begin_and_are_waited_for(tmp_path):
    """The same data as with `reset` and `step`; an `AsyncVectorEnv`'s names."""
    with gate(tmp_path / "pipe") as let_end:
        env = EnvManager(functools.partial(Gated, tmp_path / "pipe"), n_envs=2, seed=0).vector_env()
        env.reset_async(seed=4)
        assert env.reset_wait(timeout=PATIENCE)[0].tolist() == [[4, 0], [5, 0]]
        env.step_async(np.array([1, 2]))
        with pytest.raises(TimeoutError, match=r"environments \[0, 1\] have no results after 0.01 s"):
            env.step_wait(timeout=0.01)
        let_end(2)
        assert env.step_wait(timeout=PATIENCE)[1].tolist() == [1, 2]
        with pytest.raises(UsageError, match=r"nothing to wait for: call step_async\(\) first"):
            env.step_wait()
        env.close(timeout=3)


@pytest.mark.parametrize("autoreset", MODES)
def test_an_episode_that_fails_is_truncated_and_marked(autoreset):
    env = serial(on_failure="reset", autoreset=autoreset)
    env.reset()
    env.step(ONES)
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
        assert env.step(ONES)[0][:, 1].tolist() == [3, 0]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("on_failure", [pytest.param("raise", marks=pytest.mark.slow), "restore"])
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
    assert ["another failure in the same step: environment" in record.message for record in caplog.records] == [True]
    assert env.reset()[0][:, 1].tolist() == [0, 0, 0]
    assert env.step(np.array([1, 1, 1]))[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("at_end", [False, True])
def test_an_abnormal_environment_is_reset_with_the_next_step(at_end):
    env = serial(lambda: Sick(2))
    env.reset()
    if at_end:
        env.step(ONES)
    _, _, _, truncated, infos = env.step(np.array([8, 1]))
    assert truncated.tolist() == infos["env_failed"].tolist() == [True, False]
    with pytest.raises(ActionError, match=r"the shape \(3,\)"):
        env.step(np.array([1, 1, 1]))
    observations, rewards, terminated, truncated, infos = env.step(np.array([8, 2]))
    assert observations[:, 1].tolist() == [0, 0 if at_end else 2]
    assert rewards.tolist() == [0, 0 if at_end else 2]
    assert not (terminated | truncated)[0]
    assert infos["_new"].tolist() == [True, at_end]
    assert env.step(ONES)[0][0, 1] == 1


@pytest.mark.parametrize("face", ["vector_env", pytest.param("sb3_env", marks=pytest.mark.extras)])
@pytest.mark.parametrize("at_end", [False, True])
def test_an_abnormal_environment_is_reset_in_the_same_step(face, at_end):
    env = getattr(SerialEnvManager(lambda: Sick(2), n_envs=2, seed=0, autoreset="same_step"), face)()
    env.reset()
    if at_end:
        env.step(ONES)
    observations, *_, infos = env.step(np.array([8, 1]))
    assert observations[:, 1].tolist() == [0, 0 if at_end else 1]
    if face == "vector_env":
        assert infos["final_obs"][0][1] == (2 if at_end else 1)
        assert infos["final_info"]["abnormal"].tolist() == [True, False]
        assert infos["env_failed"].tolist() == [True, False]
    else:
        assert infos[0]["terminal_observation"][1] == (2 if at_end else 1)
        assert infos[0]["abnormal"]
        assert infos[0]["env_failed"]
    assert env.step(ONES)[0][:, 1].tolist() == [1, 1 if at_end else 0]


def test_an_abnormal_environment_is_left_to_a_caller_who_resets():
    env = serial(Sick, autoreset="disabled")
    env.reset()
    assert env.step(np.array([8, 1]))[3].tolist() == [True, False]
    env.reset(options={"reset_mask": np.array([True, False])})
    assert env.step(ONES)[0][:, 1].tolist() == [1, 2]


def test_calls_at_the_wrong_time_raise_what_can_be_caught_as_gymnasiums_classes(tmp_path):
    """And as this package's: a script that catches the errors of an `AsyncVectorEnv` catches these."""
    with gate(tmp_path / "pipe") as let_end:
        env = EnvManager(functools.partial(Gated, tmp_path / "pipe"), n_envs=2, n_workers=2, seed=0).vector_env()
        for nothing_to_wait_for in (env.reset_wait, env.step_wait, env.call_wait):
            assert_raised_as(nothing_to_wait_for, UsageError, error.NoAsyncCallError)
        env.reset_async()
        assert_raised_as(env.step_wait, UsageError, error.NoAsyncCallError)
        env.reset_wait()
        env.step_async(ONES)
        assert_raised_as(env.reset_wait, UsageError, error.NoAsyncCallError)
        for too_early in (
            lambda: env.step_async(ONES), lambda: env.step(ONES), lambda: env.call("level"),
            lambda: env.call_async("level"), lambda: env.set_attr("level", 3),
        ):  # fmt: skip
            raised = assert_raised_as(too_early, UsageError, error.AlreadyPendingCallError)
            assert isinstance(raised.name, str)
        assert_raised_as(lambda: env.step_wait(timeout=0.01), TimeoutError, multiprocessing.TimeoutError)
        let_end(2)
        assert env.step_wait(timeout=PATIENCE)[1].tolist() == [1, 1]
        env.close()
    for after_its_end in (env.reset, env.step_wait, lambda: env.step(ONES), lambda: env.call("level")):
        closed = assert_raised_as(after_its_end, ClosedError, error.ClosedEnvironmentError)
        assert "manager.launch()" in str(closed)


def test_an_action_without_an_episode_raises_gymnasiums_class():
    env = serial(autoreset="disabled")
    for without_an_episode in (lambda: env.step(ONES), lambda: env.step_async(ONES)):
        needs_reset = assert_raised_as(without_an_episode, UsageError, error.ResetNeeded)
        assert str(pickle.loads(pickle.dumps(needs_reset))) == str(needs_reset)
    env.reset()
    while not (ended := np.logical_or(*env.step(ONES)[2:4])).any():
        pass
    assert_raised_as(lambda: env.step(ONES), UsageError, error.ResetNeeded)
    env.reset(options={"reset_mask": ended})
    env.step(ONES)


def assert_raised_as(call, *classes):
    raised = []
    for cls in classes:
        with pytest.raises(cls) as caught:
            call()
        raised.append(caught.value)
    assert len({(type(each), str(each)) for each in raised}) == 1
    again = pickle.loads(pickle.dumps(raised[0]))
    assert (type(again), str(again), vars(again)) == (type(raised[0]), str(raised[0]), vars(raised[0]))
    return raised[0]


def test_an_attribute_can_be_called(new_manager):
    env = new_manager(Counting, n_envs=2, seed=0).vector_env()
    env.reset()
    assert env.call("length") == (3, 3)
    assert env.call("set_level", 2, factor=3) == (6, 6)


def test_arguments_for_an_attribute_are_ignored_with_a_warning():
    with pytest.warns(
        UserWarning, match="length of environment [01] is not a method.*arguments of the call are ignored"
    ):
        assert serial().call("length", 2) == (3, 3)


class Scalar(gymnasium.Env):
    """Has actions without dimensions, and shows their classes in infos."""

    observation_space = spaces.Discrete(9)
    action_space = spaces.Dict(
        {
            "x": spaces.Box(-1, 1, (), np.float32),
            "pair": spaces.Tuple([spaces.Box(0, 9, (), np.int64), spaces.Discrete(3)]),
        }
    )

    def __init__(self, offset=0):
        if offset:  # another space than those of other environments, but for the layout
            self.action_space = spaces.Dict({**self.action_space, "x": spaces.Box(-1, 1, (2,), np.float32)})
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return 0, {}

    def step(self, action):
        self.t += 1
        kinds = " ".join(type(it).__name__ for it in (action["x"], *action["pair"]))
        return self.t, float(np.sum(action["x"])), self.t == 3, False, {"kinds": kinds}


def test_actions_without_dimensions_arrive_as_scalars_as_in_gymnasiums_vector_environments(new_manager):
    ours = new_manager(Scalar, n_envs=2, seed=0).vector_env()
    theirs: Any = SyncVectorEnv([Scalar, Scalar])
    reset_both(ours, theirs, 1)
    for _ in range(3):
        actions = ours.action_space.sample()
        result = ours.step(actions)
        assert_equal(result, theirs.step(actions))
        assert result[-1]["kinds"].tolist() == ["float32 int64 int64"] * 2


@pytest.mark.parametrize("envs", mostly_slow([[Scalar, Scalar], [Scalar, functools.partial(Scalar, 1)]]))
def test_actions_are_applied_again_in_the_same_form(envs, tmp_path):
    faults = Faults(tmp_path, Fault("kill", "step", step=2))
    with EnvManager([faults.env(env) for env in envs], n_workers=2, seed=1, verify="steps") as manager:
        manager.reset()
        for _ in range(3):
            steps = manager.step(manager.random_actions())
            assert steps.info_by_row[0]["kinds"] == "float32 int64 int64"
        assert manager.failures == 1


class Long(Varied):
    """Shows the sum of all choices for 90 timesteps. May raise in its second episode, and not when made anew."""

    n_resets = 0

    def __init__(self, fails=False):
        super().__init__()
        self.fails = fails

    def reset(self, *, seed=None, options=None):
        self.n_resets, self.sum = self.n_resets + 1, 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.fails and (self.n_resets, self._t) == (2, 50):
            raise OSError("no longer")
        observation, reward, _, _, info = super().step(action)
        self.sum += int(action["choice"])
        observation["image"][:] = self.sum % 256
        return observation, reward, self._t == 90, False, info


@pytest.mark.parametrize("autoreset", mostly_slow(["next_step", "same_step"]))
def test_what_fails_after_many_steps_is_restored(new_manager, autoreset):
    """Steps of all environments are put in order by the dozens: none of them is missing, before or after."""
    plain = new_manager(Long, n_envs=3, seed=0, autoreset=autoreset).vector_env()
    manager = new_manager([functools.partial(Long, fails=True), Long, Long], seed=0, autoreset=autoreset)
    ours = manager.vector_env()
    plain.action_space.seed(5)
    assert_equal(ours.reset(seed=4), plain.reset(seed=4))
    for step in range(220):
        actions = plain.action_space.sample()
        if step % 100 == 99:
            assert_equal(manager.observations(), plain.manager.observations())  # other calls come in between
        assert_equal(ours.step(actions), plain.step(actions))
    assert (manager.stats.failures, manager.stats.restored) == (1, 1)
    assert manager.stats.kept_timesteps == plain.manager.stats.kept_timesteps


class Bounded(gymnasium.Env):
    """Shows a number up to a bound, which environments may have different ones of."""

    action_space = spaces.Discrete(2)

    def __init__(self, most=1.0, shape=(2,)):
        self.observation_space: Any = spaces.Box(0, most, shape, np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.high / 2, {}

    def step(self, action):
        return self.observation_space.high * (action + 1) / 2, 0.0, bool(action), False, {}


def bounded(*args):
    return [functools.partial(Bounded, *some) for some in args]


WIDE = spaces.Box(0, 9, (2,), np.float64)


@pytest.mark.parametrize(
    ("envs", "mode"),
    [
        (bounded((1.0,), (3.0,)), "different"),
        (bounded((2.0,), (2.0,)), "same"),
        (bounded((1.0,), (3.0,)), (batch_space(WIDE, 2), WIDE)),
    ],
    ids=["different", "same", "spaces"],
)
def test_observation_modes_are_gymnasiums(new_manager, envs, mode):
    ours = new_manager(envs, seed=0).vector_env(observation_mode=mode)
    theirs = SyncVectorEnv(envs, observation_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.single_observation_space == theirs.single_observation_space
    reset_both(ours, theirs, 0)
    for actions in [0, 0], [0, 1], [1, 0], [1, 1]:
        assert_equal(ours.step(np.array(actions)), theirs.step(np.array(actions)))


@pytest.mark.parametrize(
    ("envs", "mode", "text"),
    [
        (bounded((1.0,), (3.0,)), "same", "must have the same observation space"),
        (bounded((1.0,), (1.0, (3,))), "different", "differ only in their bounds, but these are Box"),
        (bounded((1.0,), (1.0, (3,))), (batch_space(WIDE, 2), WIDE), "differ only in their bounds"),
    ],
)
def test_observation_modes_refuse_environments_with_gymnasiums_class_of_error(envs, mode, text):
    manager = SerialEnvManager(envs, seed=0)
    with pytest.raises(UsageError, match=text) as raised:
        manager.vector_env(observation_mode=mode)
    assert isinstance(raised.value, RuntimeError)  # as AsyncVectorEnv raises


@pytest.mark.parametrize("mode", ["other", None, (WIDE,), (WIDE, 3), 2])
def test_there_is_no_other_observation_mode(mode):
    with pytest.raises(UsageError, match='observation_mode must be "same", "different", or a tuple of'):
        serial(Bounded).manager.vector_env(observation_mode=mode)


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_autoreset_takes_gymnasiums_values(mode):
    ours = [serial(Varied, autoreset=given) for given in (mode, mode.value, mode.name.lower())]
    assert [one.metadata["autoreset_mode"] for one in ours] == [mode] * 3
