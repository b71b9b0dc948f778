"""Trajectories of an agent in the sampler's process are run again by a copy of it, which leaves it as it is."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsampler import MultiprocessingSampler, RandomAgent, TrajectoryBatch, VecWorker, replay
from streamsampler.errors import SerializationError
from streamsampler.filters import RunningNorm
from tests.fragments.agents import Drawn, Fleeting, Mixing, Restorable, Sticky
from tests.scripted.agents import Balancing, Linear, Rowwise, Sampling
from tests.tiers import mostly_slow

ARGS: list[dict[str, Any]] = [{"n_envs": 4}, {"n_envs": 4, "groups": 2}, {"n_envs": 3, "block_size": 5}]


def in_parent(agent: Any, env: Any = Sticky, n_workers: int = 2, **options: Any) -> Any:
    options = {"seed": 3, "check": None, "worker_args": {"n_envs": 4}, **options}
    return MultiprocessingSampler(agent, env, n_workers=n_workers, inference="parent", **options)


AGENTS: list[Any] = [
    *("random", RandomAgent(), lambda observation: int(observation[2] > 0)),
    *(Linear, Balancing, Rowwise, Fleeting, Sampling),
]


@pytest.mark.parametrize("agent", mostly_slow(reversed(AGENTS), 4))
@pytest.mark.parametrize("worker_args", mostly_slow(ARGS))
def test_a_replay_is_what_was_recorded(agent: Any, worker_args: Any, tmp_path: Path) -> None:
    agent = agent() if isinstance(agent, type) else agent
    with in_parent(agent, "CartPole-v1", worker_args=worker_args) as sampler:
        batch = sampler.obtain_trajectories(9)
        for index in (0, 3, 8):
            assert sampler.replay(1, index, recorded=batch).same
            assert sampler.replay(1, index, recorded=batch, actions=True).same
        assert sampler.replay(1, 5).trajectory.rewards.tolist() == batch[5].rewards.tolist()
        assert sampler.provenance()["worker_args"].keys() == worker_args.keys() - {"groups"}
        path = batch.save(tmp_path / "it.npz", provenance=sampler.provenance())
    assert replay(path, 3, agent=agent, n_trajectories=9).same


def test_a_replay_is_of_the_version_whose_agent_is_given() -> None:
    with in_parent(Linear(), "CartPole-v1") as sampler:
        first = sampler.obtain_trajectories(5, agent_update=np.array([0.1, 0.5, 3.0, 2.0]))
        second = sampler.obtain_trajectories(5, agent_update=np.array([0.0, 0.0, -1.0, 0.0]))
        assert sampler.replay(2, 2, recorded=second).same
        assert sampler.replay(1, 2, recorded=first, agent=np.array([0.1, 0.5, 3.0, 2.0])).same
        assert sampler.replay(1, 2, recorded=first, agent=Linear((0.1, 0.5, 3.0, 2.0))).same
        found = sampler.replay(1, 2, recorded=first, agent=Linear())
        assert found.difference is not None
        assert found.difference.what == "action"


def test_a_replay_of_fragments_and_of_filtered_observations() -> None:
    with in_parent(Fleeting(), observation_filter=RunningNorm()) as sampler:
        batches = [sampler.obtain_fragments(9, 4) for _ in range(3)]
        everything = TrajectoryBatch.concatenate(batches)
        for one in batches[2]:
            assert sampler.replay(3, int(one.indices[0]), recorded=everything, actions=True).same
        whole = sampler.obtain_trajectories(6)
        assert sampler.replay(4, 5, recorded=whole).same


@pytest.mark.parametrize("kind", mostly_slow([Drawn, Mixing, Restorable]))
def test_a_replay_leaves_the_agent_and_the_episodes_that_go_on_as_they_are(kind: Any) -> None:
    def three_calls(*, replays: bool) -> list[Any]:
        batches = []
        with in_parent(kind(), worker_args={"n_envs": 3}) as sampler:
            for _ in range(3):
                batches.append(sampler.obtain_fragments(9, 3))
                for one in batches[-1] if replays else ():
                    recorded = TrajectoryBatch.concatenate(batches)
                    version, index = int(one.agent_versions[0]), int(one.indices[0])
                    assert sampler.replay(version, index, recorded=recorded, actions=True).same
        return batches

    assert three_calls(replays=True) == three_calls(replays=False)
    agent = kind()
    with in_parent(agent, worker_args={"n_envs": 3}) as sampler:
        batch = sampler.obtain_trajectories(6)
        before = pickle.dumps(agent)
        assert sampler.replay(1, 4, recorded=batch).same
        assert pickle.dumps(agent) == before


class Service(Balancing):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_an_agent_that_cannot_be_copied_is_replayed_by_another_one_or_by_its_actions() -> None:
    with in_parent(Service(), "CartPole-v1") as sampler:
        batch = sampler.obtain_trajectories(5)
        with pytest.raises(
            SerializationError, match=r"A replay needs a copy of the agent: pass agent=.*or actions=True"
        ):
            sampler.replay(1, 2, recorded=batch)
        assert sampler.replay(1, 2, recorded=batch, actions=True).same
        assert sampler.replay(1, 2, recorded=batch, agent=Balancing()).same


class Interrupted(Rowwise):
    """Is interrupted by Ctrl-C, once."""

    interrupts = False

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return super().get_actions(observations, draws=draws)


def test_what_an_agent_has_learnt_since_its_parameters_were_given_is_kept() -> None:
    weights = [np.array([0.1, 0.5, 3.0, 2.0]), np.array([0.0, 0.0, -1.0, 0.0])]
    agent = Interrupted()
    with in_parent(agent, "CartPole-v1") as sampler:
        sampler.obtain_trajectories(3, agent_update=weights[0])
        agent.weights = weights[1]  # it learns here
        learnt = sampler.obtain_trajectories(6)
        assert sampler.replay(2, 4, recorded=learnt).same
        copy = pickle.loads(pickle.dumps(sampler))
        agent.interrupts = True
        with pytest.raises(KeyboardInterrupt):  # after which the engine is replaced
            sampler.obtain_trajectories(1)
        again = sampler.obtain_trajectories(6)
    assert agent.weights is weights[1]
    with copy:
        assert copy.obtain_trajectories(1).agent_version == 3
        assert copy.obtain_trajectories(6) == again


def test_a_check_that_makes_environments_again_does_not_undo_what_an_agent_has_learnt() -> None:
    agent = Rowwise()
    with in_parent(agent, Keeping, check="warn") as sampler:
        sampler.obtain_trajectories(3, agent_update=np.array([0.1, 0.5, 3.0, 2.0]))
        learnt = agent.weights = np.array([0.0, 0.0, -1.0, 0.0])
        sampler.obtain_trajectories(3, env_update=OtherKeeping)
    assert agent.weights is learnt


class Keeping(Sticky):
    """Carries its number of resets from one trajectory to the next."""

    n_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        self.n_resets += 1
        return observation + np.float32(self.n_resets), info


class OtherKeeping(Keeping):
    pass


def test_groups_are_refused_by_the_constructor() -> None:
    with pytest.raises(ValueError, match="groups is 5, but there are only 4 environments"):
        in_parent("random", worker_args={"n_envs": 4, "groups": 5})
    with pytest.raises(ValueError, match="groups"):
        in_parent("random", worker_args={"n_envs": 4, "groups": 0})
    assert VecWorker.layout({"n_envs": 4}).rows == 4
