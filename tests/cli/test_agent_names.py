"""Finding an agent by the name that the command line gives."""

from __future__ import annotations

import os
import sys

import pytest
from gymnasium import spaces

from streamsampler.agents.random import RandomAgent
from streamsampler.cli.naming import load_agent
from streamsampler.errors import UnknownAgentError

OBSERVATIONS = spaces.Box(-1, 1, (3,))
ACTIONS = spaces.Discrete(5)

MODULE = """
import numpy as np
from streamsampler.agents.random import RandomAgent

class Agent:
    def __init__(self, *spaces, **named):
        self.spaces, self.named = spaces, named
    def get_action(self, observation):
        return 0, {}

class ByPosition(Agent):
    def __init__(self, one, two):
        super().__init__(one, two)
class ByName(Agent):
    def __init__(self, action_space, hidden=3):
        super().__init__(action_space=action_space, hidden=hidden)
class ByKeyword(Agent):
    def __init__(self, *, observation_space, action_space):
        super().__init__(observation_space=observation_space, action_space=action_space)
class NoArguments(Agent):
    def __init__(self):
        super().__init__()
class OneArgument(Agent):
    def __init__(self, path):
        pass
class NotAnAgent:
    def __init__(self):
        pass

class zoo:
    best = Agent()
    class inner:
        policy = staticmethod(lambda observation: 6)

ready = Agent()
number = 3
def policy(observation): return 7
def noisy(observation, noise=0.1): return 8
def factory(observation_space, action_space): return RandomAgent(action_space)
def terse(o, a): return Agent(o, a)
def bare(): return Agent()
def of_policies(observation_space): return lambda observation: 9
def broken(o, a): return a["nothing"]
def three(a, b, c): return Agent()
def makes_nothing(o, a): pass
def makes_a_class(o, a): return Agent
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with modules in it, as somebody at a terminal has."""
    (tmp_path / "my_agents.py").write_text(MODULE)
    (tmp_path / "needs_more.py").write_text("import surely_not_installed\n")
    (tmp_path / "wrong.py").write_text("def (:\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "deep.py").write_text("policy = lambda observation: 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", os.getcwd())])
    yield tmp_path
    for name in ("my_agents", "needs_more", "wrong", "pack", "pack.deep"):  # no others: torch loads only once
        sys.modules.pop(name, None)


def load(name):
    return load_agent(name, OBSERVATIONS, ACTIONS)


@pytest.mark.usefixtures("here")
class TestLoadAgent:
    def test_random(self):
        agent = load("random")
        assert isinstance(agent, RandomAgent)
        assert agent.action_space == ACTIONS

    def test_objects(self):
        module = sys.modules
        assert load("my_agents:ready") is module["my_agents"].ready
        assert load("my_agents:zoo.best") is module["my_agents"].zoo.best
        assert load("my_agents:zoo.inner.policy").get_action(0) == (6, {})
        assert load("pack.deep:policy").get_action(0) == (5, {})

    @pytest.mark.parametrize(("name", "action"), [("policy", 7), ("noisy", 8)])
    def test_plain_callables(self, name, action):
        assert load(f"my_agents:{name}").get_action(OBSERVATIONS.sample()) == (action, {})

    @pytest.mark.parametrize("name", ["ByPosition", "terse", "Agent"])
    def test_factories_by_position(self, name):
        assert load(f"my_agents:{name}").spaces == (OBSERVATIONS, ACTIONS)

    def test_factories_by_name(self):
        assert load("my_agents:ByName").named == {"action_space": ACTIONS, "hidden": 3}
        assert load("my_agents:ByKeyword").named == {"observation_space": OBSERVATIONS, "action_space": ACTIONS}
        assert isinstance(load("my_agents:factory"), RandomAgent)
        assert isinstance(load("streamsampler.agents.base:RandomAgent"), RandomAgent)
        assert load("my_agents:of_policies").get_action(0) == (9, {})

    @pytest.mark.parametrize("name", ["NoArguments", "bare"])
    def test_factories_without_arguments(self, name):
        assert load(f"my_agents:{name}").spaces == ()

    def test_callables_written_in_c(self):
        assert load("numpy:sign").get_action(-3.0) == (-1.0, {})
        assert load("math:sqrt").get_action(4) == (2.0, {})

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("randm", r"unknown agent 'randm': .*Did you mean 'random'\?"),
            ("Random", r"Did you mean 'random'\?"),
            ("my_agents.ready", r"Did you mean 'my_agents:ready'\?"),
            ("ppo", r"unknown agent 'ppo': an agent is 'random' or 'package.module:object'$"),
            ("", r"unknown agent ''"),
            (":ready", r"an agent is 'random' or"),
            ("my_agents:", r"an agent is 'random' or"),
            ("my_agent:ready", r"there is no module 'my_agent'. Did you mean 'my_agents'\?"),
            ("nowhere_at_all:x", r"there is no module 'nowhere_at_all', neither installed nor in "),
            ("pack.shallow:x", r"there is no module 'pack.shallow'"),
            ("my_agents.py", r"goes by its name, not its file's: 'my_agents:object'"),
            ("my_agents.py:ready", r"goes by its name, not its file's: 'my_agents:ready'"),
            ("./pack/deep.py:policy", r"goes by its name, not its file's: 'pack.deep:policy'"),
            ("my_agents:redy", r"my_agents has no attribute 'redy'. Did you mean 'ready'\?"),
            ("my_agents:zoo.bets", r"zoo has no attribute 'bets'. Did you mean 'best'\?"),
            ("my_agents:number", r"'my_agents:number' is no agent, but of type int"),
            ("my_agents:OneArgument", r"'my_agents:OneArgument' takes \(path\), but an agent's factory"),
            ("my_agents:three", r"takes \(a, b, c\)"),
            ("my_agents:makes_nothing", r"returned None, no agent"),
            ("my_agents:makes_a_class", r"returned <class .*, no agent"),
            ("my_agents:NotAnAgent", r"returned <my_agents.NotAnAgent .*, no agent"),
        ],
    )
    def test_no_such_agent(self, name, message):
        with pytest.raises(UnknownAgentError, match=message):
            load(name)

    @pytest.mark.parametrize(
        ("name", "cause", "message"),
        [
            ("needs_more:x", ModuleNotFoundError, "importing needs_more raised .*surely_not_installed"),
            ("wrong:x", SyntaxError, "importing wrong raised SyntaxError"),
            ("my_agents:broken", TypeError, "the agent factory 'my_agents:broken' raised TypeError: 'Discrete'"),
        ],
    )
    def test_user_code_that_raises(self, name, cause, message):
        with pytest.raises(UnknownAgentError, match=message) as caught:
            load(name)
        assert type(caught.value.__cause__) is cause
