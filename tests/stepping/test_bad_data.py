"""What an environment may not return is an error that names the environment, and costs no other one its result."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler
from streamsampler.errors import ActionError, DataError, RolloutError, SerializationError
from streamsampler.stepping.managers import EnvManager
from tests.stepping.conftest import MANAGERS
from tests.stepping.environments import Counting, Graded


class TwoArgumentsError(Exception):
    """Pickles, and does not unpickle."""

    def __init__(self, what, where):
        super().__init__(what + where)


class Odd(Counting):
    """Returns something else than it may at the action 8.

    Args:
        odd: What it returns, by the position among what `step` returns; at -1 the info of a reset with options.
    """

    def __init__(self, odd):
        super().__init__(length=20)
        self.odd = odd

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation, self.odd[-1] if options and -1 in self.odd else info

    def step(self, action):
        result = list(super().step(action))
        if action == 8:
            for place, value in self.odd.items():
                result[place] = value
        return tuple(result)


BAD_STEPS: list[tuple[Any, str]] = [
    ({1: None}, r"DataError: the reward should be a number, and is None"),
    ({1: "3.5"}, r"DataError: the reward should be a number, and is str '3.5'"),
    ({1: [1, 2]}, r"DataError: the reward has the shape \(2,\)"),
    ({2: None}, r"DataError: terminated should be True or False, and is None"),
    ({3: "no"}, r"DataError: truncated should be True or False, and is str 'no'"),
    ({4: None}, r"DataError: infos: an info must be a dict, got None"),
    ({4: [1]}, r"DataError: infos: an info must be a dict, got list \[1\]"),
]


MANAGERS_AND_STEPS = [
    *(("serial", *case) for case in BAD_STEPS),
    ("processes", *BAD_STEPS[0]),
    *(pytest.param("processes", *case, marks=pytest.mark.slow) for case in BAD_STEPS[1:]),
    *(pytest.param("one process", *case, marks=pytest.mark.slow) for case in BAD_STEPS),
]


@pytest.mark.parametrize(
    ("new_manager", "odd", "match"), MANAGERS_AND_STEPS, ids=lambda it: str(it)[:20], indirect=["new_manager"]
)
@pytest.mark.slow
def test_steps_that_return_something_else(new_manager, odd, match):
    manager = new_manager(lambda: Odd(odd), n_envs=2, seed=0, on_failure="raise")
    manager.reset()
    manager.send(np.array([8, 1]))
    check_one_fails_alone(manager, "raised in step.*" + match)


@pytest.mark.parametrize("info", [None, [1]])
@pytest.mark.slow
def test_resets_whose_info_is_no_dict(new_manager, info):
    manager = new_manager(lambda: Odd({-1: info}), n_envs=2, seed=0, on_failure="raise")
    manager.reset()
    manager.send(np.array([1]), [1])
    manager.async_reset([0], options={"odd": True})
    check_one_fails_alone(manager, r"raised in reset.*DataError: infos: an info must be a dict, got")


class Showing(gymnasium.Env):
    """Returns one value as each observation; the action says nothing."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, value):
        self.observation_space, self.value = space, value

    def reset(self, *, seed=None, options=None):
        return self.value, {}

    def step(self, action):
        return self.value, 0.0, True, False, {}


def box(dtype, shape=(1,)):
    low, high = (0, 1) if dtype is bool else (0 if np.dtype(dtype).kind == "u" else -100, 100)
    return spaces.Box(low, high, shape, dtype)


PARTS = spaces.Dict(a=box(np.uint8), b=spaces.Tuple([spaces.Discrete(3), box(np.float32)]))

# A space, what the environment returns, and what it becomes: None for an error.
OBSERVATIONS: list[tuple[Any, Any, Any]] = [
    (box(np.uint8), np.array([300]), None),
    (box(np.uint8), np.array([-1]), None),
    (box(np.uint8), np.array([5]), [5]),
    (box(np.uint8), [5], [5]),
    (box(np.uint8), np.array([5, 5], np.uint8), None),
    (box(np.int8), np.array([300]), None),
    (box(np.int32), np.array([2**40]), None),
    (box(np.int32), np.array([3.7]), None),
    (box(np.int64), [3.0], None),
    (box(np.int64), np.array([2**63 + 5], np.uint64), None),
    (box(np.float32), np.array([1e300]), None),
    (box(np.float32), np.array([2**24 + 1]), None),
    (box(np.float32), np.array([0.1]), [np.float32(0.1)]),
    (box(np.float32), (0.25,), [0.25]),
    (box(np.float32), ["a"], None),
    (box(np.float32), None, None),
    (box(bool), np.array([3]), None),
    (spaces.Discrete(4), 3, 3),
    (spaces.Discrete(4), np.int32(3), 3),
    (spaces.Discrete(4), np.array(3), 3),
    (spaces.Discrete(4), np.array([3]), None),
    (spaces.Discrete(4), 1.5, None),
    (spaces.Discrete(4), 2**70, None),
    (spaces.MultiDiscrete([5]), [4], [4]),
    (spaces.MultiBinary(1), [True], [1]),
    (PARTS, {"a": [5], "b": (2, np.ones(1))}, {"a": [5], "b": (2, [1.0])}),
    (PARTS, {"a": [500], "b": (2, np.ones(1))}, None),
    (PARTS, {"a": [5]}, None),
    (PARTS, {"a": [5], "b": (2,)}, None),
]


@pytest.mark.parametrize("kind", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("space", "value", "expected"), OBSERVATIONS)
def test_observations_become_what_they_become_in_samplers(kind, space, value, expected):
    with LocalSampler("random", lambda: Showing(space, value), seed=0, check=None) as sampler:
        sampled = outcome(lambda: sampler.obtain_trajectories(1).observations)
    options = {"autoreset": "same_step", "on_failure": "raise"}
    with MANAGERS[kind](lambda: Showing(space, value), n_envs=2, seed=0, **options) as manager:
        first = outcome(lambda: manager.reset().observations)
        assert same_kind(first, sampled)
        if expected is None:
            assert isinstance(sampled, DataError)
            return
        last = manager.step(np.zeros(2, int)).last_observations
    for observations in (sampled, first, last):
        assert plain(observations) == plain(expected)


def outcome(call):
    """The value of a call, or the exception that an environment caused."""
    try:
        return call()
    except RolloutError as error:
        return error.original


def same_kind(first, second):
    if isinstance(first, DataError) or isinstance(second, DataError):
        return type(first) is type(second) and first.args[0].split(": ")[0] in second.args[0]
    return True


def plain(tree):
    """The first row as lists and numbers of Python, of arrays and of what is none."""
    if isinstance(tree, dict):
        return {key: plain(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(plain, tree))
    return tree[0].tolist() if isinstance(tree, np.ndarray) else np.asarray(tree).tolist()


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (box(np.int8), np.array([[300], [1]]), None),
        (box(np.int8), [[3], np.array([4])], [[3], [4]]),
        (box(np.float32), np.array([[1e300], [0.0]]), None),
        (box(np.float32), np.array([[0.1], [0.2]]), [[np.float32(0.1)], [np.float32(0.2)]]),
        (box(np.float32), np.array([[True], [False]]), [[1.0], [0.0]]),
        (spaces.Discrete(4), np.array([1.0, 2.0]), None),
        (spaces.Discrete(4), np.array([1, 2], np.uint8), [1, 2]),
        (spaces.Discrete(4), [2**70, 0], None),
        (spaces.Tuple([spaces.Discrete(2), box(np.uint8)]), ([0, 1], [[7], [8]]), ([0, 1], [[7], [8]])),
        (spaces.Tuple([spaces.Discrete(2), box(np.uint8)]), [(0, [7]), (1, [8])], ([0, 1], [[7], [8]])),
        (spaces.Tuple([spaces.Discrete(2), box(np.uint8)]), ([0, 1], [[7], [800]]), None),
    ],
)
def test_actions_become_what_they_become_in_samplers(space, actions, expected):
    class Takes(Showing):
        action_space: Any = space

    with MANAGERS["serial"](lambda: Takes(box(np.uint8), np.zeros(1, np.uint8)), n_envs=2, seed=0) as manager:
        manager.reset()
        if expected is None:
            with pytest.raises(ActionError, match="action"):
                manager.step(actions)
            assert {state.name for state in manager.states} == {"READY"}
        else:
            written = manager.step(actions).actions
            parts = written if isinstance(written, tuple) else (written,)
            wanted = expected if isinstance(written, tuple) else (expected,)
            assert [part.tolist() for part in parts] == list(wanted)


@pytest.mark.parametrize("on_failure", ["restore", "reset", "raise"])
def test_a_wrong_action_is_an_error_of_its_caller_and_no_failure_of_the_environment(new_manager, on_failure):
    manager = new_manager(Graded, n_envs=2, seed=0, on_failure=on_failure, max_restarts=0)
    manager.reset()
    for _ in range(2):
        manager.send(np.array([7, 1]))
        match = r"environment 0 .*the agent's action .*7.* is outside Discrete\(2\)"
        with pytest.raises(RolloutError, match=match) as caught:
            manager.recv(min_envs=2)
        assert caught.value.quota is None
        assert manager.recv().observations.tolist() == [[1.0]]
        manager.reset([0])
    assert manager.failures == 0


def check_one_fails_alone(manager, match):
    with pytest.raises(RolloutError, match="environment 0 " + match):
        manager.recv(min_envs=2)
    assert manager.recv().env_ids.tolist() == [1]
    assert manager.reset(options={}).timesteps.tolist() == [0, 0]
    assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["one process", "processes"])
@pytest.mark.slow
def test_infos_that_do_not_unpickle(kind):
    envs = lambda: Odd({4: {"error": TwoArgumentsError("a", "b")}, -1: {"error": TwoArgumentsError("a", "b")}})  # noqa: E731
    with MANAGERS[kind](envs, n_envs=2, seed=0, on_failure="raise") as manager:
        manager.reset()
        manager.send(np.array([8, 1]))
        check_one_fails_alone(manager, r"raised in step.*its info cannot be unpickled.*TwoArgumentsError.__init__")
        manager.reset()
        manager.send(np.array([1]), [1])
        manager.async_reset([0], options={"odd": True})
        check_one_fails_alone(manager, r"raised in reset.*its info cannot be unpickled")


@pytest.mark.parametrize(
    ("envs", "match"),
    [
        (lambda: Odd({4: {"error": TwoArgumentsError("a", "b")}}), "cannot be unpickled"),
        (lambda: Odd({1: None}), "the reward should be a number"),
        (lambda: Odd({0: np.zeros(3)}), r"the shape \(3,\)"),
    ],
    ids=["info", "reward", "observation"],
)
@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("on_failure", ["restore", "reset"])
@pytest.mark.slow
def test_after_bad_data_the_episode_ends(envs, match, autoreset, on_failure, caplog):
    options: dict[str, Any] = {"n_envs": 2, "n_workers": 1, "seed": 0, "autoreset": autoreset}
    with EnvManager(envs, on_failure=on_failure, **options) as manager:
        manager.reset()
        if on_failure == "restore":  # it is the same when it is tried again
            with pytest.raises(RolloutError, match=match) as caught:
                manager.step(np.array([8, 1]))
            assert isinstance(caught.value.original, DataError)
            assert manager.recv().failed.tolist() == [False]
            manager.reset([0])
        else:
            assert manager.step(np.array([8, 1])).failed.tolist() == [True, False]
            if autoreset == "disabled":
                manager.reset([0])
            elif autoreset == "next_step":
                assert manager.step(np.array([1]), [0]).timesteps.tolist() == [0]
        steps = manager.step(np.array([1, 1]))
        assert steps.timesteps.tolist() == [1, 2]
        assert steps.observations[:, 1].tolist() == [1, 2]
        assert steps.episodes.tolist() == [1, 0]
    assert caplog.records == []


class Answers(Counting):
    def bad(self):
        return TwoArgumentsError("a", "b")


@pytest.mark.slow
def test_values_that_do_not_unpickle():
    with EnvManager(Answers, n_envs=2, n_workers=2, seed=0) as manager:
        manager.reset()
        with pytest.raises(SerializationError, match=r"what bad of environments 0 returned cannot be unpickled"):
            manager.call("bad")
        assert manager.get_attr("level") == [0, 0]
        assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]
