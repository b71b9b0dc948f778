"""Data that are no data: an error each, which names the environment, the key, both values, trajectory and timestep."""

import re
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from streamsampler import LocalSampler, VecWorker
from streamsampler.errors import RolloutError

FINE: dict[str, Any] = {
    "observation": {"speed": np.zeros(2, np.float32), "gear": 1}, "reward": 0.5, "terminated": False,
    "truncated": False, "info": {},
}  # fmt: skip
WRONG_AT = 2  # steps
VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}
WORKERS = pytest.mark.parametrize("options", [{}, VEC], ids=["default", "vec"])


class Odd(gymnasium.Env):
    """Returns something odd in its second step, in trajectories whose seed is odd, or in its reset."""

    observation_space = spaces.Dict(speed=spaces.Box(-np.inf, np.inf, (2,), np.float32), gear=spaces.Discrete(5))
    action_space = spaces.Discrete(2)

    def __init__(self, name: str = "reward", value: Any = 0.5) -> None:
        self.name, self.value = name, value

    def reset(self, *, seed=None, options=None):
        self.t, self.odd = 0, seed % 2
        return FINE["observation"], self.value if self.odd and self.name == "reset info" else {}

    def step(self, action):
        self.t += 1
        values = FINE | {"terminated": self.t == 3}
        if self.odd and self.t == WRONG_AT:
            values[self.name] = self.value
        return tuple(values.values())


class Agent:
    def get_action(self, _observation):
        return 0, {}

    def get_actions(self, observations):
        return np.zeros(len(observations["gear"]), np.int64), {}


def error_of(sampler, words, timestep):
    with sampler, pytest.raises(RolloutError, match=re.escape(words)) as caught:
        sampler.obtain_trajectories(6)
    if timestep is not None:
        assert str(caught.value.original).endswith(f", at timestep {timestep} of its trajectory")
    assert caught.value.phase == "recording the trajectory"
    return caught.value


def speed(value: Any) -> dict[str, Any]:
    return {"speed": value, "gear": 1}


@WORKERS
@pytest.mark.parametrize(
    ("name", "value", "words", "timestep"),
    [
        ("terminated", None, "terminated should be True or False, not NoneType None", 1),
        ("terminated", "False", "terminated should be True or False, not str 'False'", 1),
        ("terminated", 2, "terminated should be True or False, not int 2", 1),
        ("truncated", np.array([True]), "truncated should be True or False, not ndarray array([ True])", 1),
        ("info", None, "env_infos: an info must be a dict, got NoneType None", 1),
        ("info", {3: 4}, "env_infos[3]: the keys of infos must be strings, not 3", 1),
        ("reset info", None, "episode_infos: an info must be a dict, got NoneType None", None),
        ("reward", "3", "the reward should be a number, not str '3'", 1),
        ("reward", [1, [2]], "the reward should be a number, not list [1, [2]]", 1),
        ("reward", 1j, "the reward should be a number, not complex 1j", 1),
        ("reward", np.ones(1), "the reward has the shape (1,), but should have ()", 1),
        ("reward", 2**53 + 1, "the reward is 9007199254740993 as int64, which would become 9007199254740992.0", 1),
        ("reward", 10**400, "the reward should be a number, not int 1000", 1),
        ("observation", speed([1e300, 0.0]), "observation['speed'] holds 1e+300 as float64, which would become inf", 2),
        ("observation", speed(np.zeros((1, 2), np.float32)), "has the shape (1, 2), but its space", 2),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_data_is_an_error(name, value, words, timestep, options):
    error = error_of(LocalSampler(Agent(), lambda: Odd(name, value), seed=5, **options), words, timestep)
    with LocalSampler(Agent(), Odd, seed=5) as sampler:
        assert error.trajectory == [seed % 2 for seed in sampler.obtain_trajectories(6).seeds].index(1)
    assert "Odd: " in str(error)


@WORKERS
def test_an_agent_info_that_is_no_dict_is_an_error(options):
    class Odder:
        def get_action(self, observation):
            return 0, 0

    error_of(LocalSampler(Odder(), Odd, seed=5, **options), "agent_infos: an info must be a dict, got int 0", 0)


@pytest.mark.parametrize(
    ("terminated", "truncated"),
    [(np.True_, 0), (1, np.array(False)), (np.float32(1), 0.0), (np.int8(0), np.array(1))],
)
@WORKERS
def test_whatever_is_true_or_false_will_do(terminated, truncated, options):
    class Ends(Odd):
        def step(self, action):
            self.t += 1
            ends = (terminated, truncated) if self.t == 3 else (terminated * 0, truncated * 0)
            return FINE["observation"], 0.5, *ends, {}

    with LocalSampler(Agent(), Ends, seed=5, **options) as sampler:
        batch = sampler.obtain_trajectories(4)
    assert batch.lengths.tolist() == [3] * 4
    assert batch.terminated.tolist() == [bool(terminated)] * 4
    assert batch.truncated.tolist() == [bool(truncated)] * 4


class Vector(VectorEnv):
    """Three environments, natively; the value of the second step, or the reset's infos, are odd."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.DISABLED}  # type: ignore[misc]
    num_envs = 3
    single_observation_space, single_action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros((3, 2), np.float32), self.value if self.name == "reset info" else {}

    def step(self, actions):
        self.t += 1
        values = {"observation": np.zeros((3, 2), np.float32), "reward": np.zeros(3)}
        values |= {"terminated": np.full(3, self.t == 3), "truncated": np.zeros(3, bool), "info": {}}
        if self.t == WRONG_AT:
            values[self.name] = self.value
        return tuple(values.values())


LOST = np.array([[0, 0], [0, 123456789.0], [0, 0]])


@pytest.mark.parametrize(
    ("name", "value", "words", "timestep", "trajectory"),
    [
        ("terminated", np.array([None] * 3), "terminated should be an array of shape (3,), got object", 1, 0),
        ("info", None, "env_infos: the infos of a vector environment must be a dict, got NoneType None", 1, 0),
        ("reset info", None, "episode_infos: the infos of a vector environment must be a dict", None, 0),
        ("reward", np.array([0, 2**53 + 1, 0]), "the reward is 9007199254740993 as int64, which would become", 1, 1),
        ("observation", LOST, "observation holds 123456789.0 as float64, which would become 123456792.0", 2, 1),
        ("observation", LOST.astype(np.int64), "observation holds 123456789 as int64", 2, 1),
        ("observation", np.zeros((2, 3)), "a batch of 3 has the shape (2, 3), and should have (3, 2)", 2, 0),
    ],
    ids=range(7),
)
def test_what_is_no_data_is_an_error_in_a_vector_environment(name, value, words, timestep, trajectory):
    error = error_of(LocalSampler(lambda _: 0, lambda: Vector(name, value), seed=5, **VEC), words, timestep)
    assert error.trajectory == trajectory
    assert "Vector: " in str(error)


class GoesWild(Vector):
    """Has numbers that no float32 holds, and rewards that no float64 does, where a slot runs on with nothing to do."""

    wanted = np.array([2, 1, 1])  # how many trajectories of a block of four each slot runs

    def reset(self, *, seed=None, options=None):
        mask = np.ones(3, bool) if options is None else options["reset_mask"]
        if options is None:
            self.times, self.resets = np.zeros(3, int), np.zeros(3, int)
        self.times[mask] = 0
        self.resets[mask] += 1
        return self._observations(), {}

    def _observations(self):
        return np.repeat(np.where(self.resets > self.wanted, 1e300, self.times)[:, None], 2, axis=1)

    def step(self, actions):
        self.times += 1
        rewards = np.where(self.resets > self.wanted, 2**53 + 1, 1)
        return self._observations(), rewards, self.times == np.arange(2, 5), np.zeros(3, bool), {}


def test_what_a_slot_says_that_runs_nothing_does_not_matter():
    args = {"n_envs": 3, "block_size": 4}
    make = lambda: GoesWild("", None)  # noqa: E731
    with LocalSampler(lambda _: 0, make, seed=5, worker_class=VecWorker, worker_args=args) as sampler:
        batch = sampler.obtain_trajectories(8)
    assert batch.lengths.tolist() == batch.last_observations[:, 0].tolist() == [2, 3, 4, 2] * 2
    assert batch.observations[:, 0].tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 1] * 2
    assert set(batch.rewards.tolist()) == {1.0}
