"""Environments whose spaces differ: in their bounds, or in their layouts, so that each has values of its own."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler.data.trees import map_tree, same
from streamsampler.errors import ActionError, RolloutError, UsageError
from streamsampler.stepping.managers import SerialEnvManager
from streamsampler.stepping.values import EnvValues
from tests.stepping.conftest import MODES
from tests.stepping.environments import Graded

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


def as_sampled(space, action):
    """Return an action as its space's samples are: those without dimensions arrive as scalars."""
    if isinstance(space, spaces.Dict):
        return {key: as_sampled(child, action[key]) for key, child in space.items()}
    return np.asarray(action) if isinstance(space, spaces.Box) else action


class Shaped(gymnasium.Env):
    """Draws what it shows; what it is sent shows in its rewards, and it ends after so many timesteps."""

    def __init__(self, kind, length=4, broken_at=None, observation_space=None):
        self.observation_space = observation_space or OBSERVATIONS[kind]
        self.action_space = ACTIONS[kind]
        self.length, self.broken_at = length, broken_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self.last = 0, None
        return self._drawn(), {}

    def _drawn(self):
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample()

    def step(self, action):
        assert self.action_space.contains(as_sampled(self.action_space, action)), action
        self._t += 1
        observation = np.zeros(5) if self._t == self.broken_at else self._drawn()
        parts = action.values() if isinstance(action, dict) else [action]
        return observation, float(sum(np.sum(part) for part in parts)), self._t == self.length, False, {}


ENVS = [functools.partial(Shaped, kind, length) for kind, length in zip(OBSERVATIONS, (4, 3, 5, 2), strict=True)]


def rows_of(env, seed, actions, autoreset):
    """Yield what the rows of an environment are to be: (observation, last, previous, reward, ended) of each step."""
    now, over = env.reset(seed=seed)[0], False
    for action in actions:
        before = now
        if over:
            now, over = env.reset(seed=seed)[0], False
            yield now, now, None, 0.0, False
            continue
        last, reward, over, _, _ = env.step(action)
        now = env.reset(seed=seed)[0] if over and autoreset == "same_step" else last
        yield now, last, before, reward, over
        over = over and autoreset != "same_step"


def typed(value):
    """Return a value with lists in place of arrays, and what dtype these have."""
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(typed, value))
    return (value.dtype.name, value.tolist()) if isinstance(value, np.ndarray | np.generic) else value


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.slow
def test_each_environment_has_values_of_its_own(new_manager, autoreset):
    manager = new_manager(ENVS, n_envs=4, seed=0, autoreset=autoreset, copy=autoreset != "disabled")
    assert manager.observation_spaces == tuple(OBSERVATIONS.values())
    assert manager.action_spaces == tuple(ACTIONS.values())
    seeds = [5, 6, 7, 8]
    first = manager.reset(seed=seeds, every_episode=True)
    kept = [typed(each) for each in first.observations]
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
            previous = None if one.timesteps[0] == 0 else one.previous_observations[0]
            values = one.observations[0], one.last_observations[0], previous, one.rewards[0].item(), one.ended[0].item()
            rows[env_id].append(typed(values))
        if autoreset == "disabled" and steps.ended.any():
            break
    for env_id, env in enumerate(ENVS):
        expected = rows_of(env(), seeds[env_id], sent[env_id], autoreset)
        assert rows[env_id] == [typed(each) for each in expected]
    assert autoreset == "disabled" or [typed(each) for each in first.observations] == kept
    held = manager.observations()
    held[0][:] = 0
    assert manager.observations()[0].any(), "what is returned is a copy"


def test_some_are_stepped_by_their_numbers(new_manager):
    manager = new_manager(ENVS, n_envs=4, seed=0)
    manager.reset()
    steps = manager.step({3: 5, 1: [0.5, 0.25]})
    assert (steps.env_ids.tolist(), steps.rewards.tolist()) == ([3, 1], [5, 0.75])
    assert same(steps.actions[1], np.array([0.5, 0.25]))
    assert steps.select([1]).observations[0].shape == (4,)
    manager.send([{"push": 1, "turn": 1.0}], [2])
    assert manager.recv().rewards.tolist() == [2]
    assert manager.random_actions([]).shape == (0,)


BYTES, FLOATS, INTEGERS = (spaces.Box(0, 100, (1,), dtype) for dtype in (np.uint8, np.float32, np.int64))
PARTS = spaces.Dict(a=BYTES, b=spaces.Tuple([spaces.Discrete(3), FLOATS]))
# A space, what an environment shows, and what it becomes: None for an error.
SHOWN: list[tuple[spaces.Space[Any], Any, Any]] = [
    (BYTES, np.array([300]), None), (BYTES, np.array([-1]), None), (BYTES, [5], [5]), (BYTES, [5, 5], None),
    (INTEGERS, [3.0], None), (INTEGERS, np.array([2**63 + 5], np.uint64), None), (FLOATS, np.array([1e300]), None),
    (FLOATS, np.array([2**24 + 1]), None), (FLOATS, np.array([0.1]), [np.float32(0.1)]), (FLOATS, ["a"], None),
    (FLOATS, None, None), (spaces.Box(0, 1, (1,), bool), np.array([3]), None), (spaces.Discrete(4), np.array(3), 3),
    (spaces.Discrete(4), np.array([3]), None), (spaces.Discrete(4), 1.5, None), (spaces.Discrete(4), 2**70, None),
    (spaces.MultiBinary(1), [True], [1]), (spaces.MultiDiscrete(np.array([[5, 6]])), [[4, 5]], [[4, 5]]),
    (PARTS, {"a": [5], "b": (2, np.ones(1))}, {"a": [5], "b": (2, [1.0])}), (PARTS, {"a": [5], "b": (2,)}, None),
    (PARTS, {"a": [500], "b": (2, np.ones(1))}, None), (PARTS, {"a": [5]}, None),
]  # fmt: skip


@pytest.mark.parametrize(("space", "value", "expected"), SHOWN)
def test_what_is_shown_or_sent_becomes_another_number_nowhere(space, value, expected):
    """Whether the values of environments come one by one, or together."""
    values = EnvValues([space] * 2, 1, "action", ActionError, np.zeros)
    puts: list[Any] = [lambda: values.put(0, 1, value), lambda: values.put_some(0, [1, 0], [value] * 2)]
    for put in puts:
        if expected is None:
            with pytest.raises(ActionError, match="action"):
                put()
        else:
            put()
            found = map_tree(lambda leaf: leaf.tolist(), values.read(0, 1))
            assert found == expected


WRONG: list[tuple[Any, str]] = [
    ([np.array([1, 1])], "a batch for actions of different spaces should be a sequence of 2 values, got list"),
    (np.array(3), "a batch for actions of different spaces should be a sequence of 2 values"),
    ([np.array([1, 1]), np.zeros(3)], r"environment 1: action has the shape \(3,\), but its space .*\(2,\)"),
    ([np.array([0.5, 1]), np.zeros(2)], "environment 0: action"),
]


def test_what_cannot_be_where_they_differ():
    broken = functools.partial(Shaped, "line", broken_at=3)
    with SerialEnvManager([ENVS[0], broken], n_envs=2, seed=0, on_failure="raise") as manager:
        manager.reset()
        good = [np.array([2, 3]), np.array([1.0, 0.5])]
        manager.step(good)
        for actions, match in WRONG:
            with pytest.raises(ActionError, match=match):
                manager.step(actions)
        assert manager.step(good).timesteps.tolist() == [2, 2]
        with pytest.raises(RolloutError, match=r"environment 1 .*observation has the shape \(5,\), .*\(4,\)"):
            manager.step(good)
        uses: list[Any] = [manager.vector_env, lambda: manager.observation_space, lambda: manager.action_space]
        for use in (*uses, manager.recorder):
            with pytest.raises(UsageError, match=r"space of environment 1 is .* that of environment 0 is .* must have"):
                use()


def test_spaces_may_differ_in_their_bounds_or_in_one_kind(new_manager):
    manager = new_manager([functools.partial(Graded, n) for n in (1, 2, 50)], n_envs=3, seed=0, on_failure="raise")
    manager.reset()
    assert [space.n for space in manager.action_spaces] == [1, 2, 50]
    assert [space.high.item() for space in manager.observation_spaces] == [1, 2, 50]
    for name in ("observation_space", "action_space"):
        with pytest.raises(
            UsageError, match=f"the {name.replace('_', ' ')} of environment 1 .*a manager's {name}s has each"
        ):
            getattr(manager, name)
    actions = np.array([manager.random_actions() for _ in range(30)])
    assert actions.max(0)[:2].tolist() == [0, 1]
    assert actions.max(0)[2] > 1
    assert manager.step(np.array([0, 1, 49])).observations.tolist() == [[0], [1], [49]]
    with pytest.raises(RolloutError, match=r"environment 1 .*action .*5.* is outside Discrete\(2\)"):
        manager.step(np.array([0, 5, 5]))
    one = spaces.Box(0, 1, (9,))
    manager = new_manager([functools.partial(Shaped, kind, observation_space=one) for kind in ("grid", "line")])
    assert manager.reset().observations.shape == (2, 9), "they are stacked where only the actions have other layouts"
    assert manager.step({0: [1, 1], 1: [0.5, 0.5]}).observations.dtype == np.float32


class Ordered(Shaped):
    """Its spaces have the keys in the order that it is given, and its own bounds; raises once."""

    def __init__(self, keys, high, mark):
        super().__init__("grid", 6, None, spaces.Dict([(key, spaces.Box(0, high, (2,))) for key in keys]))
        self.action_space = spaces.Dict([(key, spaces.Discrete(high)) for key in keys])
        self.mark = mark

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
            streams.append([typed(manager.step(manager.random_actions()).observations) for _ in range(9)])
            assert manager.stats.restored == fails
    assert streams[0] == streams[1]
    assert caplog.records == []


class Partless(Shaped):
    def __init__(self):
        super().__init__("line")
        self.action_space = spaces.Dict({})


def test_spaces_without_parts(new_manager):
    """A dict without parts is the action of each environment, and no dict of actions by environment."""
    manager = new_manager(Partless, n_envs=2, seed=0)
    manager.reset()
    for actions, n in ((manager.random_actions(), 2), ([{}, {}], 2), ({1: {}}, 1)):
        assert len(manager.step(actions)) == n
