"""Find what was recorded of an episode of fragments, which is run again as a trajectory is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.infos import take_infos
from streamsampler.errors import UsageError

__all__ = ["OF_FRAGMENTS", "check_alone", "episode_of", "is_part"]

_OF_THE_START = ("continued", "earlier_lengths", "earlier_returns")
OF_FRAGMENTS = (
    "an episode of fragments is replayed from what was recorded of it: pass recorded=batch; and actions=True where it "
    "began in an earlier call"
)
_CONTINUED = (
    "trajectory {index} of agent version {version} began in an earlier call, with other parameters: pass actions=True, "
    "and a batch with all parts of the episode, TrajectoryBatch.concatenate(batches)"
)
_INCOMPLETE = (
    "of trajectory {index} of agent version {version}, which began in an earlier call, not all parts are in the batch: "
    "it has those of agent versions {there}. Join the batches of all calls since it began with "
    "TrajectoryBatch.concatenate(batches)"
)


def is_part(one: TrajectoryBatch[Any, Any]) -> bool:
    """Return whether a batch of one trajectory is an episode of fragments, or a part of one."""
    return bool(one.env_numbers[0] >= 0)


def check_alone(block: int) -> None:
    """Check that an episode of fragments can be run again with its agent.

    Args:
        block: How many trajectories the workers run together.

    Raises:
        UsageError: It stepped side by side with others, which went on from earlier calls.
    """
    if block > 1:
        raise UsageError(
            "an episode of fragments that stepped side by side with others is replayed without the agent only: pass "
            "actions=True"
        )


def episode_of(
    batch: TrajectoryBatch[Any, Any], one: TrajectoryBatch[Any, Any], *, actions: bool
) -> TrajectoryBatch[Any, Any]:
    """Return what was recorded of a trajectory since its reset: of an episode of fragments, up to a call's end.

    Args:
        batch: All that was recorded.
        one: The trajectory in it; of an episode of fragments, the last part that is wanted.
        actions: Whether recorded actions are replayed, so that the parts may have been made with several parameters.

    Raises:
        UsageError: It began in an earlier call, and an agent is to choose the actions, or a part is missing.
    """
    if not is_part(one) or not one.continued[0]:
        return one
    index, last = int(one.indices[0]), int(one.agent_versions[0])
    if not actions:
        raise UsageError(_CONTINUED.format(index=index, version=last))
    versions = batch.agent_versions
    mine = [
        row
        for row in np.flatnonzero((batch.indices == index) & (versions <= last)).tolist()
        if batch.seeds[row] == one.seeds[0] and batch.env_numbers[row] == one.env_numbers[0]
    ]
    mine.sort(key=lambda row: int(versions[row]))
    there = versions[mine].tolist()
    if batch.continued[mine[0]] or there != list(range(there[0], last + 1)):
        raise UsageError(_INCOMPLETE.format(index=index, version=last, there=", ".join(map(str, there))))
    parts = TrajectoryBatch.concatenate(batch[row] for row in mine).unfiltered()
    first, end = slice(0, 1), slice(-1, None)
    return replace(
        parts,
        last_observations=trees.take(parts.last_observations, end),
        terminated=parts.terminated[end],
        truncated=parts.truncated[end],
        episode_infos=take_infos(parts.episode_infos, first),
        lengths=parts.lengths.sum(keepdims=True),
        indices=parts.indices[end],
        seeds=parts.seeds[-1:],
        agent_versions=parts.agent_versions[end],
        worker_numbers=parts.worker_numbers[end],
        fragments={
            **{name: values[end] for name, values in parts.fragments.items()},
            **{name: values[first] for name, values in parts.fragments.items() if name in _OF_THE_START},
        },
    )
