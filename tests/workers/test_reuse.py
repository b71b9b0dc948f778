"""Agents and environments that reuse their arrays, or change or keep what they are given, change no batch."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import DefaultWorker, LocalSampler, SerialEnvManager, VecWorker
from streamsampler.workers.restoring import say_again
from tests.scripted.vectors import Vector

SPACES = {
    "array": spaces.Box(-9, 9, (2,), np.float32),
    "dict": spaces.Dict(a=spaces.Box(-9, 9, (2,), np.float32), b=spaces.Tuple([spaces.Box(-9, 9, (1,), np.float64)])),
}
FIVES = {
    "array": lambda *rows: np.full((*rows, 2), 5, np.float32),
    "dict": lambda *rows: {"a": np.full((*rows, 2), 5, np.float32), "b": (np.full((*rows, 1), 5.0),)},
}
VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}


def arrays_of(action):
    if isinstance(action, dict):
        return [array for part in action.values() for array in arrays_of(part)]
    return [array for part in action for array in arrays_of(part)] if isinstance(action, tuple) else [action]


class Clips(gymnasium.Env):
    """Clips its action in place, as `np.clip(action, -1, 1, out=action)` does; the reward is what it was before."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)

    def __init__(self, kind):
        self.action_space = SPACES[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._t += 1
        reward = max(float(array.max()) for array in arrays_of(action))
        for array in arrays_of(action):
            np.clip(array, -1, 1, out=array)
        return np.zeros(1, np.float32), reward, self._t == 4, False, {}


class ReturnsItsOwn:
    """Returns the same arrays each time, and shows them in the agent info."""

    row_independent = True

    def __init__(self, kind):
        self.action, self.actions = FIVES[kind](), FIVES[kind](2)

    def get_action(self, observation):
        return self.action, {"mine": arrays_of(self.action)[0]}


class InBatches(ReturnsItsOwn):
    def get_actions(self, observations):
        return self.actions, {"mine": arrays_of(self.actions)[0]}


class Overrides(DefaultWorker):
    def before_step(self, context):
        return super().before_step(context)


class Hook:
    def on_timestep(self, context):
        assert min(array.min() for array in arrays_of(context.action)) == 5


TWO: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    ("agent", "options"),
    [(ReturnsItsOwn, {}), (ReturnsItsOwn, {"worker_class": Overrides}), (ReturnsItsOwn, {"hooks": Hook()}),
     (ReturnsItsOwn, TWO), (InBatches, TWO)],
)  # fmt: skip
def test_what_an_environment_does_to_its_action_reaches_neither_agent_nor_batch(space, agent, options):
    # Without a check, which would see that trajectories depend on those before.
    with LocalSampler(agent(space), lambda: Clips(space), seed=1, check=None, **options) as sampler:
        batches = [sampler.obtain_trajectories(6)]
        if options in ({}, TWO):
            batches.append(sampler.obtain_fragments(6, 2))
    for batch in batches:
        assert (batch.rewards == 5).all()
        assert all((array == 5).all() for array in arrays_of(batch.actions))
        assert (batch.agent_infos["mine"] == 5).all()


@pytest.mark.parametrize("space", SPACES)
def test_it_reaches_neither_the_callers_actions_nor_those_that_restore_an_episode(space):
    with SerialEnvManager(lambda: Clips(space), n_envs=2, seed=1) as manager:
        manager.reset()
        given = FIVES[space](2)
        for _ in range(3):
            steps = manager.step(given)
            assert steps.rewards.tolist() == [5, 5]
            assert all((array == 5).all() for array in [*arrays_of(given), *arrays_of(steps.actions)])
    env, actions = Clips(space), [FIVES[space]()] * 3
    for _ in range(2):
        assert [said.reward for said in say_again(env, env.reset(), actions)] == [0, 5, 5, 5]


PLANE = SPACES["array"]


class Keeping(gymnasium.Env):
    """Shows the action before the last one: it keeps the actions that it was given, and copies none."""

    observation_space = action_space = PLANE

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kept = [np.zeros(2, np.float32)]
        self.length = int(self.np_random.integers(3, 7))
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.kept.append(action)
        before = self.kept[-2]
        return (
            np.array(before, np.float32),
            float(np.sum(before)),
            len(self.kept) > self.length,
            False,
            {"kept": before},
        )


class Reusing:
    """Acts on what it sees, and puts all its actions and infos into the same arrays."""

    dtype: Any = np.float64

    def __init__(self):
        self.actions, self.infos = np.zeros((8, 2), self.dtype), np.zeros((8, 2))

    def get_action(self, observation):
        self.actions[0] = 0.5 * observation[::-1] + 0.25
        self.infos[0] = observation
        return self.actions[0], {"seen": self.infos[0]}


class ReusingBatches(Reusing):
    def get_actions(self, observations):
        n = len(observations)
        self.actions[:n] = 0.5 * observations[:, ::-1] + 0.25
        self.infos[:n] = observations
        observations[:] = 7
        return self.actions[:n], {"seen": self.infos[:n]}


class ReusingOfItsDtype(ReusingBatches):
    dtype = np.float32


def act_anew(observation):
    return 0.5 * observation[::-1] + 0.25


@pytest.mark.parametrize(
    ("agent", "env"),
    [(Reusing, Keeping), (ReusingBatches, Keeping), (ReusingOfItsDtype, Vector("DISABLED", Keeping)),
     (ReusingOfItsDtype, Keeping)],
)  # fmt: skip
def test_agents_that_reuse_their_arrays(agent, env):
    class Fresh:
        def get_action(self, observation):
            return act_anew(observation).astype(agent.dtype), {"seen": np.array(observation, np.float64)}

    with (
        LocalSampler(agent(), env, seed=3, **VEC) as sampler,
        LocalSampler(agent(), Keeping, seed=3) as one,
        LocalSampler(Fresh(), Keeping, seed=3) as reference,
    ):
        expected = reference.obtain_trajectories(12)
        assert sampler.obtain_trajectories(12) == expected
        assert one.obtain_trajectories(12) == expected


class Spoiling:
    """Keeps and changes the objects that it sees."""

    def get_action(self, observation):
        observation["list"].append(99)
        return 0, {}

    def get_actions(self, observations):
        for value in observations["list"]:
            value.append(99)
        return np.zeros(len(observations["list"]), np.int64), {}


class SpoilingOne:
    get_action = Spoiling.get_action


class Objects(spaces.Space[Any]):
    def contains(self, x):
        return isinstance(x, list)

    def __eq__(self, other):
        return type(self) is type(other)


class Lists(gymnasium.Env):
    """Shows lists, of a space that has no arrays."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(list=Objects())

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {"list": [0]}, {}

    def step(self, action):
        self.t += 1
        return {"list": [self.t]}, 0.0, self.t == 3, False, {}


@pytest.mark.parametrize("agent", [Spoiling(), SpoilingOne()], ids=["batched", "one by one"])
def test_objects_that_an_agent_changes_are_its_own(agent):
    with LocalSampler(agent, Lists, seed=3, **VEC) as sampler:
        batch = sampler.obtain_trajectories(12)
    assert batch.observations["list"].tolist() == [[0], [1], [2]] * 12
    assert batch.last_observations["list"].tolist() == [[3]] * 12
