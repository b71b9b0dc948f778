"""Checks of environments of several agents: one broken rule each."""

import numpy as np
import pytest

from streamsampler.checking.environment import InspectEnvironment
from streamsampler.checking.seeds import RunTwice, finding_of_one_process
from streamsampler.checking.several_agents import PlayTogether, RunPettingZooTests
from tests.checking.test_tasks import by_name, run
from tests.scripted.games import Chooser, Comings, Turns

UNHURRIED = 600.0  # seconds
INSPECT = InspectEnvironment(seconds=UNHURRIED, timesteps=50, max_episode_length=None)


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
    found = by_name(run(INSPECT, env).findings)
    names = "runs", "observations", "rewards", "ends", "wrappers", "close"
    assert {name: each.verdict for name, each in found.items()} == dict.fromkeys(names, "pass")
    assert "20 trajectories of all agents ended" in found["runs"].what
    seed = finding_of_one_process(run(RunTwice(UNHURRIED, 50, (0, 1)), env))
    assert seed.verdict == "pass"
    (played,) = run(PlayTogether(UNHURRIED, 50), env, Chooser())
    assert played.verdict == "pass"


@pytest.mark.parametrize(
    ("env", "name", "verdict", "text"),
    [
        (Vanishing, "runs", "failure", "is gone, and was neither terminated nor truncated"),
        (Outside, "observations", "failure", "agent 'red_0': 80 observations: observation is outside"),
        (Unpaid, "rewards", "failure", "agent 'red_0' has the reward nan after timestep 1 of a trajectory"),
        (Endless, "ends", "failure", "a trajectory did not end within 50 timesteps"),
    ],
)
def test_what_is_wrong_is_found(env, name, verdict, text):
    found = by_name(run(INSPECT, env).findings)
    assert found[name].verdict == verdict
    assert text in found[name].what


def test_one_that_remembers_is_found():
    finding = finding_of_one_process(run(RunTwice(UNHURRIED, 50, (0, 1)), Remembering))
    assert finding.verdict == "failure"
    assert "reward" in finding.what


class Wrong(Chooser):
    def get_action(self, observation):
        return np.int64(99), {}


def test_what_a_policy_does_wrong_is_found():
    (found,) = run(PlayTogether(UNHURRIED, 50), Comings, {"shared": Wrong()})
    assert (found.name, found.verdict) == ("actions", "failure")
    assert "99" in found.what


def test_its_own_tests_need_pettingzoo(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pettingzoo.test", None)
    (found,) = run(RunPettingZooTests(), Comings)
    assert found.verdict == "not checked"
    assert "pip install pettingzoo" in found.advice
