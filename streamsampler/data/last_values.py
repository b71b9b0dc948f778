"""The agent's values of last observations, among the infos of trajectories."""

from __future__ import annotations

import numpy as np

from streamsampler.data.info_columns import InfoColumn, InfoColumns
from streamsampler.errors import DataError

__all__ = ["LAST_VALUE", "with_last_values"]

LAST_VALUE = "last_value"
"""The name, among the infos of trajectories, of the agent's values of last observations."""


def with_last_values(infos: InfoColumns, rows: list[int], values: list[float]) -> InfoColumns:
    """Return the infos of trajectories, and with them the agent's values of last observations, as "last_value".

    Args:
        infos: The infos.
        rows: Which of the trajectories have such a value, rising.
        values: The values.

    Raises:
        DataError: Infos have that name already; its `position` is the first of `rows`.
    """
    if (LAST_VALUE,) in infos.columns:
        raise DataError(
            f"episode_infos[{LAST_VALUE!r}] is where the agent's values of last observations are, for "
            "batch.last_values; but an info of the environment's reset, or a metric of a hook, has that name as well: "
            "rename it",
            position=rows[0],
        )
    steps = None if len(rows) == infos.length else np.array(rows, dtype=np.int64)
    column = InfoColumn(steps, np.array(values, dtype=np.float64))
    return InfoColumns(infos.length, {**infos.columns, (LAST_VALUE,): column})
