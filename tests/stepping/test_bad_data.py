"""What an environment may not return is an error that names the environment, and costs no other one its result."""

from typing import Any

import numpy as np
import pytest

from streamsampler.errors import RolloutError, SerializationError
from streamsampler.stepping.env_manager import EnvManager
from tests.stepping.conftest import MANAGERS
from tests.stepping.environments import Counting


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


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("on_failure", ["restore", "reset"])
@pytest.mark.slow
def test_after_an_info_that_does_not_unpickle_the_episode_ends(autoreset, on_failure, caplog):
    envs = lambda: Odd({4: {"error": TwoArgumentsError("a", "b")}})  # noqa: E731
    options: dict[str, Any] = {"n_envs": 2, "n_workers": 1, "seed": 0, "autoreset": autoreset}
    with EnvManager(envs, on_failure=on_failure, **options) as manager:
        manager.reset()
        if on_failure == "restore":  # it is the same when it is tried again
            with pytest.raises(RolloutError, match="cannot be unpickled"):
                manager.step(np.array([8, 1]))
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
