"""The tables of timesteps and trajectories as data frames of pandas, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamsampler.core.extras import needed
from streamsampler.core.keywords import suggesting
from streamsampler.data.leaf_selection import LeafSelection
from streamsampler.formats.columns import ColumnRows
from streamsampler.formats.sources import Sourced, open_source

if TYPE_CHECKING:
    import pandas
from streamsampler.formats.tables import tables

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
    for shard in tables(open_source(source, LeafSelection(fields, without), policy)):
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
