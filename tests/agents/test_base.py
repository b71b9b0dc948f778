"""Agents: what counts as one, how it is reset, and RandomAgent, which takes its space from the environment."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, PerWorker, RandomAgent, SetTaskUpdate, VecWorker
from streamsampler.agents.base import Agent, CallableAgent, as_agent, is_row_independent, reset_agent_function
from streamsampler.errors import UsageError
from streamsampler.testing import Faults
from tests.scripted.envs import Echo


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


@pytest.mark.parametrize("given", [Minimal(), lambda x: 1, functools.partial(lambda y, x: y, 1), Policy()])
def test_an_agent_is_itself_and_a_callable_becomes_one(given):
    agent = as_agent(given)
    assert isinstance(agent, Agent)
    assert (agent is given) == isinstance(given, Minimal)
    assert agent.get_action(0) == (1, {})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Minimal, "the class Minimal itself: pass an instance"),
        (None, r"get_action\(observation\) .* plain callable .* this NoneType is neither"),
        (3, "this int is neither"),
        (type("Odd", (), {"get_action": 3})(), "this Odd is neither"),
        ("randm", r"no agent has the name 'randm'.*'random'"),
    ],
)
def test_anything_else_is_told_what_an_agent_is(given, words):
    with pytest.raises(UsageError, match=words):
        LocalSampler(given, "CartPole-v1")


def test_a_callable_agent_passes_the_optional_methods_on_that_there_are():
    space = spaces.Discrete(5)
    agent: Any = CallableAgent(Policy())
    reset_agent_function(agent)(4)  # type: ignore[misc]
    agent.set_param_values((1,))
    agent.set_spaces(space, space)
    assert (agent.function.seeds, agent.function.spaces, agent.function.values) == ([4], (space, space), (1,))
    assert not hasattr(agent, "get_actions")
    assert pickle.loads(pickle.dumps(agent)).get_action(4) == (5, {})
    agent = cloudpickle.loads(cloudpickle.dumps(CallableAgent(lambda x: 2 * x)))
    assert agent.get_action(4) == (8, {})
    assert not hasattr(agent, "reset")
    with pytest.raises(AttributeError, match="'CallableAgent' object has no attribute 'nothing'"):
        _ = agent.nothing
    assert repr(CallableAgent(len)) == "CallableAgent(<built-in function len>)"


def test_row_independence_is_said_by_true_or_false():
    def saying(said: Any) -> Any:
        return type("Odd", (Policy,), {"row_independent": said})()

    assert not is_row_independent(Policy())
    assert is_row_independent(saying(True))
    assert is_row_independent(CallableAgent(saying(np.True_)))
    for said in (None, "no", lambda _: False):  # a method would be true whatever it returns
        with pytest.raises(UsageError, match=r"row_independent of the agent \(Odd\) must be True or False.* but is "):
            is_row_independent(saying(said))


class WithoutSignature:
    """Takes the seed, and does not say so."""

    __signature__ = "none of that"

    def __init__(self, calls):
        self.calls = calls

    def __call__(self, seed):
        self.calls.append(seed)


def reset_of(reset):
    agent = Minimal()
    agent.reset = reset  # type: ignore[attr-defined]
    return reset_agent_function(agent)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda calls: lambda seed: calls.append(seed), [3, 4]),
        (lambda calls: lambda seed=None: calls.append(seed), [3, 4]),
        (lambda calls: lambda *, seed: calls.append(seed), [3, 4]),
        (lambda calls: lambda **kwargs: calls.append(kwargs["seed"]), [3, 4]),
        (lambda calls: lambda options=None, seed=None: calls.append(seed), [3, 4]),
        (lambda calls: eval("lambda seed, /: calls.append(seed)", {"calls": calls}), [3, 4]),
        (lambda calls: functools.partial(lambda start, seed: calls.append(seed), 1), [3, 4]),
        (WithoutSignature, [3, 4]),
        (lambda calls: lambda: calls.append(0), [0, 0]),
        (lambda calls: lambda dones=None: calls.append(0), [0, 0]),
    ],
)
def test_a_reset_gets_the_seed_where_it_takes_one(make, expected, monkeypatch):
    calls: list[int] = []
    reset = reset_of(make(calls))
    monkeypatch.setattr("inspect.signature", None)  # it is looked at once
    reset(3), reset(4)
    assert calls == expected


def test_no_reset_and_a_reset_with_other_needs():
    assert reset_agent_function(Minimal()) is reset_of(None) is reset_agent_function(CallableAgent(len)) is None
    with pytest.raises(UsageError, match=r"\(Minimal\) has reset\(observation\), but it must accept reset\(seed=…\)"):
        reset_of(lambda observation: None)


DISCRETE = spaces.Discrete(7, start=3)
SPACES = {
    "Discrete": DISCRETE,
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), dtype=np.float64),
    "Dict": spaces.Dict(
        {
            "a": spaces.Discrete(3),
            "b": spaces.Tuple([spaces.MultiBinary(4), spaces.Box(0, 1)]),
            "c": spaces.MultiDiscrete([3, 4]),
        }
    ),
    "Tuple": spaces.Tuple([spaces.Discrete(3), spaces.Text(5)]),
}
VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 8}}


class Of(Echo):
    """Has an action space of choice."""

    def set_task(self, space):
        self.observation_space = self.action_space = space

    def step(self, action):
        assert self.action_space.contains(action)
        return super().step(action)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_way_to_ask_for_random_actions_draws_the_same(space, tmp_path):
    alone = RandomAgent(space)
    runs = []
    for seed in (2**31 - 1, 7, 2**31 - 1):
        alone.reset(seed=seed)
        runs.append([alone.get_action(None) for _ in range(20)])
    assert all(action in space and info == {} for run in runs for action, info in run)
    assert repr(runs[0]) == repr(runs[2]) != repr(runs[1])
    faulty = Faults(tmp_path).agent("random")
    ways: list[tuple[Any, dict[str, Any]]] = [
        (RandomAgent(space), {}), (RandomAgent(), {}), (PerWorker(["random"]), {}), (faulty, {}),
        (RandomAgent(space), VEC), ("random", VEC),
    ]  # fmt: skip
    batches = []
    for agent, options in ways:
        with LocalSampler(agent, lambda: Of(space), seed=3, **options) as sampler:
            batches.append(sampler.obtain_trajectories(20))
    assert all(batch == batches[0] for batch in batches[1:])


class Failing(Of):
    def step(self, action):
        if self.np_random.random() < 0.02:
            raise RuntimeError("now and then")
        return super().step(action)


def test_a_random_agent_keeps_its_space_where_what_raises_is_left_out():
    batches = []
    for agent in ("random", RandomAgent(DISCRETE)):
        with LocalSampler(agent, lambda: Failing(DISCRETE), seed=3, on_failure="drop") as sampler:
            batches.append(sampler.obtain_trajectories(20))
        assert batches[-1].stats.dropped_trajectories > 0
    assert batches[0] == batches[1]


def test_random_actions_are_uniform_and_leave_the_given_space_alone():
    space = spaces.Discrete(1000, seed=3)
    agent = RandomAgent(space)
    agent.reset(seed=0)
    counts = np.bincount([agent.get_action(None)[0] // 200 for _ in range(5000)])
    assert counts.min() > 850
    assert space.sample() == spaces.Discrete(1000, seed=3).sample()


@pytest.mark.parametrize("options", [{}, VEC], ids=["default", "vec"])
def test_the_space_is_the_environments_also_after_an_update(options):
    large = spaces.Discrete(1000)
    with LocalSampler("random", lambda: Of(DISCRETE), seed=3, **options) as sampler:
        assert sampler.obtain_trajectories(8).actions.max() < 10
        for update in (lambda: Of(large), SetTaskUpdate(lambda: Of(DISCRETE), large)):
            assert sampler.obtain_trajectories(8, env_update=update).actions.max() > 10
        with pickle.loads(pickle.dumps(sampler)) as copy:
            assert copy.obtain_trajectories(8) == sampler.obtain_trajectories(8)
        batch = sampler.obtain_trajectories(8, agent_update="random", env_update=lambda: Of(SPACES["Tuple"]))
        assert isinstance(batch.actions, tuple)
        batch = sampler.obtain_trajectories(8, agent_update=RandomAgent(DISCRETE), env_update=lambda: Of(large))
        assert batch.actions.max() < 10, "a space that was given stays"


def test_a_random_agent_without_a_space_or_without_seeds_of_rows():
    agent = RandomAgent()
    for call in (lambda: agent.get_action(0), lambda: agent.reset(seed=1), lambda: agent.get_actions(np.zeros((2, 1)))):
        with pytest.raises(UsageError, match="no action space yet"):
            call()
    with pytest.raises(UsageError, match="takes an action space, not 3"):
        RandomAgent(3)  # type: ignore[arg-type]
    agent.set_spaces(spaces.Discrete(2), DISCRETE)
    agent.reset(seed=4)
    together = agent.get_actions(np.zeros((6, 2)))[0]
    agent.reset(seed=4)
    assert together == [agent.get_action(None)[0] for _ in range(6)]
    assert len(agent.get_actions({"a": np.zeros((4, 2)), "b": (np.zeros(4),)})[0]) == 4


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
        assert self.told[-1][0].n == self.told[-1][1]
        return self.told[-1][1] - 1, {"times": len(self.told), "drawn": self.drawn}


@pytest.mark.parametrize(("options", "n_workers"), [({}, 2), (VEC, 1)])
def test_an_agent_is_told_the_spaces_before_it_acts_and_after_each_change(options, n_workers):
    with LocalSampler(Shown(), lambda: Of(spaces.Discrete(5)), n_workers=n_workers, seed=1, **options) as sampler:
        first = sampler.obtain_trajectories(16)
        second = sampler.obtain_trajectories(16, env_update=lambda: Of(spaces.Discrete(9)))
    assert set(first.actions.tolist()) == {4}
    assert set(first.agent_infos["times"].tolist()) == {1}
    assert set(second.actions.tolist()) == {8}
    assert len({*first.agent_infos["drawn"], *second.agent_infos["drawn"]}) == 1, "what it draws is the sampler's"
