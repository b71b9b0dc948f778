"""Environments of fragments are stepped with actions as the batch has them, so that those lead where they led."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, VecWorker, replay
from streamsampler.errors import RolloutError

SEED = 5
TWO: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
SPACES: dict[str, Any] = {
    "box": BOX,
    "number": spaces.Box(-1.0, 1.0, (), np.float32),
    "dict": spaces.Dict(a=BOX, n=spaces.Discrete(3), deep=spaces.Tuple([spaces.MultiBinary(2), BOX])),
    "tuple": spaces.Tuple([BOX, BOX]),
}


def numbers_of(action: Any) -> list[float]:
    """Return all numbers of an action as they are, not rounded."""
    if isinstance(action, dict):
        return [number for part in action.values() for number in numbers_of(part)]
    if isinstance(action, tuple | list):
        return [number for part in action for number in numbers_of(part)]
    return [float(number) for number in np.ravel(action)]


class Exact(gymnasium.Env[Any, Any]):
    """Shows the last action's numbers and their sum so far, as float64: what is lost of an action is seen."""

    def __init__(self, name: str) -> None:
        self.action_space = SPACES[name]
        self.n = len(numbers_of(self.action_space.sample()))
        self.observation_space = spaces.Box(-np.inf, np.inf, (2 * self.n,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.sum = np.zeros(self.n)
        return np.zeros(2 * self.n), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        numbers = np.array(numbers_of(action))
        self.sum += numbers
        return np.concatenate([numbers, self.sum]), float(numbers.sum()), False, False, {}


def doubles_of(space: Any, draw: Any) -> Any:
    """Return an action of floats of 64 bits, which its space has not."""
    if isinstance(space, spaces.Dict):
        return {key: doubles_of(child, draw) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(doubles_of(child, draw) for child in space.spaces)
    if isinstance(space, spaces.Box):
        return draw.uniform(-1.0, 1.0, space.shape)
    return np.ones(space.shape, np.int64) if space.shape else 1


class Doubles:
    """Acts in numbers of 64 bits."""

    def set_spaces(self, observations: Any, actions: Any) -> None:
        self.space = actions

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return doubles_of(self.space, self.rng), {}

    def get_state(self) -> Any:
        return self.rng.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.rng = np.random.default_rng()
        self.rng.bit_generator.state = state


class Lists(Doubles):
    """Acts in lists of Python's own numbers."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return doubles_of(self.space, self.rng).tolist(), {}


class Rows(Doubles):
    """Acts for all rows at once."""

    def get_actions(self, observations: Any) -> Any:
        each = [doubles_of(self.space, self.rng) for _ in observations]
        return (np.array(each) if isinstance(self.space, spaces.Box) else each), {}


@pytest.mark.parametrize(
    ("agent", "options", "name"),
    [(Doubles, {}, "dict"), (Rows, TWO, "dict"), (Rows, TWO, "number"), (Doubles, TWO, "tuple")],
)
def test_actions_of_other_floats_lead_where_they_led(agent, options, name):
    with LocalSampler(agent(), Exact, seed=SEED, env_kwargs={"name": name}, **options) as sampler:
        batch = sampler.obtain_fragments(6, 3)
    for index in batch.indices.tolist():
        assert replay(batch, index, env=lambda: Exact(name), actions=True).same


@pytest.mark.parametrize(("agent", "options"), [(Doubles, {}), (Lists, {}), (Lists, TWO), (Rows, TWO)])
def test_what_the_environment_gets_is_what_the_batch_has(agent, options):
    with LocalSampler(agent(), Exact, seed=SEED, env_kwargs={"name": "box"}, **options) as sampler:
        batch = sampler.obtain_fragments(6, 3)
    assert batch.actions.dtype == np.float32
    assert (batch.next_observations[:, :2] == batch.actions).all()


class Given(gymnasium.Env[Any, Any]):
    """Keeps the actions that it gets."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    given: list[Any] = []  # noqa: RUF012 - of the one that there is

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.given.clear()
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.given.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "action", "fits"),
    [
        (spaces.Discrete(3), 2, True),
        (spaces.Discrete(3), np.int32(2), True),
        (spaces.MultiDiscrete([3, 3]), np.array([1, 2], np.int32), True),
        (BOX, np.array([0.5, 0.25], np.float32), True),
        (BOX, np.array([0.5, 0.25], np.float64), False),
        (SPACES["tuple"], (np.zeros(2, np.float32), np.ones(2, np.float32)), True),
        (SPACES["dict"], {"a": np.zeros(2, np.float32), "n": 1, "deep": (np.ones(2, np.int8),) * 2}, False),
    ],
)
def test_actions_that_fit_are_given_as_they_are_and_those_of_whole_trajectories_always(space, action, fits):
    options: dict[str, Any] = {"env_kwargs": {"action_space": space}, "check": None, "max_episode_length": 2}
    with LocalSampler(lambda _: action, Given, **options) as sampler:
        sampler.obtain_trajectories(1)
        assert [repr(given) for given in Given.given] == [repr(action)] * 2
        sampler.obtain_fragments(2, 1)
        assert ([repr(given) for given in Given.given] == [repr(action)] * 2) == fits


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("options", [{}, TWO])
def test_an_action_that_its_space_cannot_hold_is_an_error(options):
    with (
        LocalSampler(lambda _: np.full(2, 1e300), Exact, check=None, env_kwargs={"name": "box"}, **options) as sampler,
        pytest.raises(RolloutError, match=r"while choosing an action (?s:.*)ActionError: .* would become inf"),
    ):
        sampler.obtain_fragments(2, 2)
