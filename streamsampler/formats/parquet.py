"""The tables of timesteps and trajectories as Parquet files, written shard by shard."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamsampler.core.extras import needed
from streamsampler.core.progress import Display
from streamsampler.data.space_codec import encode_space
from streamsampler.formats.columns import Column, ColumnRows
from streamsampler.formats.export_folder import new_folder
from streamsampler.formats.sources import Source

if TYPE_CHECKING:
    pass
from streamsampler.formats.tables import tables

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
