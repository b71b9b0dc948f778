"""Agents that share their parameters among trajectories in flight: one set of them, and the same batches."""

from __future__ import annotations

import copy
import logging
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RolloutError, UsageError
from streamsampler.agents.base import as_agent, shared_agent
from streamsampler.filters import FilteredAgent, RunningNorm
from tests.tiers import mostly_slow
from tests.workers.waiting.envs import Draws, DrawsLater, Waits
from tests.workers.waiting.test_async_worker import make, twin


class Weighted(DrawsLater):
    """Draws, waits, and has parameters."""

    def __init__(self, weights: Any = None, identity: Any = None) -> None:
        self.weights = np.ones(3) if weights is None else weights
        self.identity = object() if identity is None else identity

    async def get_action(self, observation: Any) -> Any:
        action, _ = await super().get_action(observation)
        told = {"score": float(observation @ self.weights), "value": float(observation[0])}
        return action if told["score"] > 0 else 0, told

    def set_param_values(self, values: Any) -> None:
        self.weights = np.array(values["weights"])

    def get_param_values(self) -> Any:
        return {"weights": self.weights}


class Sharing(Weighted):
    """Shares its weights, and says in its infos that it does."""

    n_copies = 0

    def sharing_parameters(self) -> Any:
        return Sharing(self.weights, self.identity)

    def __setstate__(self, state: Any) -> None:
        type(self).n_copies += 1
        self.__dict__.update(state)


class Delegating:
    """Passes on all that it has not to an agent inside."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def __getattr__(self, name: str) -> Any:
        if name == "agent":
            raise AttributeError(name)
        return getattr(self.agent, name)

    def get_action(self, observation: Any) -> Any:
        return 1, {}


class CallableSharing:
    """A plain callable that does."""

    def reset(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def __call__(self, observation: Any) -> int:
        return int(self.generator.integers(3))

    def sharing_parameters(self) -> Any:
        return copy.copy(self)


@pytest.mark.parametrize("in_flight", mostly_slow([7, 1, 20]))
@pytest.mark.parametrize("given", mostly_slow([{}, {"observation_filter": RunningNorm()}]), ids=["plain", "filtered"])
@pytest.mark.parametrize(
    ("kind", "n_workers"),
    mostly_slow([(LocalSampler, 1), pytest.param(MultiprocessingSampler, 2, marks=pytest.mark.slow)]),
)
def test_batches_are_those_of_copies(kind: Any, n_workers: int, given: Any, in_flight: int) -> None:
    sharing = make(kind, Sharing(), Waits, in_flight=in_flight, n_workers=n_workers, **given)
    with sharing as sampler, make(LocalSampler, Weighted(), Waits, in_flight=1, **given) as expected:
        for call in range(3):
            update = {"weights": np.arange(3.0) - call}
            assert sampler.obtain_trajectories(30, agent_update=update) == expected.obtain_trajectories(
                30, agent_update=update
            )
            assert sampler.obtain_samples(100) == expected.obtain_samples(100)


def test_a_worker_has_one_copy() -> None:
    Sharing.n_copies = 0
    with make(LocalSampler, Sharing(), Waits, in_flight=20, check=None) as sampler:
        for call in range(3):
            sampler.obtain_trajectories(60, agent_update={"weights": np.arange(3.0) - call})
        assert sampler.stats.gauges()["in_flight"].maximum > 7
    assert Sharing.n_copies == 1


class Fragile(Sharing):
    """Raises in some trajectories, and spoils its weights before."""

    def sharing_parameters(self) -> Any:
        return Fragile(self.weights, self.identity)

    def reset(self, seed: int) -> None:
        super().reset(seed)
        if seed % 4 == 0:
            self.weights *= np.nan
            raise ValueError("fragile")


@pytest.mark.parametrize("in_flight", mostly_slow([7, 20]))
def test_an_agent_that_raised_is_made_again(in_flight: int) -> None:
    """What has begun with it may have its weights: here nothing has, since it raises where trajectories begin."""
    options: dict[str, Any] = {"on_failure": "drop", "check": None}
    one, several = (make(LocalSampler, Fragile(), Waits, in_flight=n, **options) for n in (1, in_flight))
    with one as sampler, several as other:
        dropped = [each.obtain_trajectories(40).indices.tolist() for each in (sampler, other)]
        assert dropped[0] == dropped[1]
        assert other.stats.dropped
        batch = other.obtain_trajectories(5)
        assert not np.isnan(batch.agent_infos["score"]).all()


def test_nothing_is_said_of_copies(caplog: pytest.LogCaptureFixture) -> None:
    class Large(Sharing):
        def sharing_parameters(self) -> Any:
            return Large(self.weights)

    with caplog.at_level(logging.WARNING), make(LocalSampler, Large(np.zeros(4_000_000)), Waits, in_flight=16):
        assert "copy of the agent" not in caplog.text


def test_what_can_be_shared() -> None:
    agent = Sharing()
    shared: Any = shared_agent(agent)
    assert shared is not agent
    assert shared.weights is agent.weights
    assert shared_agent(Weighted()) is None
    assert shared_agent(Delegating(agent)) is None
    assert isinstance(shared_agent(as_agent(CallableSharing())), type(as_agent(CallableSharing())))
    filtered: Any = shared_agent(FilteredAgent(agent, RunningNorm()))
    assert filtered.agent.weights is agent.weights
    assert type(filtered) is FilteredAgent
    assert shared_agent(FilteredAgent(Weighted(), RunningNorm())) is None

    class OwnFiltered(FilteredAgent):
        pass

    assert shared_agent(OwnFiltered(agent, RunningNorm())) is None


def test_a_callable_shares() -> None:
    class Plain(Draws):
        def get_action(self, observation: Any) -> Any:
            return super().get_action(observation)[0], {}

    with make(LocalSampler, CallableSharing(), Waits) as sampler, twin(Plain()) as expected:
        assert sampler.obtain_trajectories(30) == expected.obtain_trajectories(30)


class ReturnsOther(Sharing):
    """Returns what it is given; of several values one after the other."""

    def __init__(self, *returned: Any) -> None:
        super().__init__()
        self.returned, self.n_returned = returned, 0

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state, n_returned=0)

    def sharing_parameters(self) -> Any:
        shared = self.returned[min(self.n_returned, len(self.returned) - 1)]
        self.n_returned += 1
        return self if shared == "itself" else shared


class WithoutReset:
    def get_action(self, observation: Any) -> Any:
        return 0, {}


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        (["itself"], "must return another agent with the same methods, or None, but returned"),
        ([WithoutReset()], "must return another agent with the same methods, or None, but returned"),
        ([Weighted], "must return another agent with the same methods, or None, but returned"),
        ([7], "must return another agent with the same methods, or None, but returned 7"),
        ([Weighted(), None], "sharing_parameters of ReturnsOther returned an agent, and then None"),
    ],
)
def test_what_sharing_parameters_may_not_return(returned: Any, match: str) -> None:
    with (
        make(LocalSampler, ReturnsOther(*returned), Waits) as sampler,
        pytest.raises(RolloutError, match=f"UsageError: .*{match}"),
    ):
        sampler.obtain_trajectories(2)


class SharesLater(Weighted):
    async def sharing_parameters(self) -> Any:
        return Weighted(self.weights)


def test_sharing_parameters_is_no_async_def() -> None:
    with pytest.raises(UsageError, match="has async def sharing_parameters, which is never awaited"):
        make(LocalSampler, SharesLater(), Waits)
