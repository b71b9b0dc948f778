"""Agent updates: what is parameters, what is a new agent, and what is refused before it is sent."""

from __future__ import annotations

import functools
import pickle
import re
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, PerWorker, VecWorker
from streamsampler.agents.base import CallableAgent, as_agent
from streamsampler.agents.updates import apply_agent_update, is_parameters, resolved_update, traits_of
from streamsampler.errors import RolloutError, UsageError
from tests.scripted.envs import Steps


class Minimal:
    def get_action(self, observation):
        return 1, {}


class Learner(Minimal):
    values: Any = None

    def set_param_values(self, values):
        self.values = values


class Policy(Learner):
    """A plain callable that takes parameters."""

    get_action = None  # type: ignore[assignment]

    def __call__(self, observation):
        return observation + 1


class ArrayLike:
    def __array__(self, dtype=None, copy=None):
        return np.zeros(2)


class CallableArray(ArrayLike):
    def __call__(self, observation):
        return 0


class AgentInATuple(tuple):
    def get_action(self, observation):
        return 0, {}


class Net:
    """What a library's network looks like: a callable that turns observations into something else than actions."""

    def __init__(self, action=0):
        self.action = action

    def __call__(self, observation):
        return self.action

    def state_dict(self):
        return {"action": self.action}


class OtherNet(Net):
    pass


class Adapter:
    """Takes a network as an update: its own kind. Refuses negative actions in workers."""

    def __init__(self, action=0, kind="net"):
        self.action, self.kind = action, kind

    def __setstate__(self, state):
        if state["action"] < 0:
            raise ValueError("not this one")
        self.__dict__.update(state)

    def get_action(self, observation):
        return self.action, {}

    def set_param_values(self, values):
        self.action = values["action"]

    def get_param_converter(self):
        kind = self.kind
        if kind == "none":
            return 3

        def convert(update):
            if isinstance(update, Net):
                return update.state_dict() if kind == "net" else [update]
            if isinstance(update, dict) and "action" not in update:
                raise UsageError("these are no parameters of mine")
            return NotImplemented

        return convert


@pytest.mark.parametrize("update", [(1, 2), {"w": 1}, np.zeros(3), np.float64(1), ArrayLike(), ()])
def test_parameters_go_to_set_param_values(update):
    for agent in (Learner(), as_agent(Policy())):
        assert is_parameters(update)
        assert apply_agent_update(agent, update) is agent
        assert getattr(agent, "function", agent).values is update
        assert apply_agent_update(agent, None) is agent


@pytest.mark.parametrize("update", [Minimal(), len, CallableArray(), AgentInATuple(), [1], "no name", 3, np.ndarray])
def test_nothing_else_is_parameters(update):
    assert not is_parameters(update)


def test_agents_and_functions_replace_and_a_network_one_of_its_class_that_acts():
    new = Minimal()
    assert apply_agent_update(Minimal(), new) is new
    assert isinstance(apply_agent_update(Minimal(), AgentInATuple()), AgentInATuple)
    for function in (lambda x: x + 1, functools.partial(lambda y, x: x + y, 1), (1).__add__):
        assert apply_agent_update(Minimal(), function).get_action(1) == (2, {})
    assert apply_agent_update(as_agent(Net(1)), Net(2)).get_action(None) == (2, {})


@pytest.mark.parametrize(
    ("agent", "update", "words"),
    [
        (Minimal(), {}, r"agent_update is a dict, .*set_param_values, but the agent \(Minimal\)"),
        (as_agent(len), {}, r"agent_update is a dict, .*set_param_values, but the agent \(len\)"),
        (Learner(), [1.0], r"agent_update is a list, neither parameters .a tuple, dict or array. nor"),
        (Learner(), Minimal, "class Minimal itself"),
        (Learner(), Net(), r"agent_update is a Net, .* callable without get_action.*state_dict\(\)"),
        *((as_agent(a), Net(), "agent_update is a Net, .* without get_action") for a in (Minimal(), len, OtherNet())),
        (Adapter(), {}, "no parameters of mine"),
        (Adapter(kind="list"), Net(7), r"get_param_converter .*Adapter.* should return a tuple, a dict or an array"),
        (Adapter(kind="none"), Net(7), r"get_param_converter .* should return a function, but returned 3"),
    ],
)
def test_what_is_refused_says_the_way_out(agent, update, words):
    with pytest.raises(UsageError, match=words):
        resolved_update(update, traits_of(agent))


def test_an_own_kind_becomes_parameters_and_traits_pickle_without_the_agent():
    agent: Any = Adapter()
    agent.ballast = np.zeros(100_000)
    assert apply_agent_update(agent, Net(7)) is agent
    assert agent.get_action(None) == (7, {})
    assert resolved_update({"action": 3}, traits_of(agent)) == ("parameters", {"action": 3})
    pickled = pickle.dumps(traits_of(agent))
    assert len(pickled) < 10_000
    assert resolved_update(Net(7), pickle.loads(pickled)) == ("parameters", {"action": 7})


MAKERS: dict[str, Any] = {
    "processes": MultiprocessingSampler,
    "vec": functools.partial(LocalSampler, worker_class=VecWorker, worker_args={"n_envs": 2}),
}


@pytest.fixture(scope="module", params=MAKERS)
def sampler(request):
    with MAKERS[request.param](Adapter(1), Steps, n_workers=2, seed=0) as sampler:
        yield sampler


def actions(batch):
    return sorted(set(batch.actions.tolist()))


REFUSED = {
    "a network, for parameters": (Learner(), Net(3)),
    "parameters, for an agent without": (Minimal(), (1,)),
    "a class": (Learner(), Learner),
    "a name": (Learner(), "no name"),
    "another callable": (CallableAgent(Net(1)), OtherNet(3)),
    "what the converter refuses": (Adapter(1), {}),
}


@pytest.mark.parametrize(("agent", "update"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_an_agent_is_refused_before_it_is_sent_and_ends_no_stream(agent, update):
    sampler: Any = LocalSampler(agent, Steps, n_workers=2, seed=0)
    stream = sampler.stream()
    before = next(stream)
    version = sampler.agent_version
    for obtain in (
        lambda update: sampler.obtain_trajectories(2, agent_update=update),
        lambda update: sampler.stream(agent_update=update),
        lambda update: sampler.obtain_samples(2, agent_update=update, env_update=Steps),
    ):
        for each in (update, PerWorker([None, update])):
            with pytest.raises(UsageError):
                obtain(each)
    assert sampler.agent_version == version
    assert actions(next(stream)) == actions(before)
    stream.close()
    assert actions(sampler.obtain_trajectories(4)) == actions(before)
    sampler.close()


@pytest.mark.slow
def test_an_own_kind_is_taken_for_one_worker_or_for_all_also_after_pickling(sampler):
    sampler.obtain_trajectories(1, agent_update=Adapter(1))
    assert actions(sampler.obtain_trajectories(4, agent_update=Net(5))) == [5]
    assert actions(sampler.obtain_trajectories(16, agent_update=PerWorker([Net(6), None]))) == [5, 6]
    with pytest.raises(UsageError, match=re.escape("PerWorker([…])")):
        sampler.obtain_trajectories(4, agent_update=[Net(6), Net(7)])
    sampler.obtain_trajectories(2, agent_update=PerWorker([Adapter(1), Minimal()]))
    with pickle.loads(pickle.dumps(sampler)) as copy:
        for one in (sampler, copy):
            assert actions(one.obtain_trajectories(16, agent_update=PerWorker([Net(3), None]))) == [1, 3]
            with pytest.raises(UsageError, match="of worker 1"):
                one.obtain_trajectories(4, agent_update=Net(4))
            assert actions(one.obtain_trajectories(16, agent_update=PerWorker([{"action": 8}, Adapter(9)]))) == [8, 9]
            assert actions(one.obtain_trajectories(4, agent_update=Net(4))) == [4]


def test_what_a_worker_refused_is_forgotten_together_with_what_it_takes(sampler):
    sampler.obtain_trajectories(2, agent_update=Minimal())
    with pytest.raises(RolloutError, match="not this one"):
        sampler.obtain_trajectories(2, agent_update=Adapter(-1))
    with pytest.raises(UsageError, match=r"the agent \(Minimal\)"):
        sampler.obtain_trajectories(2, agent_update=Net(2))
    assert actions(sampler.obtain_trajectories(2)) == [1]
