"""SB3Agent on anything with `predict`: no Stable-Baselines3 needed."""

from __future__ import annotations

import importlib
import pickle
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.errors import UsageError
from streamsampler.evaluation.agents import agent_facts


class Counting:
    """Recurrent: its action is how many steps its trajectory has had; rows lie on the second axis of its state."""

    def __init__(self):
        self.calls = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        single = np.ndim(observation) == 1
        n = 1 if single else len(observation)
        self.calls.append((n, None if state is None else state[0].shape, episode_start.tolist(), deterministic))
        count = np.zeros((3, n), dtype=np.int64) if state is None else state[0]
        assert count.shape == (3, n)
        count = np.where(episode_start, 0, count)
        actions = count[0] % 7
        return (actions[0] if single else actions), (count + 1,)


class Model:
    """Holds what cannot be sent, beside its policy."""

    def __init__(self):
        self.policy = Counting()
        self.env = (step for step in [])

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        raise AssertionError("the policy's own is to be called")


class FixedLength(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(7)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), float(action), self.left == 0, False, {}


def test_an_evaluation_calls_a_model_by_its_class_and_copies_keep_what_it_is_called():
    agent = SB3Agent(Counting())
    assert agent_facts(agent)["name"] == "Counting"
    agent.name = "best.zip"
    assert agent_facts(pickle.loads(pickle.dumps(agent)))["name"] == "best.zip"


def test_state_is_carried_and_reset_with_each_trajectory():
    agent = SB3Agent(Counting())
    with LocalSampler(agent, FixedLength(), seed=1) as sampler:
        batch = sampler.obtain_trajectories(3)
    assert batch.actions.tolist() == [0, 1, 2, 3, 4] * 3
    assert batch.agent_infos == {}


def test_the_same_in_a_process_and_only_the_policy_goes_there():
    with MultiprocessingSampler(SB3Agent(Model()), FixedLength(), n_workers=1, seed=1) as sampler:
        assert sampler.obtain_trajectories(2).actions.tolist() == [0, 1, 2, 3, 4] * 2


def test_what_is_told_to_predict():
    agent = SB3Agent(Counting(), deterministic=True)
    agent.reset(seed=3)
    for _ in range(2):
        action, _ = agent.get_action(np.zeros(2))
        assert isinstance(action, np.integer)
    assert agent.policy.calls == [(1, None, [True], True), (1, (3, 1), [False], True)]


def test_each_row_of_a_batch_has_a_state_of_its_own():
    agent = SB3Agent(Counting())
    agent.reset(seed=0)
    rows = np.zeros((3, 2))
    assert agent.get_actions(rows, starts=np.array([True] * 3))[0].tolist() == [0, 0, 0]
    assert agent.get_actions(rows, starts=np.array([False, True, False]))[0].tolist() == [1, 0, 1]
    assert agent.get_actions(rows, starts=np.array([False, False, True]))[0].tolist() == [2, 1, 0]
    agent.reset(seed=1)
    assert agent.get_actions(rows)[0].tolist() == [0, 0, 0]
    assert agent.get_actions(rows)[0].tolist() == [1, 1, 1]


def test_no_model():
    with pytest.raises(UsageError, match="with predict"):
        SB3Agent(lambda observation: 0)
    with pytest.raises(UsageError, match="with predict"):
        SB3Agent(Counting)


def test_parameters_need_a_module():
    agent = SB3Agent(Counting())
    with pytest.raises(UsageError, match="torch module"):
        agent.get_param_values()
    with pytest.raises(UsageError, match="torch module"):
        agent.set_param_values({})


def test_predict_that_returns_no_state():
    class Bare:
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            return 0

    with pytest.raises(UsageError, match=r"must return \(actions, state\)"):
        SB3Agent(Bare()).get_action(np.zeros(2))


def test_a_library_that_is_missing_is_named(monkeypatch):
    for name in ("stable_baselines3", "torch"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError
    monkeypatch.delitem(sys.modules, "streamsampler.agents.torch", raising=False)
    with pytest.raises(ImportError, match=r"pip install stable-baselines3 \(in a clone"):
        SB3Agent.load("model.zip", "PPO")
    with pytest.raises(ImportError, match=r"pip install torch \(in a clone"):
        importlib.import_module("streamsampler.agents.torch")
    with pytest.raises(UsageError, match="a class with load"):
        SB3Agent.load("model.zip", 3)
