"""What a vector environment returns, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.spaces import short
from streamsampler.errors import DataError

__all__ = ["check_infos", "column_of_slots"]


def check_infos(path: str, infos: Any) -> None:
    """Check that the infos of a vector environment are a dict.

    Raises:
        DataError: They are something else.
    """
    if not isinstance(infos, Mapping):
        raise DataError(f"{path}: the infos of a vector environment must be a dict, got {short(infos)}")


def column_of_slots(values: Any, n_slots: int, name: str, kinds: str) -> NDArray[Any]:
    """Return rewards or ends as an array with one entry for each slot.

    Raises:
        DataError: It has another shape or kind; says both.
    """
    column = np.asarray(values)
    if column.shape != (n_slots,) or column.dtype.kind not in kinds:
        raise DataError(
            f"{name} should be an array of shape {(n_slots,)}, and is {column.dtype} of shape {column.shape}"
        )
    return column
