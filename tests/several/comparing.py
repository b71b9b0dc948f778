"""Compare batches of several agents with what plain loops give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamsampler import MultiAgentBatch
from tests.scripted.games import Played


def assert_as_played(batch: MultiAgentBatch, episode: int, played: Mapping[str, Played]) -> None:
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
        infos = [dict(row.env_info) for row in trajectory.time_steps()]
        np.testing.assert_equal(infos, expected.infos)
        assert trajectory.seeds == one.seeds
        assert trajectory.indices.tolist() == one.indices.tolist()
        assert trajectory.episode_numbers.tolist() == [0]


def assert_same(found: Any, expected: Sequence[Any]) -> None:
    """Check that values of the steps are those of a list."""
    if isinstance(found, Mapping):
        for key, values in found.items():
            assert_same(values, [each[key] for each in expected])
    else:
        np.testing.assert_array_equal(found, np.asarray(expected).astype(found.dtype))


def policies_of(batch: MultiAgentBatch) -> dict[str, list[Any]]:
    """Return which agents each policy played, by name."""
    return {name: sorted(set(each.agent_ids.tolist())) for name, each in batch.policies.items()}
