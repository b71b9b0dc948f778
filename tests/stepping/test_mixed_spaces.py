"""Environments whose spaces have different layouts: each has values of its own."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler.data.trees import same
from streamsampler.errors import ActionError, RolloutError, UsageError
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.stepping.conftest import MANAGERS
from tests.stepping.test_restores import kill

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "grid": spaces.Box(0, 255, (2, 3), np.uint8),
    "line": spaces.Box(-1, 1, (4,), np.float32),
    "parts": spaces.Dict(place=spaces.Discrete(7), hand=spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 1, (1,))])),
    "number": spaces.Discrete(9),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "grid": spaces.MultiDiscrete([3, 4]),
    "line": spaces.Box(-1, 1, (2,), np.float64),
    "parts": spaces.Dict(push=spaces.Discrete(5), turn=spaces.Box(-1, 1, ())),
    "number": spaces.Discrete(6),
}
KINDS = tuple(OBSERVATIONS)


class Shaped(gymnasium.Env):
    """Draws what it shows; what it is sent shows in its rewards, and it ends after so many timesteps."""

    def __init__(self, kind, length=4, broken_at=None):
        self.observation_space, self.action_space = OBSERVATIONS[kind], ACTIONS[kind]
        self.length, self.broken_at = length, broken_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self.last = 0, None
        return self._drawn(), {}

    def _drawn(self):
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample()

    def step(self, action):
        assert self.action_space.contains(action), action
        self._t += 1
        self.last = action
        observation = np.zeros(5) if self._t == self.broken_at else self._drawn()
        return observation, digest_of(action), self._t == self.length, False, {}


def digest_of(action):
    parts = action.values() if isinstance(action, dict) else [action]
    return float(sum(np.sum(part) for part in parts))


ENVS = [functools.partial(Shaped, kind, length) for kind, length in zip(KINDS, (4, 3, 5, 2), strict=True)]


def plain(env, seed, actions, autoreset):
    """Yield what the rows of an environment are to be: (observation, last, previous, reward, ended) of each step."""
    now, over = env.reset(seed=seed)[0], False
    for action in actions:
        before = now
        if over:
            now, over = env.reset(seed=seed)[0], False
            yield now, now, None, 0.0, False
            continue
        now, reward, over, _, _ = env.step(action)
        last = now
        if over and autoreset == "same_step":
            now, over = env.reset(seed=seed)[0], False
            yield now, last, before, reward, True
        else:
            yield now, last, before, reward, over


@pytest.mark.parametrize("autoreset", ["next_step", pytest.param("same_step", marks=pytest.mark.slow), "disabled"])
def test_each_environment_has_values_of_its_own(new_manager, autoreset):
    manager = new_manager(ENVS, n_envs=4, seed=0, autoreset=autoreset, copy=autoreset != "disabled")
    assert manager.observation_spaces == tuple(OBSERVATIONS.values())
    assert manager.action_spaces == tuple(ACTIONS.values())
    seeds = [5, 6, 7, 8]
    first = manager.reset(seed=seeds, every_episode=True)
    assert same(list(first.observations), list(manager.observations()))
    rows: list[list[Any]] = [[] for _ in ENVS]
    sent: list[list[Any]] = [[] for _ in ENVS]
    for _ in range(12):
        actions = manager.random_actions()
        steps = manager.step(list(actions))
        assert same(list(steps.observations), list(manager.observations()))
        assert same(list(steps.actions), list(actions))
        for env_id, one in steps.by_env().items():
            sent[env_id].append(actions[env_id])
            has_begun = one.timesteps[0] == 0
            rows[env_id].append(snapshot(
                one.observations[0], one.last_observations[0], None if has_begun else one.previous_observations[0],
                one.rewards[0].item(), one.ended[0].item(),
            ))  # fmt: skip
        if autoreset == "disabled" and steps.ended.any():
            break
    for env_id, env in enumerate(ENVS):
        expected = list(plain(env(), seeds[env_id], sent[env_id], autoreset))
        assert len(expected) == len(rows[env_id])
        for now, then in zip(rows[env_id], expected, strict=True):
            assert same(now, plain_value(then))


def snapshot(*values):
    return tuple(map(plain_value, values))


def plain_value(value):
    """Return a value with lists in place of arrays, and what dtype these have."""
    if isinstance(value, dict):
        return {key: plain_value(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain_value, value))
    return (value.dtype.name, value.tolist()) if isinstance(value, np.ndarray | np.generic) else value


def test_some_are_stepped_by_their_numbers(new_manager):
    manager = new_manager(ENVS, n_envs=4, seed=0)
    manager.reset()
    steps = manager.step({3: 5, 1: [0.5, 0.25]})
    assert steps.env_ids.tolist() == [3, 1]
    assert steps.rewards.tolist() == [5, 0.75]
    assert same(steps.actions[1], np.array([0.5, 0.25]))
    assert steps.select([1]).observations[0].shape == (4,)
    manager.send([{"push": 1, "turn": 1.0}], [2])
    assert manager.recv().rewards.tolist() == [2]
    assert manager.random_actions([]).shape == (0,)


def test_observations_are_copies_that_stay(new_manager):
    manager = new_manager(ENVS[:2], n_envs=2, seed=0)
    steps = manager.reset()
    kept = steps.observations[0].copy()
    for _ in range(4):
        manager.step(list(manager.random_actions()))
    assert same(steps.observations[0], kept)
    held = manager.observations()
    held[0][:] = 0
    assert manager.observations()[0].any()


@pytest.mark.parametrize("wrong", [
    ([np.array([1, 1])], "a batch for actions of different spaces should be a sequence of 2 values, and is list"),
    (np.array(3), "a batch for actions of different spaces should be a sequence of 2 values"),
    ([np.array([1, 1]), np.zeros(3)], r"environment 1: action has the shape \(3,\), and its space .*\(2,\)"),
    ([np.array([1, 1]), "left"], "environment 1: action"),
    ([np.array([0.5, 1]), np.zeros(2)], "environment 0: action"),
])  # fmt: skip
def test_wrong_actions_change_nothing(new_manager, wrong):
    actions, match = wrong
    manager = new_manager(ENVS[:2], n_envs=2, seed=0)
    manager.reset()
    good = [np.array([2, 3]), np.array([1.0, 0.5])]
    manager.step(good)
    with pytest.raises(ActionError, match=match):
        manager.step(actions)
    assert manager.step(good).timesteps.tolist() == [2, 2]


def test_a_wrong_observation_is_its_environments(new_manager):
    manager = new_manager([ENVS[0], functools.partial(Shaped, "line", broken_at=1)], n_envs=2, on_failure="raise")
    manager.reset()
    with pytest.raises(RolloutError, match=r"environment 1 .*observation has the shape \(5,\), .*\(4,\)"):
        manager.step(list(manager.random_actions()))


@pytest.mark.parametrize("kind", ["serial", "processes"])
def test_where_they_must_agree(kind):
    with MANAGERS[kind](ENVS[:2], n_envs=2) as manager:
        for use in (manager.vector_env, lambda: manager.observation_space, lambda: manager.action_space):
            with pytest.raises(UsageError, match=r"space of environment 1 is .* that of environment 0 is .* must have"):
                use()


def test_one_kind_may_differ_alone(new_manager):
    """Observations are stacked where only the actions have different layouts."""
    manager = new_manager([functools.partial(Mixed, kind) for kind in ("grid", "line")], n_envs=2, seed=0)
    steps = manager.reset()
    assert steps.observations.shape == (2, 9)
    assert manager.step({0: [1, 1], 1: [0.5, 0.5]}).observations.dtype == np.float32


class Mixed(Shaped):
    def __init__(self, kind):
        super().__init__(kind)
        self.observation_space = spaces.Box(0, 1, (9,))


@pytest.mark.parametrize(
    ("autoreset", "verify"), [("next_step", "steps"), pytest.param("same_step", "last", marks=pytest.mark.slow)]
)
def test_they_are_restored(autoreset, verify, caplog):
    options: dict[str, Any] = {"n_envs": 4, "seed": 3, "autoreset": autoreset, "verify": verify}

    def rows(manager, killed_before):
        with manager:
            manager.reset()
            for number in range(12):
                if number in killed_before:
                    kill(manager, number % 2)
                steps = manager.step(list(manager.random_actions()))
                yield [
                    snapshot(*values)
                    for values in zip(
                        steps.observations, steps.last_observations, steps.actions, steps.rewards, steps.ended,
                        strict=True,
                    )
                ]  # fmt: skip

    with SerialEnvManager(ENVS, **options) as serial:
        expected = list(rows(serial, ()))
    manager = EnvManager(ENVS, n_workers=2, **options)
    assert list(rows(manager, (2, 5, 7))) == expected
    assert manager.failures == 3
    assert caplog.records == []


class Ordered(Shaped):
    """Its spaces have the keys in the order that it is given, and its own bounds; raises once."""

    def __init__(self, keys, high, mark):
        self.observation_space = spaces.Dict([(key, spaces.Box(0, high, (2,))) for key in keys])
        self.action_space = spaces.Dict([(key, spaces.Discrete(high)) for key in keys])
        self.length, self.broken_at, self.mark = 6, None, mark

    def step(self, action):
        if self._t == 2 and self.mark.exists():
            self.mark.unlink()
            raise RuntimeError("once")
        return super().step(action)


@pytest.mark.parametrize("verify", ["last", "steps"])
def test_the_order_of_keys_is_no_difference(verify, tmp_path, caplog):
    streams = []
    for fails in (False, True):
        marks = [tmp_path / "0", tmp_path / "1"]
        envs = [functools.partial(Ordered, *it) for it in zip(("ab", "ba"), (3, 5), marks, strict=True)]
        with SerialEnvManager(envs, n_envs=2, seed=0, verify=verify) as manager:
            manager.reset()
            if fails:
                marks[1].touch()
            streams.append([plain_value(manager.step(manager.random_actions()).observations) for _ in range(9)])
            assert manager.stats.restored == fails
    assert streams[0] == streams[1]
    assert caplog.records == []


def test_spaces_without_parts(new_manager):
    """A dict without parts is the action of each environment, and no dict of actions by environment."""
    manager = new_manager(Partless, n_envs=2, seed=0)
    manager.reset()
    assert len(manager.step(manager.random_actions())) == 2
    assert len(manager.step([{}, {}])) == 2
    assert len(manager.step({1: {}})) == 1


class Partless(Shaped):
    def __init__(self):
        super().__init__("line")
        self.action_space = spaces.Dict({})
