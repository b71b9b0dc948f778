"""Data that are no data: an error each, which names the environment, the key, both values, trajectory and timestep."""

import re
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError

SPACE = spaces.Dict(speed=spaces.Box(-np.inf, np.inf, (2,), np.float32), gear=spaces.Discrete(5))
FINE: dict[str, Any] = {
    "observation": {"speed": np.zeros(2, np.float32), "gear": 1},
    "reward": 0.5,
    "terminated": False,
    "truncated": False,
    "info": {},
}
WRONG_AT = 2  # steps


class Odd(gymnasium.Env):
    """Returns something odd in its second step, in trajectories whose seed is odd, or in its reset."""

    observation_space = SPACE
    action_space = spaces.Discrete(2)

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.odd = seed % 2
        info = self.value if self.odd and self.name == "reset info" else {}
        return FINE["observation"], info

    def step(self, action):
        self.t += 1
        values = FINE | {"terminated": self.t == 3}
        if self.odd and self.t == WRONG_AT:
            values[self.name] = self.value
        return tuple(values.values())


BAD = [
    ("terminated", None, "terminated should be True or False, and is NoneType None", 1),
    ("terminated", "False", "terminated should be True or False, and is str 'False'", 1),
    ("terminated", 2, "terminated should be True or False, and is int 2", 1),
    ("truncated", [], r"truncated should be True or False, and is list []", 1),
    ("truncated", np.array([True]), "truncated should be True or False, and is ndarray array([ True])", 1),
    ("info", None, "env_infos: an info must be a dict, got NoneType None", 1),
    ("info", [], "env_infos: an info must be a dict, got list []", 1),
    ("info", False, "env_infos: an info must be a dict, got bool False", 1),
    ("info", np.zeros(2), "env_infos: an info must be a dict, got ndarray array([0., 0.])", 1),
    ("info", {3: 4}, "env_infos[3]: the keys of infos are strings, and this is 3", 1),
    ("reset info", None, "episode_infos: an info must be a dict, got NoneType None", None),
    ("reward", None, "the reward should be a number, and is NoneType None", 1),
    ("reward", "much", "the reward should be a number, and is str 'much'", 1),
    ("reward", np.ones(1), "the reward has the shape (1,), and should have ()", 1),
    ("reward", 2**53 + 1, "the reward is 9007199254740993 as int64, which would become 9007199254740992.0", 1),
    ("reward", 10**400, "the reward should be a number, and is int 1000", 1),
    (
        "observation",
        {"speed": np.array([0.1, 123456789.0]), "gear": 1},
        "observation['speed'] holds 123456789.0 as float64, which would become 123456792.0 in its space's dtype",
        2,
    ),
    (
        "observation",
        {"speed": [1e300, 0.0], "gear": 1},
        "observation['speed'] holds 1e+300 as float64, which would become inf in its space's dtype, float32",
        2,
    ),
    (
        "observation",
        {"speed": np.array([1, 2**31 - 1], np.int32), "gear": 1},
        "observation['speed'] holds 2147483647 as int32, which would become 2147483648.0",
        2,
    ),
    ("observation", {"speed": np.zeros((1, 2), np.float32), "gear": 1}, "has the shape (1, 2), and its space", 2),
    ("observation", {"speed": np.zeros(2, np.float32), "gear": 1.5}, "observation['gear'] has the dtype float64", 2),
]


def zero(_observation):
    return 0


class Batched:
    def get_action(self, _observation):
        return 0, {}

    def get_actions(self, observations):
        return np.zeros(len(observations["gear"]), np.int64), {}


def assert_refused(sampler, words, timestep, name="Odd"):
    with sampler, pytest.raises(RolloutError, match=re.escape(words)) as caught:
        sampler.obtain_trajectories(6)
    assert f"{name}: " in str(caught.value)
    if timestep is not None:
        assert str(caught.value.original).endswith(f", at timestep {timestep} of its trajectory")
    assert caught.value.phase == "recording the trajectory"
    return caught.value


@pytest.mark.parametrize(
    "options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}], ids=["default", "vec"]
)
@pytest.mark.parametrize(("name", "value", "words", "timestep"), BAD, ids=lambda value: str(value)[:20])
def test_what_is_no_data_is_an_error(name, value, words, timestep, options):
    with LocalSampler(zero, lambda: Odd("reward", 0.5), seed=5) as sampler:
        first = [seed % 2 for seed in sampler.obtain_trajectories(6).seeds].index(1)
    error = assert_refused(LocalSampler(Batched(), lambda: Odd(name, value), seed=5, **options), words, timestep)
    assert error.trajectory == first


def test_in_a_process_as_here():
    make = LocalSampler, MultiprocessingSampler
    told = []
    for sampler in make:
        for name, value, words, timestep in (BAD[0], BAD[-5]):
            bad = sampler(zero, lambda name=name, value=value: Odd(name, value), seed=5, n_workers=1)
            told.append(str(assert_refused(bad, words, timestep).original))
    assert told[:2] == told[2:]


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker}], ids=["default", "vec"])
@pytest.mark.parametrize("info", [None, (), 0], ids=str)
def test_an_agent_info_that_is_no_dict_is_an_error(info, options):
    class Agent:
        def get_action(self, observation):
            return 0, info

    sampler = LocalSampler(Agent(), lambda: Odd("reward", 0.5), seed=5, **options)
    assert_refused(sampler, "agent_infos: an info must be a dict, got", 0)


@pytest.mark.parametrize(
    ("terminated", "truncated"),
    [(True, 0), (np.True_, np.False_), (1, np.array(False)), (np.float32(1), 0.0), (np.int8(0), np.array(1))],
)
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker}], ids=["default", "vec"])
def test_whatever_is_true_or_false_will_do(terminated, truncated, options):
    class Ends(Odd):
        def step(self, action):
            self.t += 1
            ends = (terminated, truncated) if self.t == 3 else (type(terminated)(0), type(truncated)(0))
            if isinstance(truncated, np.ndarray):
                ends = ends[0], np.array(self.t == 3 and bool(truncated))
            return FINE["observation"], 0.5, *ends, {}

    with LocalSampler(zero, lambda: Ends("reward", 0.5), seed=5, **options) as sampler:
        batch = sampler.obtain_trajectories(4)
    assert batch.lengths.tolist() == [3] * 4
    assert batch.terminated.tolist() == [bool(terminated)] * 4
    assert batch.truncated.tolist() == [bool(truncated)] * 4


class OddVector(VectorEnv):
    """The same, vectorised natively: all of the second step's values, or the reset's infos, are odd."""

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
        ends = np.full(3, self.t == 3)
        values = {"observation": np.zeros((3, 2), np.float32), "reward": np.zeros(3), "terminated": ends}
        values |= {"truncated": np.zeros(3, bool), "info": {}}
        if self.t == WRONG_AT:
            values[self.name] = self.value
        return tuple(values.values())


LARGE = np.array([0, 2**53 + 1, 0])
LOST = np.array([[0, 0], [0, 123456789.0], [0, 0]])


@pytest.mark.parametrize(
    ("name", "value", "words", "timestep", "trajectory"),
    [
        ("terminated", np.array([None] * 3), "terminated should be an array of shape (3,), and is object", 1, 0),
        ("info", None, "env_infos: the infos of a vector environment must be a dict, got NoneType None", 1, 0),
        ("reset info", None, "episode_infos: the infos of a vector environment must be a dict", None, 0),
        ("reward", LARGE, "the reward is 9007199254740993 as int64, which would become 9007199254740992.0", 1, 1),
        ("observation", LOST, "observation holds 123456789.0 as float64, which would become 123456792.0", 2, 1),
        ("observation", LOST.astype(np.int64), "observation holds 123456789 as int64", 2, 1),
        ("observation", np.zeros((2, 3)), "a batch of 3 has the shape (2, 3), and should have (3, 2)", 2, 0),
    ],
)
def test_what_is_no_data_is_an_error_in_a_vector_environment(name, value, words, timestep, trajectory):
    class Agent:
        def get_action(self, observation):
            return 0, {}

    args = {"n_envs": 3, "block_size": 6}
    sampler = LocalSampler(Agent(), lambda: OddVector(name, value), seed=5, worker_class=VecWorker, worker_args=args)
    assert assert_refused(sampler, words, timestep, "OddVector").trajectory == trajectory


class GoesWild(VectorEnv):
    """Has numbers that no float32 holds, and rewards that no float64 does, where a slot runs on with nothing to do."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.DISABLED}  # type: ignore[misc]
    num_envs = 3
    single_observation_space, single_action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(2)
    wanted = np.array([2, 1, 1])  # how many trajectories of a block of four each slot runs

    def reset(self, *, seed=None, options=None):
        mask = np.ones(3, bool) if options is None else options["reset_mask"]
        if options is None:
            self.t, self.resets = np.zeros(3, int), np.zeros(3, int)
        self.t[mask] = 0
        self.resets[mask] += 1
        return self._observations(), {}

    def _observations(self):
        return np.where(self.resets > self.wanted, 1e300, self.t)[:, None].astype(np.float64)

    def step(self, actions):
        self.t += 1
        rewards = np.where(self.resets > self.wanted, 2**53 + 1, 1)
        return self._observations(), rewards, self.t == np.arange(2, 5), np.zeros(3, bool), {}


def test_what_a_slot_says_that_runs_nothing_does_not_matter():
    args = {"n_envs": 3, "block_size": 4}
    with LocalSampler(zero, GoesWild, seed=5, worker_class=VecWorker, worker_args=args) as sampler:
        batch = sampler.obtain_trajectories(8)
    assert batch.lengths.tolist() == [2, 3, 4, 2] * 2
    assert batch.observations[:, 0].tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 1] * 2
    assert batch.last_observations[:, 0].tolist() == [2, 3, 4, 2] * 2
    assert set(batch.rewards.tolist()) == {1.0}
