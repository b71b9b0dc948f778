"""Find the record of a trajectory to replay: its episode, index, resets and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.infos import take_infos
from streamsampler.workers.resets import Options, Resets, common_resets, tasks_as_recorded

_OF_THE_START = ("continued", "earlier_lengths", "earlier_returns")
_CONTINUED = (
    "trajectory {index} of agent version {version} started in an earlier call, with other parameters: pass "
    "actions=True, and a batch with all parts of the episode, TrajectoryBatch.concatenate(batches)"
)
_INCOMPLETE = (
    "trajectory {index} of agent version {version} started in an earlier call, and the batch has only its parts of "
    "agent versions {there}: join the batches of all calls since its start with TrajectoryBatch.concatenate(batches)"
)
_OF_AGENTS = (
    "the record of trajectory {index} is a part of an episode of several agents: only episodes within one call can be "
    "replayed"
)


def episode_of(
    batch: TrajectoryBatch[Any, Any], one: TrajectoryBatch[Any, Any], *, actions: bool
) -> TrajectoryBatch[Any, Any]:
    """Return the record of a trajectory since its reset; of an episode of fragments, up to its last part.

    If recorded actions are replayed, the parts may be from several agent versions. Refuses an episode from an earlier
    call if an agent would choose the actions or a part is missing, and parts of episodes of several agents.
    """
    if hasattr(one, "policies") and (one.continued[0] or one.cut[0]):
        raise UsageError(_OF_AGENTS.format(index=int(one.indices[0])))
    if one.env_numbers[0] < 0 or not one.continued[0]:
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


def recorded_one(batch: Any, index: int, version: int | None = None) -> TrajectoryBatch[Any, Any]:
    """Return a batch's trajectory with an index; refuse an index that is missing or ambiguous."""
    versions, indices = batch.agent_versions, batch.indices
    mine = np.full(len(versions), fill_value=True) if version is None else versions == version
    found = np.flatnonzero(mine & (indices == index)).tolist()
    if len(found) == 1:
        return batch[found[0]]  # type: ignore[no-any-return]
    name = f"trajectory {index}" if version is None else f"trajectory {index} of agent version {version}"
    there = ", ".join(map(str, np.unique(versions[found] if found else versions).tolist())) or "none"
    if found:
        raise UsageError(f"{name} occurs more than once, in agent versions {there}: pass version=")
    if not mine.any():
        raise UsageError(f"{name} does not exist: the batch has agent versions {there}")
    first, last = int(indices[mine].min()), int(indices[mine].max())
    if index > last:
        raise UsageError(f"{name} does not exist: the batch has trajectories {first} to {last}")
    raise UsageError(
        f"{name} does not exist: it raised and was dropped, or was not selected; the batch has {mine.sum()} "
        f"trajectories from {first} to {last}"
    )


def resets_as_recorded(
    reset_options: Options | None, tasks: Sequence[Any] | None, recorded: TrajectoryBatch[Any, Any] | None, version: int
) -> Resets | None:
    given = common_resets(reset_options)
    if tasks is None:
        return given
    numbers = None if recorded is None else recorded.episode_infos.get("task_index")
    if recorded is None or numbers is None:
        what = "pass recorded=, a batch with the trajectory" if recorded is None else "its call had no tasks"
        raise UsageError(f"the trajectory's task is unknown: {what}")
    return tasks_as_recorded(tasks, of_version(recorded, version, numbers.tolist()), given)


def of_version(recorded: TrajectoryBatch[Any, Any] | None, version: int, values: Sequence[int]) -> dict[int, int]:
    if recorded is None:
        return {}
    rows = zip(recorded.indices.tolist(), recorded.agent_versions.tolist(), values, strict=True)
    return {index: value for index, of_version, value in rows if of_version == version}
