"""Check what a vector environment returns, and fill batches with one row for each slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.spaces import short
from streamsampler.data.trees import Tree
from streamsampler.errors import DataError

__all__ = ["check_infos", "column_of_slots", "for_env", "without_final"]

_FINAL = ("final_obs", "final_info")


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


def without_final(infos: Any) -> dict[str, Any]:
    """Return infos without the final observations and infos of AutoresetMode.SAME_STEP."""
    return {key: value for key, value in infos.items() if key.removeprefix("_") not in _FINAL}


def for_env(tree: Tree) -> Any:
    """Return a batch of stored actions as a vector environment takes it: in arrays of its own, objects in a tuple."""
    if isinstance(tree, dict):
        return {key: for_env(child) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(for_env(child) for child in tree)
    return tuple(tree.tolist()) if tree.dtype.hasobject else tree.copy()
