"""Record the actions that an environment reports as taken, in place of the agent's choice: `record_taken=`.

Some environments clip actions, repeat the last action, or apply a safety layer. With `record_taken="action_taken"` the
environment's ``info["action_taken"]`` becomes the action in `batch.actions`, and disappears from the infos; in
timesteps without it, the agent's action stays. So models of the environment, and imitation, learn from executed
actions.

Agent infos are unchanged: a log-probability is that of the chosen action. A policy gradient needs the chosen actions,
so let the agent record them as an info as well. Hooks receive the chosen action, and episodes of fragments are restored
with chosen actions; `replay(…, actions=True)`, which has only the recorded actions, is an error.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.core.errors import DataError, UsageError
from streamsampler.data.copying import make_recorder
from streamsampler.data.info_columns import InfoColumn, InfoColumns
from streamsampler.data.recorder import Rollouts, place_of
from streamsampler.data.spaces import AnySpace, rows_inside, short
from streamsampler.data.trees import Array

_LOG = logging.getLogger("streamsampler")
_OF_ONE_ARRAY = gym_spaces.Box | gym_spaces.Discrete | gym_spaces.MultiDiscrete | gym_spaces.MultiBinary


def check_record_taken(name: Any) -> str | None:
    """Check the samplers' argument `record_taken`."""
    if name is None or (isinstance(name, str) and name):
        return name
    raise UsageError(f'record_taken must be the name of an info, such as "action_taken", got {name!r}')


def check_chosen(recorded: Any, name: str | None) -> None:
    """Check that the recorded actions are the agent's choice, as `replay(…, actions=True)` requires."""
    if recorded is None:
        raise UsageError("actions=True needs the recorded trajectory: pass recorded=batch")
    if name is not None:
        raise UsageError(
            "actions=True needs the actions chosen by the agent, but record_taken= recorded the environment's"
        )


def check_taken(rollouts: Rollouts, name: str, space: AnySpace) -> None:
    """Convert the actions in an environment's info `name` to the form of a batch's actions, in place.

    Raises:
        UsageError: The space is not a single array.
        DataError: The info holds no action of the space; with `position` and `timestep`.
    """
    if not isinstance(space, _OF_ONE_ARRAY):
        raise UsageError(f"record_taken={name!r} needs actions that are a single array or number, not {space}")
    columns = rollouts.env_infos.columns
    if any(path[0] == name and len(path) > 1 for path in columns):
        raise DataError(f"info[{name!r}] is a dict, but should be an action of {space}")
    if (column := columns.get((name,))) is None:
        return
    steps = np.arange(rollouts.env_infos.length) if column.steps is None else column.steps
    try:
        rows = _rows_of(column.values, f"info[{name!r}]", space)
    except DataError as error:
        error.position, error.timestep = place_of(int(steps[error.row or 0]), rollouts.lengths)
        raise
    columns[name,] = InfoColumn(column.steps, rows)


def _rows_of(values: Array, path: str, space: AnySpace) -> Array:
    recorder = make_recorder(space, path, DataError)
    try:
        for value in values:
            recorder.record(value)
        rows = np.array(recorder.view(0, len(values)))
    except DataError as error:
        error.row = recorder.count() if error.row is None else error.row
        raise
    if not (inside := rows_inside(space, rows)).all():
        first = int(np.argmin(inside))
        raise DataError(f"{path} is outside the action space: {short(rows[first])} is not in {space}", row=first)
    return rows


class TakenActions:
    """Replaces the agent's actions with those in the environment's info `name`; None to replace nothing."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self._is_known = False  # whether some rollouts had the info, or the user was warned
        self._is_missing = False  # whether some rollouts had no such info

    def put(self, rollouts: Rollouts) -> None:
        columns = rollouts.env_infos.columns
        if self.name is None:
            return
        if (column := columns.get((self.name,))) is None:
            self._is_missing = True
            return
        self._is_known = True
        actions = np.array(rollouts.actions)
        actions[slice(None) if column.steps is None else column.steps] = column.values
        rollouts.actions = actions
        others = {path: other for path, other in columns.items() if path != (self.name,)}
        rollouts.env_infos = InfoColumns(rollouts.env_infos.length, others)

    def warn_if_missing(self) -> None:
        """Warn once if no rollout had the info; called when a batch is complete or a stream ends."""
        if self._is_missing and not self._is_known:
            self._is_known = True
            _LOG.warning(
                "record_taken=%r: the environment returned no info of this name, so the agent's own actions were "
                "recorded; check its spelling", self.name,
            )  # fmt: skip
