"""Trajectories as two tables, with a row for each timestep and a row for each trajectory.

`streamsampler/docs/storage-and-formats.md` lists their columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from streamsampler.core.progress import Display
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.formats.columns import Column, ColumnRows, info_rows, leaf_column, leaf_values, space_columns
from streamsampler.formats.sources import Source

_OF_FRAGMENTS = ("continued", "cut", "env_number", "earlier_length", "earlier_return")
"""Names of columns: the keys of `fragments` in the singular."""


def tables(
    source: Source, shown: Display | None = None
) -> Iterator[tuple[dict[str, ColumnRows], dict[str, ColumnRows]]]:
    """Yield the columns of each shard in the tables of timesteps and trajectories."""
    infos, seeds_fit = source.survey()
    for first, batch in source.shards(shown):
        yield _named(_timesteps(batch, first, infos)), _named(_trajectories(batch, first, infos, seeds_fit=seeds_fit))


def _timesteps(batch: TrajectoryBatch[Any, Any], first: int, infos: dict[str, Any]) -> Iterator[ColumnRows]:
    n_timesteps, lengths = batch.n_timesteps, batch.lengths
    yield _numbers("trajectory", np.repeat(np.arange(first, first + len(batch)), lengths))
    yield _numbers("timestep", np.arange(n_timesteps) - np.repeat(batch.starts, lengths))
    yield from _leaves(batch.observation_space, batch.observations, "observation")
    yield from _leaves(batch.action_space, batch.actions, "action")
    yield _numbers("reward", batch.rewards)
    for name in ("terminated", "truncated"):
        ended = np.zeros(n_timesteps, np.bool_)
        ended[batch.starts + lengths - 1] = getattr(batch, name)
        yield _numbers(name, ended)
    if batch.agents is not None:
        yield _numbers("env_timestep", batch.env_timesteps)
    yield from info_rows(batch.env_infos, n_timesteps, infos["env_infos"], "env_infos", ("env_info",))
    yield from info_rows(batch.agent_infos, n_timesteps, infos["agent_infos"], "agent_infos", ("agent_info",))


def _trajectories(
    batch: TrajectoryBatch[Any, Any], first: int, infos: dict[str, Any], *, seeds_fit: bool
) -> Iterator[ColumnRows]:
    yield _numbers("trajectory", np.arange(first, first + len(batch)))
    yield _numbers("index", batch.indices)
    yield _numbers("agent_version", batch.agent_versions)
    yield _numbers("seed", np.array(batch.seeds, np.int64)) if seeds_fit else _text("seed", batch.seeds)
    yield _numbers("length", batch.lengths)
    yield _numbers("return", batch.returns)
    yield _numbers("terminated", batch.terminated)
    yield _numbers("truncated", batch.truncated)
    for name in _OF_FRAGMENTS if batch.fragments else ():
        yield _numbers(name, batch.fragments[name if name in batch.fragments else f"{name}s"])
    if batch.agents is not None:
        yield _text("agent", batch.agent_ids)
        yield _numbers("episode", batch.episode_numbers)
    yield from _leaves(batch.observation_space, batch.last_observations, "last_observation")
    yield from info_rows(batch.episode_infos, len(batch), infos["episode_infos"], "episode_infos", ("reset_info",))


def _numbers(name: str, rows: Any) -> ColumnRows:
    return ColumnRows((name,), Column("numbers", rows.dtype), rows)


def _text(name: str, values: Iterable[Any]) -> ColumnRows:
    return ColumnRows((name,), Column("text"), np.array([str(value) for value in values], object))


def _leaves(space: Any, tree: Any, root: str) -> Iterator[ColumnRows]:
    for path, child, rows in space_columns(space, tree, (root,)):
        column = leaf_column(child)
        yield ColumnRows(path, column, leaf_values(column, rows, ".".join(path)))


def _named(columns: Iterable[ColumnRows]) -> dict[str, ColumnRows]:
    named: dict[str, ColumnRows] = {}
    for column in columns:
        plain = name = ".".join(column.path)
        number = 1
        while name in named:
            number += 1
            name = f"{plain}~{number}"
        named[name] = column
    return named
