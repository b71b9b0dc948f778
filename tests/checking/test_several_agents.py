"""Checks of environments of several agents: one broken rule each."""

import numpy as np
import pytest

from streamsampler.checking.others import run_pettingzoo_tests
from streamsampler.checking.tasks import call_apart
from streamsampler.environments.updates import as_env_update
from tests.checking.test_tasks import by_name, in_this_process, limits, run
from tests.scripted.games import Chooser, Comings, Turns

__all__ = ["in_this_process"]


class Vanishing(Comings):
    def step(self, actions):
        result = super().step(actions)
        self.agents = self.agents[1:]
        return result


class Outside(Comings):
    def seen(self, agent):
        return super().seen(agent) + 100


class Unpaid(Comings):
    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, dict.fromkeys(rewards, float("nan")), *rest


class Endless(Comings):
    def step(self, actions):
        super().step(actions)
        self.agents, no = list(actions), dict.fromkeys(actions, False)
        seen = {agent: self.seen(agent) for agent in self.agents}
        return seen, dict.fromkeys(actions, 0.0), no, no, {agent: {} for agent in actions}


class Remembering(Comings):
    """Its second trajectory pays more than its first."""

    rounds = 0

    def reset(self, seed=None, options=None):
        self.rounds += 1
        return super().reset(seed, options)

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: reward + self.rounds for agent, reward in rewards.items()}, *rest


@pytest.mark.parametrize("env", [Comings, Turns])
def test_one_that_is_right_passes(env):
    checked = run(env, Chooser(), stages=3, ends_within=50)
    checked._agent_alone()
    found = by_name(checked.findings)
    names = (
        *("made", "runs", "observations", "rewards", "ends", "wrappers", "close", "seed", "processes"),
        *("agent", "actions"),
    )
    assert {name: each.verdict for name, each in found.items()} == dict.fromkeys(names, "pass")
    assert "20 trajectories ended" in found["runs"].what


@pytest.mark.parametrize(
    ("env", "name", "verdict", "text"),
    [
        (Vanishing, "runs", "failure", "is gone, and was neither terminated nor truncated"),
        (Outside, "observations", "failure", "agent 'red_0': observation is outside"),
        (Unpaid, "rewards", "failure", "agent 'red_0': the reward is nan, at timestep 0 of a trajectory"),
        (Endless, "ends", "failure", "a trajectory did not end within 50 timesteps"),
    ],
)
def test_what_is_wrong_is_found(env, name, verdict, text):
    found = by_name(run(env, ends_within=50).findings)
    assert found[name].verdict == verdict
    assert text in found[name].what


def test_one_that_remembers_is_found():
    finding = by_name(run(Remembering, stages=2, ends_within=50).findings)["seed"]
    assert finding.verdict == "failure"
    assert "reward" in finding.what


class Wrong(Chooser):
    def get_action(self, observation):
        return np.int64(99), {}


def test_what_a_policy_does_wrong_is_found():
    checked = run(Comings, {"shared": Wrong()}, ends_within=50)
    checked._agent_alone()
    found = by_name(checked.findings)["actions"]
    assert found.verdict == "failure"
    assert "99" in found.what


def test_its_own_tests_need_pettingzoo(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pettingzoo.test", None)
    (found,) = call_apart(run_pettingzoo_tests, as_env_update(Comings), limits())[1]
    assert found.verdict == "not checked"
    assert "pip install pettingzoo" in found.advice
