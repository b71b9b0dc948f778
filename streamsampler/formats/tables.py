"""Trajectories as tables of timesteps and of trajectories: Parquet, pandas, and a TensorDict of timesteps.

Parquet is written shard by shard; the others hold all data in memory. Guide:
`streamsampler/docs/storage-and-formats.md`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamsampler.core.errors import StorageError
from streamsampler.core.extras import needed
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import Display
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.codec import encode_space
from streamsampler.data.info_columns import KeyPath
from streamsampler.data.leaves import Leaves, way_out
from streamsampler.formats.columns import (
    Column,
    ColumnRows,
    Source,
    Sourced,
    info_rows,
    leaf_column,
    leaf_values,
    new_folder,
    open_source,
    space_columns,
)

if TYPE_CHECKING:
    import pandas
    from tensordict import TensorDict

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


_GROUP_BYTES = 8 * 2**20
"""The approximate size of a row group, which is converted and written at once."""


def write(source: Source, out: Path, shown: Display) -> None:
    """Write the two tables of a source into a new folder, shard by shard; after an error the folder is removed."""
    arrow = needed("pyarrow", "the format Parquet", "parquet")
    parquet = needed("pyarrow.parquet", "the format Parquet", "parquet")
    writers: dict[str, Any] = {}
    with new_folder(out) as folder, contextlib.ExitStack() as files:
        for shard in tables(source, shown):
            for name, columns in zip(("timesteps", "trajectories"), shard, strict=True):
                if name not in writers:
                    writer = parquet.ParquetWriter(folder / f"{name}.parquet", _schema(arrow, source, columns))
                    writers[name] = files.enter_context(writer)
                _write_rows(arrow, writers[name], list(columns.values()))


def _schema(arrow: Any, source: Source, columns: dict[str, ColumnRows]) -> Any:
    spaces = {name: encode_space(getattr(source, name), name) for name in ("observation_space", "action_space")}
    return arrow.schema(
        [_field(arrow, name, rows.column) for name, rows in columns.items()],
        metadata={"streamsampler": json.dumps({**source.facts, **spaces})},
    )


def _field(arrow: Any, name: str, column: Column) -> Any:
    if column.kind != "numbers":
        return arrow.field(name, arrow.string(), metadata={"encoding": "json"} if column.kind == "json" else None)
    number = arrow.from_numpy_dtype(column.dtype)
    if not column.shape:
        return arrow.field(name, number)
    shape = {"shape": json.dumps(list(column.shape))}
    return arrow.field(name, arrow.list_(number, math.prod(column.shape)), metadata=shape)


def _write_rows(arrow: Any, writer: Any, columns: list[ColumnRows]) -> None:
    n_rows = len(columns[0].rows)
    n_group = max(1, _GROUP_BYTES // max(1, sum(column.rows[:1].nbytes for column in columns)))
    for start in range(0, n_rows, n_group):
        part = slice(start, start + n_group)
        arrays = [_array(arrow, field.type, column, part) for field, column in zip(writer.schema, columns, strict=True)]
        writer.write_table(arrow.Table.from_arrays(arrays, schema=writer.schema), row_group_size=n_group)


def _array(arrow: Any, kind: Any, columns: ColumnRows, part: slice) -> Any:
    _, column, rows, present = columns
    missing = None if present is None else ~present[part]
    if not column.shape:
        return arrow.array(rows[part], type=kind, mask=missing)
    flat = arrow.array(np.ascontiguousarray(rows[part]).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, type=kind, mask=None if missing is None else arrow.array(missing))


_MASKED = {"b": "BooleanArray", "i": "IntegerArray", "u": "IntegerArray", "f": "FloatingArray"}


class Frames(NamedTuple):
    """Data frames; see `streamsampler.formats.tables` for their columns.

    Attributes:
        timesteps: A row for each timestep.
        trajectories: A row for each trajectory.
    """

    timesteps: pandas.DataFrame
    trajectories: pandas.DataFrame


@suggesting()
def to_pandas(
    source: Sourced, *, fields: Sequence[str] | None = None, without: Sequence[str] = (), policy: str | None = None
) -> Frames:
    """Return trajectories as two data frames; both must fit into memory.

    Columns of numbers keep their dtype. Infos with missing values become pandas' masked columns (`Int64`, `Float64`,
    `boolean`), so integers stay integers. A cell with several numbers is an array of the row's shape.

    Args:
        source: As in `streamsampler.formats.export`.
        fields: As in `export`.
        without: As in `export`.
        policy: As in `export`.

    Returns:
        `(timesteps, trajectories)`.

    Raises:
        ImportError: pandas is not installed.
        DataError: The source has no trajectories.
        StorageError: The file or the folder is damaged, or an info cannot be written.
    """
    pd = needed("pandas", "to_pandas", "pandas")
    frames: tuple[list[Any], list[Any]] = [], []
    for shard in tables(open_source(source, Leaves(fields, without), policy)):
        for columns, parts in zip(shard, frames, strict=True):
            parts.append(pd.DataFrame({name: _series(pd, rows) for name, rows in columns.items()}))
    return Frames(*(pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0] for parts in frames))


def _series(pd: Any, columns: ColumnRows) -> Any:
    _, column, rows, present = columns
    if column.kind == "numbers" and not column.shape:
        if column.always:
            return pd.Series(rows)
        missing = np.zeros(len(rows), np.bool_) if present is None else ~present
        if column.dtype == np.float16:  # pandas has no masked column of this dtype
            rows = rows.astype(np.float32)
        return pd.Series(getattr(pd.arrays, _MASKED[column.dtype.kind])(rows.copy(), missing))
    cells = np.empty(len(rows), object)
    cells[:] = list(rows) if column.kind == "numbers" else rows
    if present is not None:
        cells[~present] = None
    return pd.Series(cells, dtype=object)


_log = logging.getLogger("streamsampler")
_WHERE = {"env_infos": ("next", "env_infos"), "agent_infos": ("agent_infos",)}


@suggesting()
def to_tensordict(
    source: Sourced, *, fields: Sequence[str] | None = None, without: Sequence[str] = (), policy: str | None = None
) -> TensorDict:
    """Return trajectories as a TensorDict of T timesteps, in memory; needs `pip install tensordict`.

    Where possible the tensors share the memory of a batch: writing into them changes the batch.

    Timesteps are the batch dimension, T, and the keys those of TorchRL's collectors:

    | key | |
    |---|---|
    | `observation`, `action` | (T, …), nested as the space nests; positions of Tuple spaces are keys `"0"`, `"1"` |
    | `("next", "observation")` | the observation after the action; at a trajectory's end the true final observation |
    | `("next", "reward")`, `("next", "terminated")`, `("next", "truncated")`, `("next", "done")` | (T, 1) |
    | `terminated`, `truncated`, `done` | (T, 1), all false: no action was chosen after an end |
    | `("collector", "traj_ids")` | (T,) the number of the trajectory, from 0 |
    | `policy_version` | (T,) the agent version |
    | `("next", "env_infos", KEY)`, `("agent_infos", KEY)` | (T, …); `_KEY` is the mask of an info with missing values |

    Dtypes are kept: rewards are float64. A TensorDict holds numbers: other infos are omitted, with a warning.

    Args:
        source: As in `streamsampler.formats.export`.
        fields: As in `export`.
        without: As in `export`.
        policy: As in `export`.

    Raises:
        ImportError: tensordict is not installed.
        DataError: The source has no trajectories.
        StorageError: The file or the folder is damaged, or a space has values that are no numbers.
    """
    parts = list(_parts(open_source(source, Leaves(fields, without), policy)))
    return parts[0] if len(parts) == 1 else import_module("torch").cat(parts)


def _parts(source: Source) -> Iterator[Any]:
    torch, tensordict = (needed(name, "the format TensorDict", "tensordict") for name in ("torch", "tensordict"))
    for path, space in source.leaf_spaces():
        if leaf_column(space).kind != "numbers":
            raise StorageError(
                f"a TensorDict holds numbers, but {'.'.join(path)} is a {type(space).__name__} space{way_out(path)}"
            )
    infos, _ = source.survey()
    numbers = {name: _tensor_numbers(infos[name], name) for name in _WHERE}
    for first, batch in source.shards():
        made = tensordict.TensorDict({}, batch_size=[batch.n_timesteps])
        for path, rows in _rows(batch, first, numbers).items():
            made[path] = torch.from_numpy(np.require(rows, rows.dtype.newbyteorder("="), ["C", "W"]))
        yield made


def _rows(batch: TrajectoryBatch[Any, Any], first: int, infos: Mapping[str, Any]) -> dict[KeyPath, Any]:
    """Return the rows of a shard by key; `first` is the number of trajectories before it."""
    found: dict[KeyPath, Any] = {}
    spaces: list[tuple[KeyPath, Any, Any]] = [
        (("observation",), batch.observation_space, batch.observations),
        (("action",), batch.action_space, batch.actions),
        (("next", "observation"), batch.observation_space, batch.next_observations),
    ]
    for root, space, tree in spaces:
        found |= {key: rows for key, _, rows in space_columns(space, tree, root)}
    found["next", "reward"] = batch.rewards[:, None]
    last = batch.starts + batch.lengths - 1
    for name in ("terminated", "truncated"):
        found[name,] = np.zeros((batch.n_timesteps, 1), np.bool_)
        found["next", name] = np.zeros((batch.n_timesteps, 1), np.bool_)
        found["next", name][last, 0] = getattr(batch, name)
    found["done",] = np.zeros((batch.n_timesteps, 1), np.bool_)
    found["next", "done"] = found["next", "terminated"] | found["next", "truncated"]
    found["collector", "traj_ids"] = np.repeat(np.arange(first, first + len(batch)), batch.lengths)
    found["policy_version",] = np.repeat(batch.agent_versions, batch.lengths)
    for name, root in _WHERE.items():
        for path, column, rows, present in info_rows(getattr(batch, name), batch.n_timesteps, infos[name], name, root):
            found[path] = rows
            if not column.always:
                found[*path[:-1], f"_{path[-1]}"] = np.ones(len(rows), np.bool_) if present is None else present
    return found


def _tensor_numbers(columns: dict[KeyPath, Column], name: str) -> dict[KeyPath, Column]:
    kept = {path: column for path, column in columns.items() if column.kind == "numbers"}
    if left_out := [f"{name}[{'/'.join(path)!r}]" for path in columns.keys() - kept.keys()]:
        _log.warning("a TensorDict holds only numbers: %s %s omitted", ", ".join(sorted(left_out)),
                     "is" if len(left_out) == 1 else "are")  # fmt: skip
    return kept
