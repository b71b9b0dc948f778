"""Agents: what counts as one, how it is reset, and how it is updated."""

from __future__ import annotations

import functools
import pickle

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import RandomAgent
from streamsampler.agents.base import Agent, CallableAgent, as_agent, is_row_independent, reset_agent_function
from streamsampler.errors import UsageError

ACTIONS = spaces.Discrete(5)


class Minimal:
    def get_action(self, observation):
        return 1, {}


class Policy:
    """A plain callable with the optional methods."""

    def __init__(self):
        self.seeds = []
        self.values = None

    def __call__(self, observation):
        return observation + 1

    def reset(self, seed):
        self.seeds.append(seed)

    def set_param_values(self, values):
        self.values = values

    def set_spaces(self, observation_space, action_space):
        self.spaces = observation_space, action_space


class TestAsAgent:
    def test_an_agent_is_itself(self):
        agent = Minimal()
        assert as_agent(agent) is agent
        assert isinstance(agent, Agent)

    @pytest.mark.parametrize("function", [lambda x: x + 1, functools.partial(lambda y, x: x + y, 1), Policy()])
    def test_a_callable_becomes_one(self, function):
        agent = as_agent(function)
        assert isinstance(agent, Agent)
        assert agent.get_action(2) == (3, {})

    def test_a_class_is_told_so(self):
        with pytest.raises(UsageError, match="the class Minimal itself: pass an instance"):
            as_agent(Minimal)

    @pytest.mark.parametrize(("obj", "name"), [(None, "NoneType"), (3, "int"), ([], "list")])
    def test_anything_else_is_told_what_an_agent_is(self, obj, name):
        with pytest.raises(UsageError, match=rf"get_action\(observation\) .* plain callable .* this {name} is neither"):
            as_agent(obj)

    def test_get_action_must_be_callable(self):
        with pytest.raises(UsageError):
            as_agent(type("Odd", (), {"get_action": 3})())


class TestCallableAgent:
    def test_passes_the_optional_methods_on(self):
        agent = CallableAgent(Policy())
        agent.reset(seed=4)
        agent.set_param_values((1,))
        agent.set_spaces(ACTIONS, ACTIONS)
        assert agent.function.seeds == [4]  # type: ignore[attr-defined]
        assert agent.function.spaces == (ACTIONS, ACTIONS)  # type: ignore[attr-defined]
        assert agent.function.values == (1,)  # type: ignore[attr-defined]
        assert not hasattr(agent, "get_actions")

    def test_a_function_has_none(self):
        agent = CallableAgent(lambda x: x)
        assert not hasattr(agent, "reset")
        assert not hasattr(agent, "seeds")
        with pytest.raises(AttributeError, match="'CallableAgent' object has no attribute 'nothing'"):
            _ = agent.nothing

    def test_pickles(self):
        agent = cloudpickle.loads(cloudpickle.dumps(CallableAgent(lambda x: 2 * x)))
        assert agent.get_action(4) == (8, {})
        assert pickle.loads(pickle.dumps(CallableAgent(Policy()))).get_action(4) == (5, {})

    def test_repr(self):
        assert repr(CallableAgent(len)) == "CallableAgent(<built-in function len>)"


class TestRowIndependence:
    def test_is_what_the_agent_says(self):
        assert not is_row_independent(Policy())
        assert is_row_independent(type("Said", (Policy,), {"row_independent": True})())
        assert is_row_independent(CallableAgent(type("Said", (Policy,), {"row_independent": np.True_})()))

    @pytest.mark.parametrize("said", [None, "no", lambda _: False])
    def test_is_said_by_true_or_false(self, said):
        """A method would be true whatever it returns."""
        with pytest.raises(UsageError, match=r"row_independent of the agent \(Odd\) is True or False.* and is "):
            is_row_independent(type("Odd", (Policy,), {"row_independent": said})())


class TestRandomAgent:
    SPACES = (
        ACTIONS,
        spaces.Box(-2, 2, (2,), dtype=np.float32),
        spaces.MultiDiscrete([3, 4]),
        spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.MultiBinary(4)])}),
    )

    @pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
    def test_actions_are_in_the_space_and_repeat_with_the_seed(self, space):
        agent = RandomAgent(space)
        runs = []
        for seed in (2**31 - 1, 7, 2**31 - 1):
            agent.reset(seed=seed)
            runs.append([agent.get_action(None) for _ in range(20)])
        assert all(action in space and info == {} for run in runs for action, info in run)
        assert repr(runs[0]) == repr(runs[2]) != repr(runs[1])

    def test_leaves_the_given_space_alone(self):
        space = spaces.Discrete(1000, seed=3)
        expected = [int(spaces.Discrete(1000, seed=3).sample()) for _ in range(1)]
        agent = RandomAgent(space)
        agent.reset(seed=1)
        agent.get_action(None)
        assert [int(space.sample())] == expected

    def test_is_uniform(self):
        agent = RandomAgent(ACTIONS)
        agent.reset(seed=0)
        counts = np.bincount([agent.get_action(None)[0] for _ in range(5000)])
        assert counts.min() > 850

    def test_takes_a_space_only(self):
        with pytest.raises(UsageError, match="takes an action space, not 3"):
            RandomAgent(3)  # type: ignore[arg-type]


class TestReset:
    def calls_of(self, reset):
        agent = Minimal()
        agent.reset = reset  # type: ignore[attr-defined]
        return reset_agent_function(agent)

    @pytest.mark.parametrize(
        "make",
        [
            lambda calls: lambda seed: calls.append(seed),
            lambda calls: lambda seed=None: calls.append(seed),
            lambda calls: lambda *, seed: calls.append(seed),
            lambda calls: lambda **kwargs: calls.append(kwargs["seed"]),
            lambda calls: lambda options=None, seed=None: calls.append(seed),
            lambda calls: eval("lambda seed, /: calls.append(seed)", {"calls": calls}),
            lambda calls: functools.partial(lambda start, seed: calls.append(seed), 1),
        ],
    )
    def test_with_a_seed(self, make):
        calls: list[int] = []
        reset = self.calls_of(make(calls))
        reset(3)
        reset(4)
        assert calls == [3, 4]

    @pytest.mark.parametrize("make", [lambda c: lambda: c.append(0), lambda c: lambda dones=None: c.append(0)])
    def test_without(self, make):
        calls: list[int] = []
        self.calls_of(make(calls))(3)
        assert calls == [0]

    def test_no_reset(self):
        assert reset_agent_function(Minimal()) is None
        assert self.calls_of(None) is None
        assert reset_agent_function(CallableAgent(lambda x: x)) is None

    def test_through_a_callable_agent(self):
        agent = as_agent(Policy())
        reset_agent_function(agent)(9)  # type: ignore[misc]
        assert agent.function.seeds == [9]  # type: ignore[attr-defined]

    def test_a_reset_with_other_needs(self):
        with pytest.raises(UsageError, match=r"\(Minimal\) has reset\(observation\); it is called as reset\(seed=…\)"):
            self.calls_of(lambda observation: None)

    def test_no_signature_means_seed(self):
        class Strange:
            __signature__ = "none of that"

            def __init__(self):
                self.seeds = []

            def __call__(self, seed):
                self.seeds.append(seed)

        reset = Strange()
        self.calls_of(reset)(5)
        assert reset.seeds == [5]

    def test_the_signature_is_inspected_once(self, monkeypatch):
        reset = self.calls_of(lambda seed: None)
        monkeypatch.setattr("inspect.signature", None)
        reset(1)
