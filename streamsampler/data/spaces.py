"""Check which values belong to a Gymnasium space, and say how they are stored.

Box, Discrete, MultiDiscrete and MultiBinary are stored as arrays of the space's dtype, Dict and Tuple as dicts and
tuples of what they hold, and every other space (Text, Sequence, Graph, ...) as a 1-d array of objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.data.trees import Array, Tree
from streamsampler.errors import DataError

__all__ = ["AnySpace", "check_actions", "misfit", "row_spec", "rows_inside", "short", "space_leaves", "validate"]

AnySpace: TypeAlias = Space[Any]
AnyTuple: TypeAlias = "gym_spaces.Tuple[Any]"

_ARRAY_SPACES = (gym_spaces.Box, gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary)


def row_spec(space: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of one stored value of a leaf space."""
    if isinstance(space, _ARRAY_SPACES):
        # By its name: one that was unpickled is another object than NumPy's own, which loops may compare with.
        return tuple(space.shape or ()), np.dtype(np.dtype(space.dtype).str)
    return (), np.dtype(object)


def space_leaves(
    space: AnySpace, tree: Any, path: str, error: type[DataError] = DataError
) -> Iterator[tuple[str, AnySpace, Array]]:
    """Yield each leaf of a structure with its path and its space.

    Raises:
        DataError: The structure nests otherwise than the space; or the error given.
    """
    if isinstance(space, gym_spaces.Dict):
        if not isinstance(tree, dict) or tree.keys() != space.spaces.keys():
            raise misfit(tree, space, path, error)
        for key, child in space.spaces.items():
            yield from space_leaves(child, tree[key], f"{path}[{key!r}]", error)
    elif isinstance(space, gym_spaces.Tuple):
        if not isinstance(tree, tuple) or len(tree) != len(space.spaces):
            raise misfit(tree, space, path, error)
        for position, child in enumerate(space.spaces):
            yield from space_leaves(child, tree[position], f"{path}[{position}]", error)
    elif isinstance(tree, np.ndarray):
        yield path, space, tree
    else:
        raise error(f"{path} should be an array for {space}, and is {short(tree)}")


def validate(space: AnySpace, tree: Any, length: int, path: str) -> None:
    """Check that a structure holds `length` values of a space; looks at shapes and dtypes only.

    Raises:
        DataError: It does not; names the leaf and says both shapes or both dtypes.
    """
    for name, leaf, array in space_leaves(space, tree, path):
        shape, dtype = row_spec(leaf)
        if array.shape != (length, *shape):
            raise DataError(f"{name} has the shape {array.shape}, and should have {(length, *shape)}")
        if array.dtype != dtype:
            raise DataError(f"{name} has the dtype {array.dtype}, and its space has {dtype}")


def check_actions(space: AnySpace, actions: Tree) -> tuple[int, str] | None:
    """Look for rows outside their space.

    Args:
        space: The action space.
        actions: Its values, leaves of shape (T, ...), of the dtypes of the space.

    Returns:
        None, or the first such row and a message that names the leaf, the value and the space. NaN is outside every
        Box.
    """
    first: tuple[int, str] | None = None
    for name, leaf, array in space_leaves(space, actions, "action"):
        outside = np.flatnonzero(~rows_inside(leaf, array))
        row = int(outside[0]) if len(outside) else None
        if row is not None and (first is None or row < first[0]):
            first = row, f"{name} is outside its space: {short(array[row])} is not in {leaf}"
    return first


def rows_inside(space: AnySpace, rows: Array) -> NDArray[np.bool_]:
    """Return which rows of a leaf are in its space; NaN is in no Box.

    Args:
        space: The leaf's space.
        rows: (n, ...) of the leaf's shape and dtype.

    Returns:
        (n,) bool.
    """
    if not rows.size:
        return np.ones(len(rows), dtype=np.bool_)
    inside: Array
    match space:
        case gym_spaces.Box():
            inside = (rows >= space.low) & (rows <= space.high)
        case gym_spaces.Discrete():
            inside = (rows >= space.start) & (rows < space.start + space.n)
        case gym_spaces.MultiDiscrete():
            inside = (rows >= space.start) & (rows - space.start < space.nvec)
        case gym_spaces.MultiBinary():
            inside = (rows == 0) | (rows == 1)
        case _:
            inside = np.fromiter((space.contains(row) for row in rows), dtype=np.bool_, count=len(rows))
    return np.asarray(inside.reshape(len(rows), -1).all(axis=1))


def misfit(value: Any, space: gym_spaces.Dict | AnyTuple, path: str, error: type[DataError]) -> DataError:
    """Return the error for a nested value that has other parts than its space."""
    if isinstance(value, Mapping):
        has = f"the keys {list(value)}"
    elif isinstance(value, (tuple, list)):
        has = f"{len(value)} parts"
    else:
        has = f"no parts: it is {short(value)}"
    needs = f"the keys {list(space.spaces)}" if isinstance(space, gym_spaces.Dict) else f"{len(space.spaces)} parts"
    return error(f"{path} has {has}, and its space has {needs}")


def short(value: Any, width: int = 80) -> str:
    """Return a value's type and its beginning, in one line."""
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text if len(text) <= width else text[: width - 3] + '...'}"
