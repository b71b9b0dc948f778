"""Trajectories as Parquet files. Needs pyarrow: `pip install pyarrow`.

The export is a folder with `timesteps.parquet` and `trajectories.parquet`; `streamsampler.formats.tables` says which
columns they have. Several numbers are a fixed-size list; the field's metadata has their `shape`. Columns of JSON have
`encoding` there. The schema's metadata has, under `streamsampler`, seed, provenance, version and spaces as JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from streamsampler.extras import needed
from streamsampler.formats.columns import Column, Source, Values
from streamsampler.formats.staging import new_folder
from streamsampler.formats.tables import Tables
from streamsampler.samplers.progress import Display
from streamsampler.storage.codec import encode_space

_GROUP_BYTES = 32 * 2**20
"""About how much of a shard is converted and written at once: a row group."""


def write(source: Source, out: Path, shown: Display) -> None:
    """Write the two tables of a source into a new folder, shard by shard.

    Raises:
        ImportError: pyarrow is not there; says how to install it.
        StorageError: A shard is damaged, or a value cannot be written.
        OSError: The folder cannot be written; nothing is left of it.
    """
    arrow = needed("pyarrow", "the format Parquet", "parquet")
    parquet = needed("pyarrow.parquet", "the format Parquet", "parquet")
    tables = Tables(source)
    columns = {"timesteps": tables.timesteps, "trajectories": tables.trajectories}
    with new_folder(out) as folder, contextlib.ExitStack() as files:
        writers = {
            name: files.enter_context(
                parquet.ParquetWriter(folder / f"{name}.parquet", _schema(arrow, source, columns[name]))
            )
            for name in columns
        }
        for first, batch in source.shards(shown):
            _write(arrow, writers["timesteps"], tables.timesteps, tables.timestep_rows(batch, first))
            _write(arrow, writers["trajectories"], tables.trajectories, tables.trajectory_rows(batch, first))


def _schema(arrow: Any, source: Source, columns: dict[str, Column]) -> Any:
    spaces = {name: encode_space(getattr(source, name), name) for name in ("observation_space", "action_space")}
    return arrow.schema(
        [arrow.field(name, _type(arrow, column), metadata=_metadata(column)) for name, column in columns.items()],
        metadata={"streamsampler": json.dumps({**source.facts, **spaces})},
    )


def _type(arrow: Any, column: Column) -> Any:
    if column.kind != "numbers":
        return arrow.string()
    number = arrow.from_numpy_dtype(column.dtype)
    return arrow.list_(number, math.prod(column.shape)) if column.shape else number


def _metadata(column: Column) -> dict[str, str]:
    if column.kind == "json":
        return {"encoding": "json"}
    return {"shape": json.dumps(list(column.shape))} if column.shape else {}


def _write(arrow: Any, writer: Any, columns: dict[str, Column], rows: Iterable[tuple[str, Values]]) -> None:
    """Write the rows of a shard, a few megabytes at a time."""
    values = dict(rows)
    n_rows = len(next(iter(values.values()))[0])
    row_bytes = sum(array[:1].nbytes for array, _ in values.values())
    n_group = max(1, _GROUP_BYTES // max(1, row_bytes))
    for start in range(0, n_rows, n_group):
        part = slice(start, min(n_rows, start + n_group))
        arrays = [
            _array(arrow, columns[name], rows[part], None if mask is None else mask[part])
            for name, (rows, mask) in values.items()
        ]
        writer.write_table(arrow.Table.from_arrays(arrays, schema=writer.schema), row_group_size=n_group)


def _array(arrow: Any, column: Column, rows: Any, mask: Any) -> Any:
    missing = None if mask is None else ~mask
    if not (column.kind == "numbers" and column.shape):
        return arrow.array(rows, type=_type(arrow, column), mask=missing)
    flat = arrow.array(np.ascontiguousarray(rows).reshape(-1))
    absent = None if missing is None else arrow.array(missing)
    return arrow.FixedSizeListArray.from_arrays(flat, type=_type(arrow, column), mask=absent)
