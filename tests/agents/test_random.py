"""RandomAgent: takes its space from the environment, and draws for each trajectory by itself, batched or not."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, PerWorker, RandomAgent, SetTaskUpdate, VecWorker
from streamsampler.errors import UsageError
from streamsampler.testing import Faults

SPACES = {
    "Discrete": spaces.Discrete(7, start=3),
    "Box": spaces.Box(-2, 2, (2,), dtype=np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), dtype=np.float64),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
    "MultiBinary": spaces.MultiBinary(4),
    "Dict": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.MultiBinary(4), spaces.Box(0, 1)])}),
    "Tuple": spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]),
    "Text": spaces.Text(5),
}
VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 8}}


class Of(gymnasium.Env):
    """Has an action space of choice, and trajectories of 1 to 6 timesteps."""

    observation_space = spaces.Discrete(2)

    def __init__(self, action_space):
        self.action_space = action_space

    def set_task(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 7))
        return 0, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        return 0, 0.0, self.left == 0, False, {}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_way_to_say_it_draws_the_same(space):
    batches = []
    ways: list[tuple[Any, dict[str, Any]]] = [
        (RandomAgent(space), {}),
        (RandomAgent(), {}),
        ("random", {}),
        (PerWorker(["random"]), {}),
        (RandomAgent(space), VEC),
        ("random", VEC),
    ]
    for agent, options in ways:
        with LocalSampler(agent, lambda: Of(space), seed=3, **options) as sampler:
            batches.append(sampler.obtain_trajectories(20))
    assert all(batch == batches[0] for batch in batches[1:])


@pytest.mark.parametrize("options", [{}, VEC], ids=["default", "vec"])
def test_the_space_is_the_environments_also_after_an_update(options):
    small, large = SPACES["Discrete"], spaces.Discrete(1000)
    with LocalSampler("random", lambda: Of(small), seed=3, **options) as sampler:
        assert sampler.obtain_trajectories(8).actions.max() < 10
        for update in (lambda: Of(large), SetTaskUpdate(lambda: Of(small), large)):
            batch = sampler.obtain_trajectories(8, env_update=update)
            assert batch.actions.max() > 10
        with LocalSampler("random", lambda: Of(large), seed=3, **options) as twin:
            twin.obtain_trajectories(8), twin.obtain_trajectories(8), twin.obtain_trajectories(8)
            with pickle.loads(pickle.dumps(sampler)) as copy:
                assert copy.obtain_trajectories(8) == twin.obtain_trajectories(8) == sampler.obtain_trajectories(8)
        batch = sampler.obtain_trajectories(8, agent_update="random", env_update=lambda: Of(SPACES["Tuple"]))
        assert isinstance(batch.actions, tuple)
        batch = sampler.obtain_trajectories(8, agent_update=RandomAgent(small), env_update=lambda: Of(large))
        assert batch.actions.max() < 10, "one that was given stays"


def test_faults_and_dropped_trajectories_keep_the_space(tmp_path):
    class Failing(Of):
        def step(self, action):
            if self.np_random.random() < 0.1:
                raise RuntimeError("now and then")
            return super().step(action)

    faults = Faults(tmp_path)
    batches = []
    for agent in ("random", faults.agent("random"), RandomAgent(SPACES["Discrete"])):
        with LocalSampler(agent, lambda: Failing(SPACES["Discrete"]), seed=3, on_failure="drop") as sampler:
            batches.append(sampler.obtain_trajectories(20))
        assert batches[-1].stats.dropped_trajectories > 0
    assert batches[0] == batches[1] == batches[2]


def test_a_batch_without_seeds_is_drawn_from_its_own_space():
    agent = RandomAgent(SPACES["Discrete"])
    runs = []
    for _ in range(2):
        agent.reset(seed=4)
        runs.append(agent.get_actions(np.zeros((6, 2)))[0])
    agent.reset(seed=4)
    assert runs[0] == runs[1] == [agent.get_action(None)[0] for _ in range(6)]
    assert len(agent.get_actions({"a": np.zeros((4, 2)), "b": (np.zeros(4),)})[0]) == 4


def test_without_a_space_it_says_where_one_comes_from():
    agent = RandomAgent()
    for call in (lambda: agent.get_action(0), lambda: agent.reset(seed=1), lambda: agent.get_actions(np.zeros((2, 1)))):
        with pytest.raises(UsageError, match="no action space yet"):
            call()
    with pytest.raises(UsageError, match="takes an action space, not 3"):
        RandomAgent(3)  # type: ignore[arg-type]
    agent.set_spaces(spaces.Discrete(2), spaces.Discrete(3))
    agent.reset(seed=1)
    assert agent.get_action(0)[0] in (0, 1, 2)


def test_a_name_that_is_none():
    with pytest.raises(UsageError, match=r"no agent has the name 'randm'.*'random'"):
        LocalSampler("randm", "CartPole-v1")  # type: ignore[arg-type]


class Shown:
    """Acts with how many actions there are, and counts how often it was told."""

    def __init__(self):
        self.told = []

    def set_spaces(self, observation_space, action_space):
        self.told.append((observation_space, int(action_space.n)))
        self.drawn = np.random.random()

    def reset(self, seed):
        pass

    def get_action(self, observation):
        assert self.told[-1][0] == Of.observation_space
        return self.told[-1][1] - 1, {"times": len(self.told), "drawn": self.drawn}


@pytest.mark.parametrize("options", [{}, VEC], ids=["default", "vec"])
@pytest.mark.parametrize("n_workers", [1, 2])
def test_an_agent_is_told_the_spaces_before_it_acts_and_after_each_change(options, n_workers):
    with LocalSampler(Shown(), lambda: Of(spaces.Discrete(5)), n_workers=n_workers, seed=1, **options) as sampler:
        first = sampler.obtain_trajectories(16)
        assert set(first.actions.tolist()) == {4}
        assert set(first.agent_infos["times"].tolist()) == {1}
        second = sampler.obtain_trajectories(16, env_update=lambda: Of(spaces.Discrete(9)))
        assert set(second.actions.tolist()) == {8}
        assert len({*first.agent_infos["drawn"], *second.agent_infos["drawn"]}) == 1, "what it draws is the sampler's"
