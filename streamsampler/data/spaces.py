"""Values of Gymnasium's spaces: how they are stored, and which belong to a space.

Box, Discrete, MultiDiscrete and MultiBinary are stored as arrays of the space's dtype, Dict and Tuple as dicts and
tuples of their children, and every other space (Text, Sequence, Graph, ...) as a 1-d array of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.core.errors import DataError
from streamsampler.data.casting import changed
from streamsampler.data.trees import Array, Tree, same

AnySpace: TypeAlias = Space[Any]
AnyTuple: TypeAlias = "gym_spaces.Tuple[Any]"

_ARRAY_SPACES = (gym_spaces.Box, gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary)


def row_spec(space: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of a stored value of a leaf space."""
    if isinstance(space, _ARRAY_SPACES):
        # Via the dtype's name: loops compare dtypes by identity, and an unpickled dtype is not NumPy's own object.
        return tuple(space.shape or ()), np.dtype(np.dtype(space.dtype).str)
    return (), np.dtype(object)


def same_space(one: Any, other: Any) -> bool:
    """Return whether two spaces are equal.

    Custom spaces without `==` are compared by their attributes, without the random generator: an unpickled copy is the
    same space.
    """
    if one is other or one == other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, gym_spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(
            same_space(child, other.spaces[key]) for key, child in one.spaces.items()
        )
    if isinstance(one, gym_spaces.Tuple | gym_spaces.OneOf):
        return len(one.spaces) == len(other.spaces) and all(map(same_space, one.spaces, other.spaces))
    if isinstance(one, gym_spaces.Sequence):
        return one.stack == other.stack and same_space(one.feature_space, other.feature_space)
    if cast(Any, type(one)).__eq__ is not object.__eq__:
        return False
    mine, theirs = ({key: it for key, it in vars(space).items() if key != "_np_random"} for space in (one, other))
    return mine.keys() == theirs.keys() and all(_same_attribute(it, theirs[key]) for key, it in mine.items())


def _same_attribute(one: Any, other: Any) -> bool:
    return same_space(one, other) if isinstance(one, Space) else same(one, other)


def same_spaces(one: Collection[AnySpace], other: Collection[AnySpace]) -> bool:
    return len(one) == len(other) and all(map(same_space, one, other))


def space_leaves(
    space: AnySpace, tree: Any, path: str, error: type[DataError] = DataError
) -> Iterator[tuple[str, AnySpace, Array]]:
    """Yield each leaf of a tree with its path and its space; raise `error` if the tree nests differently."""
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
        raise error(f"{path} should be an array for {space}, not {short(tree)}")


def validate(space: AnySpace, tree: Any, length: int, path: str) -> None:
    """Check by shapes and dtypes that a tree holds `length` values of a space."""
    for name, leaf, array in space_leaves(space, tree, path):
        shape, dtype = row_spec(leaf)
        if array.shape != (length, *shape):
            raise DataError(f"{name} has the shape {array.shape}, but should have {(length, *shape)}")
        if array.dtype != dtype:
            raise DataError(f"{name} has the dtype {array.dtype}, but its space has {dtype}")


def check_actions(space: AnySpace, actions: Tree) -> tuple[int, str] | None:
    """Return the row of the first action outside its space, and a message, or None. NaN is outside every Box."""
    first: tuple[int, str] | None = None
    for name, leaf, array in space_leaves(space, actions, "action"):
        outside = np.flatnonzero(~rows_inside(leaf, array))
        row = int(outside[0]) if len(outside) else None
        if row is not None and (first is None or row < first[0]):
            first = row, f"{name} is outside its space: {short(array[row])} is not in {leaf}"
    return first


def rows_inside(space: AnySpace, rows: Array) -> NDArray[np.bool_]:
    """Return a mask of the rows inside a leaf's space; NaN is in no Box."""
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
    if isinstance(value, Mapping):
        has = f"the keys {list(value)}"
    elif isinstance(value, (tuple, list)):
        has = f"{len(value)} parts"
    else:
        has = f"no parts: it is {short(value)}"
    needs = f"the keys {list(space.spaces)}" if isinstance(space, gym_spaces.Dict) else f"{len(space.spaces)} parts"
    return error(f"{path} has {has}, but its space has {needs}")


def short(value: Any, width: int = 80) -> str:
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text if len(text) <= width else text[: width - 3] + '...'}"


FLAGS = frozenset((bool, np.bool_))
"""The usual classes of `terminated` and `truncated`; `flag_of` accepts a few more."""

_EXACT = 2**53
_FLOAT64 = np.dtype(np.float64)
_FLOATS = frozenset((float, np.float64, np.float32, np.float16))
"""float64 represents all values of these classes exactly."""


def flag_of(name: str, value: Any) -> bool:
    """Return a flag `name` as a bool: a boolean, or 0 or 1, from Python, NumPy or torch."""
    if value.__class__ in FLAGS:
        return bool(value)
    try:
        flag = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        flag = np.empty(0)
    if flag.shape != () or flag.dtype.kind not in "biuf" or flag.item() not in (0, 1):
        raise DataError(f"{name} should be True or False, not {short(value)}")
    return bool(flag)


def number_of(reward: Any) -> float:
    """Return a reward as a float; raise a `DataError` if it is no number, has axes, or would change."""
    kind = reward.__class__
    if kind in _FLOATS or (kind is int and -_EXACT <= reward <= _EXACT):
        return float(reward)
    try:
        number = np.asarray(reward)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise DataError(f"the reward should be a number, not {short(reward)}") from reason
    if number.shape != ():
        raise DataError(
            f"the reward has the shape {number.shape}, but should have () (a vector of rewards, for several objectives "
            f"or agents, needs a wrapper that reduces it to a number): {short(reward)}"
        )
    if number.dtype.kind not in "biuf":
        raise DataError(f"the reward should be a number, not {short(reward)}")
    try:
        check_rewards(number[np.newaxis])
    except DataError as error:
        error.row = None
        raise
    with np.errstate(over="ignore"):
        return float(number)


def check_rewards(rewards: np.ndarray[Any, Any]) -> None:
    """Raise a `DataError` if float64 changes a reward of (n,); `row` is its position."""
    lost = changed(rewards, _FLOAT64)
    if lost.any():
        position = int(lost.argmax())
        with np.errstate(over="ignore"):
            raise DataError(
                f"the reward is {rewards[position].item()!r} as {rewards.dtype}, which would become "
                f"{float(rewards[position])!r} as float64",
                row=position,
            )


def reward_recorder(rewards: list[float]) -> Callable[[Any], None]:
    """Return a function for appending rewards to a list, as floats."""
    append, float64 = rewards.append, np.float64

    def record_reward(reward: Any) -> None:
        kind = reward.__class__
        append(float(reward) if kind is float or kind is float64 else number_of(reward))

    return record_reward
