"""Read batches from files of one batch each."""

from __future__ import annotations

import os
from typing import Any

from streamsampler.data import npz
from streamsampler.data.batch import AnyActionsT, AnyObservationsT, TrajectoryBatch, batch_of_fields


def load(path: str | os.PathLike[str]) -> TrajectoryBatch[AnyObservationsT, AnyActionsT]:
    """Read a batch that `save` wrote.

    Args:
        path: The file; `.npz` is appended where there is none of that name.

    Returns:
        A batch equal to the one written; its `stats` are None, and its `worker_numbers` -1.

    Raises:
        StorageError: The file holds no batch, is damaged or cut short, is of a newer format, or holds pickles.
        FileNotFoundError: There is no such file.
    """
    return load_with_header(path)[0]


def load_with_header(path: str | os.PathLike[str]) -> tuple[TrajectoryBatch[Any, Any], dict[str, Any]]:
    """Read a batch that `save` wrote, and the header of its file; see `load`, and `streamsampler.data.npz.read`."""
    return npz.load_with_header(path, batch_of_fields)
