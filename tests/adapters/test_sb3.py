"""SB3Agent on anything with `predict`, and which algorithm a file is of: no Stable-Baselines3 needed."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
import zipfile

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.agents.base import takes_masks
from streamsampler.agents.sb3_archives import algorithm_of
from streamsampler.errors import UsageError
from streamsampler.evaluation.agents import agent_facts
from tests.scripted.envs import Steps
from tests.scripted.masks import PLACES, make
from tests.tiers import mostly_slow


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
        return (count[0][0] if single else count[0]), (count + 1,)


class Model:
    """Holds what cannot be sent, beside its policy, whose `predict` is to be called."""

    def __init__(self):
        self.policy = Counting()
        self.env = (step for step in [])

    predict = None


class Bare:
    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return 0


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
def test_state_is_carried_and_reset_with_each_trajectory_and_only_the_policy_travels(make):
    with make(SB3Agent(Model()), Steps, env_kwargs={"length": 5}, n_workers=1, seed=1) as sampler:
        batch = sampler.obtain_trajectories(3)
    assert batch.actions.tolist() == [0, 1, 2, 3, 4] * 3
    assert batch.agent_infos == {}


def test_what_is_told_to_predict():
    agent = SB3Agent(Counting(), deterministic=True)
    agent.reset(seed=3)
    for _ in range(2):
        action, _ = agent.get_action(np.zeros(2))
        assert isinstance(action, np.integer)
    assert agent.policy.calls == [(1, None, [True], True), (1, (3, 1), [False], True)]
    assert agent_facts(agent)["name"] == "Counting"
    agent.name = "best.zip"
    assert agent_facts(pickle.loads(pickle.dumps(agent)))["name"] == "best.zip"


def test_each_row_of_a_batch_has_a_state_of_its_own():
    agent, rows = SB3Agent(Counting()), np.zeros((3, 2))
    agent.reset(seed=0)
    for starts, actions in (([1, 1, 1], [0, 0, 0]), ([0, 1, 0], [1, 0, 1]), ([0, 0, 1], [2, 1, 0])):
        assert agent.get_actions(rows, starts=np.array(starts, bool))[0].tolist() == actions
    agent.reset(seed=1)
    for step in range(2):
        assert agent.get_actions(rows)[0].tolist() == [step] * 3


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: SB3Agent(lambda observation: 0), "with predict"),
        (lambda: SB3Agent(Counting), "with predict"),
        (lambda: SB3Agent(Counting()).get_param_values(), "torch module"),
        (lambda: SB3Agent(Counting()).set_param_values({}), "torch module"),
        (lambda: SB3Agent(Bare()).get_action(np.zeros(2)), r"must return \(actions, state\)"),
        (lambda: SB3Agent.load("model.zip", 3), "a class with load"),
    ],
)
def test_what_is_no_model(use, words):
    with pytest.raises(UsageError, match=words):
        use()


def test_a_library_that_is_missing_is_named(monkeypatch):
    for name in ("stable_baselines3", "torch"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError
    monkeypatch.delitem(sys.modules, "streamsampler.agents.torch", raising=False)
    with pytest.raises(ImportError, match=r"pip install stable-baselines3 \(in a clone"):
        SB3Agent.load("model.zip", "PPO")
    with pytest.raises(ImportError, match=r"pip install torch \(in a clone"):
        importlib.import_module("streamsampler.agents.torch")


# --- Archives


def archive(path, **data):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("module", "attributes", "algorithm"),
    [
        ("stable_baselines3.common.policies", {"clip_range": 1, "gae_lambda": 1}, "PPO"),
        ("stable_baselines3.common.policies", {"gae_lambda": 1}, "A2C"),
        ("stable_baselines3.common.policies", {"cg_max_steps": 1, "gae_lambda": 1}, "TRPO"),
        ("stable_baselines3.dqn.policies", {}, "DQN"),
        ("stable_baselines3.td3.policies", {}, "TD3"),
        ("sb3_contrib.common.recurrent.policies", {"clip_range": 1}, "RecurrentPPO"),
        ("sb3_contrib.common.maskable.policies", {"clip_range": 1}, "MaskablePPO"),
        ("sb3_contrib.tqc.policies", {"target_entropy": 1}, "TQC"),
        ("my_policies", {"target_entropy": 1}, "SAC"),
        ("my_policies", {"exploration_rate": 1}, "DQN"),
    ],
)
def test_the_algorithm_is_told_from_the_file_alone(tmp_path, module, attributes, algorithm):
    path = archive(tmp_path / "m.zip", policy_class={"__module__": module}, **attributes)
    assert algorithm_of(path) == algorithm


def test_other_files_are_named(tmp_path):
    (tmp_path / "text.zip").write_text("not a zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("x", "y")
    for path in (tmp_path / "text.zip", tmp_path / "other.zip", archive(tmp_path / "less.zip", a=1)):
        with pytest.raises(UsageError, match=f"{path.name} is not a model that Stable-Baselines3 saved"):
            algorithm_of(path)
    odd = archive(tmp_path / "odd.zip", policy_class={"__module__": "mine"})
    with pytest.raises(UsageError, match=r"does not say which algorithm .*: name it, as in SB3Agent\.load"):
        algorithm_of(odd)
    with pytest.raises(FileNotFoundError):
        algorithm_of(tmp_path / "nowhere.zip")


class Masked:
    """Does the first of the actions that are allowed."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False, action_masks=None):
        return 2 + action_masks.argmax(-1), None


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}])
@pytest.mark.parametrize("place", mostly_slow(PLACES))
def test_a_policy_whose_predict_takes_masks_gets_them(place, options):
    agent = SB3Agent(Masked())
    assert takes_masks(agent)
    assert takes_masks(agent, together=True)
    assert not takes_masks(SB3Agent(Counting()))
    assert not takes_masks(SB3Agent(Counting()), together=True)
    for make_sampler, n_workers in ((LocalSampler, 1), (MultiprocessingSampler, 2)):
        with make_sampler(agent, make, env_kwargs={"place": place}, n_workers=n_workers, seed=1, **options) as sampler:
            sampler.obtain_trajectories(9)  # which refuse what is not allowed
            sampler.obtain_fragments(5, 3)
