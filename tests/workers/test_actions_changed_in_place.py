"""What an environment does to its action reaches neither the agent nor what is recorded, in any kind of worker."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import DefaultWorker, LocalSampler, SerialEnvManager, VecWorker
from streamsampler.workers.restoring import say_again

SPACES = {
    "array": spaces.Box(-9, 9, (2,), np.float32),
    "dict": spaces.Dict(a=spaces.Box(-9, 9, (2,), np.float32), b=spaces.Tuple([spaces.Box(-9, 9, (1,), np.float64)])),
}
FIVES = {
    "array": lambda *rows: np.full((*rows, 2), 5, np.float32),
    "dict": lambda *rows: {"a": np.full((*rows, 2), 5, np.float32), "b": (np.full((*rows, 1), 5.0),)},
}


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
        assert len(observations) == 2
        return self.actions, {"mine": arrays_of(self.actions)[0]}


class Overrides(DefaultWorker):
    def before_step(self, context):
        return super().before_step(context)


class Hook:
    def on_timestep(self, context):
        assert min(array.min() for array in arrays_of(context.action)) == 5


KINDS: dict[str, Any] = {
    "one environment": {},
    "seams": {"worker_class": Overrides},
    "hooks": {"hooks": Hook()},
    "rows": {"worker_class": VecWorker, "worker_args": {"n_envs": 2}},
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    ("call", "kind"),
    [
        *(("obtain_trajectories", kind) for kind in KINDS),
        *(("obtain_fragments", kind) for kind in ("one environment", "rows")),
    ],
)
@pytest.mark.parametrize("agent", [ReturnsItsOwn, InBatches])
def test_it_reaches_neither_the_agent_nor_the_batch(space, call, kind, agent):
    # Without a check, which would see that trajectories depend on those before.
    with LocalSampler(agent(space), lambda: Clips(space), seed=1, check=None, **KINDS[kind]) as sampler:
        amounts = (6,) if call == "obtain_trajectories" else (6, 2)
        batch = getattr(sampler, call)(*amounts)
    assert (batch.rewards == 5).all()
    assert all((array == 5).all() for array in arrays_of(batch.actions))
    assert (batch.agent_infos["mine"] == 5).all()


@pytest.mark.parametrize("space", SPACES)
def test_it_does_not_reach_the_callers_actions(space):
    with SerialEnvManager(lambda: Clips(space), n_envs=2, seed=1) as manager:
        manager.reset()
        given = FIVES[space](2)
        for _ in range(3):
            steps = manager.step(given)
            assert steps.rewards.tolist() == [5, 5]
            assert all((array == 5).all() for array in [*arrays_of(given), *arrays_of(steps.actions)])


@pytest.mark.parametrize("space", SPACES)
def test_it_does_not_reach_the_actions_that_restore_an_episode(space):
    env, actions = Clips(space), [FIVES[space]()] * 3
    for _ in range(2):
        assert [said.reward for said in say_again(env, env.reset(), actions)] == [0, 5, 5, 5]
