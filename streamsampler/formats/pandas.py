"""Trajectories as data frames of pandas. Needs pandas: `pip install pandas`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamsampler.extras import needed
from streamsampler.formats.columns import Column, Values
from streamsampler.formats.source import Sourced, open_source
from streamsampler.formats.tables import Tables

if TYPE_CHECKING:
    import pandas

__all__ = ["Frames", "to_pandas"]

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
