"""Trajectories as two tables: one with a row for each timestep, one with a row for each trajectory.

| timesteps | |
|---|---|
| `trajectory`, `timestep` | the row of its trajectory in the other table, and its number in it, both from 0 |
| `observation`, `action`, `reward` | what the action was chosen on, the action, and what it earned |
| `terminated`, `truncated` | true only in a trajectory's last row |
| `env_timestep` | only of several agents: in which step of the environment it was |
| `env_info.KEY`, `agent_info.KEY` | the infos of `env.step` and of the agent; missing where they were not there |

| trajectories | |
|---|---|
| `trajectory` | the number of the row, from 0 |
| `index`, `agent_version`, `seed` | what identifies the trajectory: `env.reset(seed=seed)` starts it |
| `length`, `return`, `terminated`, `truncated` | timesteps, sum of rewards, and its end |
| `continued`, `cut`, `env_number`, `earlier_length`, `earlier_return` | only of fragments, see `TrajectoryBatch` |
| `agent`, `episode` | only of several agents: which agent's it is, and of which episode |
| `last_observation` | what followed the last action |
| `reset_info.KEY` | the infos of `env.reset` |

Of Dict and Tuple spaces, and of nested infos, each leaf is a column: `observation.camera`, `observation.task.0`. Values
of several numbers are lists, in C order. Text is text. Other values (of Sequence, Graph and OneOf spaces, and infos
that are no numbers of one shape) are JSON as `streamsampler.storage.npz` describes it. Seeds are text where one of them
is no 64-bit integer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.info_columns import KeyPath
from streamsampler.extras import needed
from streamsampler.formats.columns import (
    Column,
    Source,
    Sourced,
    Values,
    info_values,
    leaf_column,
    leaf_values,
    open_source,
    space_columns,
)

if TYPE_CHECKING:
    import pandas

_INT = Column("numbers", np.dtype(np.int64))
_BOOL = Column("numbers", np.dtype(np.bool_))
_FLOAT = Column("numbers", np.dtype(np.float64))
_OF_FRAGMENTS = {"continued": _BOOL, "cut": _BOOL, "env_number": _INT, "earlier_length": _INT, "earlier_return": _FLOAT}
"""By the names of columns, which are those of `fragments` in the singular."""


class Tables:
    """The two tables of a source.

    Args:
        source: What they are of.

    Attributes:
        timesteps: The columns of the table with a row for each timestep, by name.
        trajectories: The same of the other table.
    """

    def __init__(self, source: Source) -> None:
        infos = source.survey()
        observation, action = source.observation_space, source.action_space
        seed = _INT if source.seeds_fit() else Column("text")
        self._steps = _Names({
            ("trajectory",): _INT, ("timestep",): _INT, **_leaves(observation, "observation"),
            **_leaves(action, "action"), ("reward",): _FLOAT, ("terminated",): _BOOL, ("truncated",): _BOOL,
            **({("env_timestep",): _INT} if source.of_agents else {}),
            **_under("env_info", infos["env_infos"]), **_under("agent_info", infos["agent_infos"]),
        })  # fmt: skip
        self._wholes = _Names({
            ("trajectory",): _INT, ("index",): _INT, ("agent_version",): _INT, ("seed",): seed, ("length",): _INT,
            ("return",): _FLOAT, ("terminated",): _BOOL, ("truncated",): _BOOL,
            **({(name,): column for name, column in _OF_FRAGMENTS.items()} if source.has_fragments else {}),
            **({("agent",): Column("text"), ("episode",): _INT} if source.of_agents else {}),
            **_leaves(observation, "last_observation"), **_under("reset_info", infos["episode_infos"]),
        })  # fmt: skip
        self._infos = infos
        self.timesteps, self.trajectories = self._steps.columns, self._wholes.columns

    def timestep_rows(self, batch: TrajectoryBatch[Any, Any], first: int) -> Iterator[tuple[str, Values]]:
        """Yield the name and the rows of each column of a batch, one column at a time.

        Args:
            batch: A shard of the source.
            first: How many trajectories come before it.
        """
        numbers = np.arange(batch.n_trajectories)
        last = batch.starts + batch.lengths - 1
        yield "trajectory", (np.repeat(numbers + first, batch.lengths), None)
        yield "timestep", (np.arange(batch.n_timesteps) - np.repeat(batch.starts, batch.lengths), None)
        yield from self._steps.leaves(batch.observation_space, batch.observations, "observation")
        yield from self._steps.leaves(batch.action_space, batch.actions, "action")
        yield "reward", (batch.rewards, None)
        for name in ("terminated", "truncated"):
            ended = np.zeros(batch.n_timesteps, np.bool_)
            ended[last] = getattr(batch, name)
            yield name, (ended, None)
        if batch.agents is not None:
            yield "env_timestep", (batch.env_timesteps, None)
        for name, infos in (("env_info", "env_infos"), ("agent_info", "agent_infos")):
            values = info_values(getattr(batch, infos), batch.n_timesteps, self._infos[infos], infos)
            yield from self._steps.infos(values, name)

    def trajectory_rows(self, batch: TrajectoryBatch[Any, Any], first: int) -> Iterator[tuple[str, Values]]:
        """Yield the same of the table with a row for each trajectory."""
        yield "trajectory", (np.arange(first, first + batch.n_trajectories), None)
        yield "index", (batch.indices, None)
        yield "agent_version", (batch.agent_versions, None)
        as_text = self.trajectories["seed"].kind == "text"
        seeds = np.empty(len(batch), object) if as_text else np.empty(len(batch), np.int64)
        seeds[:] = [str(seed) for seed in batch.seeds] if as_text else batch.seeds
        yield "seed", (seeds, None)
        yield "length", (batch.lengths, None)
        yield "return", (batch.returns, None)
        yield "terminated", (batch.terminated, None)
        yield "truncated", (batch.truncated, None)
        for name in _OF_FRAGMENTS if batch.fragments else ():
            yield name, (batch.fragments[name if name in batch.fragments else f"{name}s"], None)
        if batch.agents is not None:
            yield "agent", (batch.agent_ids.astype(object), None)
            yield "episode", (batch.episode_numbers, None)
        yield from self._wholes.leaves(batch.observation_space, batch.last_observations, "last_observation")
        values = info_values(batch.episode_infos, len(batch), self._infos["episode_infos"], "episode_infos")
        yield from self._wholes.infos(values, "reset_info")


def _leaves(space: Any, name: str) -> dict[KeyPath, Column]:
    return {path: leaf_column(child) for path, child, _ in space_columns(space, None, (name,))}


def _under(name: str, columns: dict[KeyPath, Column]) -> dict[KeyPath, Column]:
    return {(name, *path): column for path, column in columns.items()}


class _Names:
    """Names of columns by their paths; `~2` and so on keeps apart what would be called the same."""

    def __init__(self, columns: dict[KeyPath, Column]) -> None:
        self.columns: dict[str, Column] = {}
        self._names: dict[KeyPath, str] = {}
        for path, column in columns.items():
            plain = name = ".".join(path)
            number = 1
            while name in self.columns:
                number += 1
                name = f"{plain}~{number}"
            self._names[path] = name
            self.columns[name] = column

    def leaves(self, space: Any, tree: Any, root: str) -> Iterator[tuple[str, Values]]:
        for path, _, rows in space_columns(space, tree, (root,)):
            name = self._names[path]
            yield name, (leaf_values(self.columns[name], rows, name), None)

    def infos(self, values: Iterator[tuple[KeyPath, Values]], root: str) -> Iterator[tuple[str, Values]]:
        for path, rows in values:
            yield self._names[(root, *path)], rows


# ----------------------------------------------------------------------
# Trajectories as data frames of pandas. Needs pandas: `pip install pandas`.


_MASKED = {"b": "BooleanArray", "i": "IntegerArray", "u": "IntegerArray", "f": "FloatingArray"}


class Frames(NamedTuple):
    """Two data frames; see `streamsampler.formats.tables` for their columns.

    Attributes:
        timesteps: One row for each timestep.
        trajectories: One row for each trajectory.
    """

    timesteps: pandas.DataFrame
    trajectories: pandas.DataFrame


def to_pandas(source: Sourced) -> Frames:
    """Return trajectories as two data frames; both must fit into memory.

    Columns of numbers keep their dtype; where infos are missing they are columns that pandas masks (`Int64`, `Float64`,
    `boolean`), so that integers stay integers. A cell of several numbers is an array of the row's shape.

    Args:
        source: A `TrajectoryBatch`, a `TrajectoryFolder`, or the path of a file or of a folder.

    Returns:
        `(timesteps, trajectories)`.

    Raises:
        ImportError: pandas is not there; says how to install it.
        DataError: There are no trajectories.
        StorageError: The file or the folder is damaged; or an info cannot be written.
    """
    pd = needed("pandas", "to_pandas", "pandas")
    opened = open_source(source)
    tables = Tables(opened)
    frames: tuple[list[Any], list[Any]] = [], []
    for first, batch in opened.shards():
        for columns, rows, parts in (
            (tables.timesteps, tables.timestep_rows(batch, first), frames[0]),
            (tables.trajectories, tables.trajectory_rows(batch, first), frames[1]),
        ):
            parts.append(pd.DataFrame({name: _series(pd, columns[name], values) for name, values in rows}))
    return Frames(*(pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0] for parts in frames))


def _series(pd: Any, column: Column, values: Values) -> Any:
    rows, mask = values
    if column.kind == "numbers" and not column.shape:
        if column.always:
            return pd.Series(rows)
        missing = np.zeros(len(rows), np.bool_) if mask is None else ~mask
        if column.dtype == np.float16:  # which pandas does not mask
            rows = rows.astype(np.float32)
        return pd.Series(getattr(pd.arrays, _MASKED[column.dtype.kind])(rows.copy(), missing))
    cells = np.empty(len(rows), object)
    cells[:] = list(rows) if column.kind == "numbers" else rows
    if mask is not None:
        cells[~mask] = None
    return pd.Series(cells, dtype=object)
