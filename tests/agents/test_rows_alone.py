"""An agent that has `get_actions` alone is taken where only that is called, and refused elsewhere at once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import (
    DefaultWorker,
    LocalSampler,
    MultiprocessingSampler,
    PerWorker,
    RolloutError,
    UsageError,
    VecWorker,
    check,
    evaluate,
    replay,
)
from streamsampler.agents.base import acts_alone, as_agent, is_agent
from streamsampler.agents.updates import is_parameters
from streamsampler.filters import FilteredAgent, RunningNorm
from tests.scripted.agents import Rowwise
from tests.scripted.games import Comings


class Rows:
    """Draws for each row; has no `get_action`."""

    row_independent = True

    def __init__(self, weights: Any = (0.1, 0.5, 3.0, 2.0)) -> None:
        self.weights = np.array(weights)

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        logits = (observations * self.weights).sum(axis=1)
        return (logits + draws.normal(1)[:, 0] > 0).astype(np.int64), {"logit": logits, "drawn": draws.random()}

    def set_param_values(self, weights: Any) -> None:
        self.weights = np.array(weights)


FOUR: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 4}, "seed": 3, "check": None}


class Counting:
    def on_timestep(self, context: Any) -> None:
        context.metrics["n"] = float(context.timestep)


def calls(sampler: Any) -> list[Any]:
    return [
        sampler.obtain_trajectories(6),
        sampler.obtain_samples(40, agent_update=np.array([0.0, 0.0, -1.0, 0.0])),
        sampler.obtain_fragments(9, 4, agent_update=type(sampler.made)((0.2, 0.2, 0.2, 0.2))),
    ]


def made(kind: Any, agent: Any, **options: Any) -> list[Any]:
    with kind(agent, "CartPole-v1", **options) as sampler:
        sampler.made = agent
        return calls(sampler)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"hooks": Counting()}, {"observation_filter": RunningNorm()}])
def test_its_batches_are_those_of_one_that_has_both(more: Any) -> None:
    expected = made(LocalSampler, Rowwise((0.1, 0.5, 3.0, 2.0)), **FOUR, **more)
    assert made(LocalSampler, Rows(), **FOUR, **more) == expected
    assert made(MultiprocessingSampler, Rows(), n_workers=2, **FOUR, **more) == expected
    parent = {**FOUR, "inference": "parent", "worker_class": DefaultWorker}
    assert made(MultiprocessingSampler, Rows(), n_workers=2, **parent, **more) == expected


@pytest.mark.slow
def test_it_is_pickled_replayed_evaluated_and_given_for_each_worker(tmp_path: Path) -> None:
    with LocalSampler(Rows(), "CartPole-v1", **FOUR) as sampler:
        batch = sampler.obtain_trajectories(5)
        assert sampler.replay(1, 3, recorded=batch).same
        path = batch.save(tmp_path / "it.npz", provenance=sampler.provenance())
        assert replay(path, 3, agent=Rows()).same
        with pickle.loads(pickle.dumps(sampler)) as copy:
            assert copy.obtain_trajectories(5) == sampler.obtain_trajectories(5)
        again = sampler.obtain_trajectories(5, agent_update=FilteredAgent(Rows(), RunningNorm()))
        assert again.n_trajectories == 5
    found = evaluate(Rows(), "CartPole-v1", num_trajectories=4, seed=1, worker_class=VecWorker)
    assert len(found.returns) == 4
    with LocalSampler(PerWorker([Rows(), Rowwise()]), "CartPole-v1", n_workers=2, **FOUR) as sampler:
        assert sampler.obtain_trajectories(4).n_trajectories == 4
    report = check("CartPole-v1", agent=Rows(), seed=1, time_limit=60.0)
    assert (report["agent"].verdict, report["seed"].verdict, report["rows"].verdict) == ("pass", "pass", "pass")


WORDS = "has only get_actions, but DefaultWorker asks it for one action at a time: give it get_action"


@pytest.mark.parametrize("agent", [Rows(), FilteredAgent(Rows(), RunningNorm()), PerWorker([Rowwise(), Rows()])])
def test_other_workers_refuse_it_in_the_constructor_and_in_a_call_before_anything_is_sent(agent: Any) -> None:
    n_workers = 2 if isinstance(agent, PerWorker) else 1
    for kind in (LocalSampler, MultiprocessingSampler):
        with pytest.raises(UsageError, match=WORDS):
            kind(agent, "CartPole-v1", n_workers=n_workers)
    with LocalSampler(Rowwise(), "CartPole-v1", n_workers=n_workers) as sampler:
        with pytest.raises(UsageError, match=WORDS):
            sampler.obtain_trajectories(2, agent_update=agent)
        assert sampler.agent_version == 0
        assert sampler.obtain_trajectories(2).n_trajectories == 2
    with pytest.raises(UsageError, match=WORDS):
        evaluate(Rows(), "CartPole-v1", num_trajectories=4)


def cart_pole() -> Any:
    return gymnasium.make("CartPole-v1")


def test_workers_refuse_it_where_only_they_can_tell_how_many_agents_an_environment_has() -> None:
    for kind in (LocalSampler, MultiprocessingSampler):
        with kind(Rows(), cart_pole, n_workers=1) as sampler, pytest.raises(RolloutError, match=WORDS):
            sampler.obtain_trajectories(2)


class Remembering(Rows):
    """Is asked for each agent of an environment by itself."""

    def reset(self, seed: int) -> None:
        pass

    def get_actions(self, observations: Any) -> Any:  # type: ignore[override]
        return np.zeros(len(observations), np.int64), {}


class Plain(Rows):
    def get_actions(self, observations: Any) -> Any:  # type: ignore[override]
        return np.zeros(len(observations), np.int64), {}


def test_policies_may_have_get_actions_alone_where_all_agents_are_asked_together() -> None:
    with LocalSampler({"red": Plain(), "blue": Plain()}, Comings, seed=1) as sampler:
        assert sampler.obtain_trajectories(2).n_trajectories == 2
    shared = []
    for agents in Plain(), {"shared": Plain()}:
        with LocalSampler(agents, Comings, seed=1) as sampler:
            shared.append(sampler.obtain_trajectories(2))
    assert shared[0] == shared[1]
    with (
        LocalSampler({"red": Plain(), "blue": Remembering()}, Comings, seed=1) as sampler,
        pytest.raises(RolloutError, match="policy 'blue' has get_actions alone"),
    ):
        sampler.obtain_trajectories(2)


def test_what_is_an_agent() -> None:
    rows: Any = Rows()
    assert as_agent(rows) is rows
    assert is_agent(rows)
    assert not acts_alone(rows)
    assert acts_alone(Rowwise())
    assert not is_parameters(rows)
