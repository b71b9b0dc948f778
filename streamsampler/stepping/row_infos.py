"""Join infos of single rows to arrays with masks, in the form of Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamsampler.data.info_columns import merge
from streamsampler.data.infos import InfoRecorder, Infos, infos_of


def joined_infos(info_by_row: Mapping[int, dict[str, Any]], n_rows: int) -> Infos:
    """Return infos of single rows as arrays; see `Steps.infos`."""
    if not info_by_row:
        return {}
    recorder = InfoRecorder("infos")
    for row in sorted(info_by_row):
        recorder.record(row, info_by_row[row])
    columns = infos_of(merge([(recorder.finish(n_rows), 0, n_rows)], "infos"))
    return _with_masks(columns, info_by_row, n_rows)


def _with_masks(columns: Infos, by_row: Mapping[int, Mapping[str, Any]], n_rows: int) -> Infos:
    """Add a mask for each key, even of keys in all rows and of nested dicts."""
    infos: Infos = {}
    for key in dict.fromkeys(key for info in by_row.values() for key in info):
        having = {row: info[key] for row, info in by_row.items() if key in info}
        values = columns.get(key, {})  # empty dicts leave no columns
        infos[key] = values if isinstance(values, np.ndarray) else _with_masks(values, having, n_rows)
        mask = infos[f"_{key}"] = np.zeros(n_rows, np.bool_)
        mask[list(having)] = True
    return infos
