"""Compare batches of several agents with what plain loops give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import streamsampler
from streamsampler import MultiAgentBatch, VecWorker
from tests.scripted.games import AgentTicketRollouts, Chooser, Comings

# Calls return a `MultiAgentBatch`, which type checkers cannot know.
LocalSampler: Any = streamsampler.LocalSampler
MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler
POLICIES: dict[str, Any] = {"red": Chooser(0), "blue": Chooser(1)}


class Silent:
    """Hooks that do nothing, with which the slower loop runs."""

    def on_timestep(self, context: Any) -> None:
        assert context.timestep > 0


ROWS: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
ALL_LOOPS: list[dict[str, Any]] = [{}, {"hooks": Silent()}, ROWS, {"hooks": Silent(), **ROWS}]


PARENT: dict[str, Any] = {"inference": "parent", "n_workers": 2, "worker_args": {"n_envs": 3}}
ALL_WAYS: list[Any] = [*ALL_LOOPS, pytest.param(PARENT, marks=pytest.mark.slow)]


def made(agents: Any, env: Any, **options: Any) -> Any:
    """Return a sampler: in this process, unless the agents alone are to be there."""
    return (MultiprocessingSampler if "inference" in options else LocalSampler)(agents, env, **options)


def sampled(agents: Any = POLICIES, env: Any = Comings, n: int = 3, **options: Any) -> Any:
    with made(agents, env, **{"seed": 1, "check": None, **options}) as sampler:
        return sampler.obtain_trajectories(n)


def assert_as_played(batch: MultiAgentBatch, episode: int, played: Mapping[str, AgentTicketRollouts]) -> None:
    """Check one episode: who took part, and all that they did, step for step."""
    one = batch[episode]
    found = {str(trajectory.agent_ids[0]): trajectory for each in one.policies.values() for trajectory in each}
    assert set(found) == set(played)
    for agent, trajectory in found.items():
        expected = played[agent]
        assert_same(trajectory.observations, expected.observations)
        assert_same(trajectory.actions, expected.actions)
        assert trajectory.rewards.tolist() == expected.rewards
        assert trajectory.env_timesteps.tolist() == expected.env_timesteps
        assert_same(trajectory.last_observations, [expected.last_observation])
        assert (bool(trajectory.terminated[0]), bool(trajectory.truncated[0])) == expected.ends
        np.testing.assert_equal([dict(row.env_info) for row in trajectory.time_steps()], expected.infos)
        assert (trajectory.seeds, trajectory.indices.tolist()) == (one.seeds, one.indices.tolist())
        assert trajectory.episode_numbers.tolist() == [0]


def assert_same(found: Any, expected: Sequence[Any]) -> None:
    """Check that values of the steps are those of a list."""
    if isinstance(found, Mapping):
        for key, values in found.items():
            assert_same(values, [each[key] for each in expected])
    else:
        np.testing.assert_array_equal(found, np.asarray(expected).astype(found.dtype))
