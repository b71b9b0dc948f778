"""Trees: an array for each leaf of a space, in dicts and tuples nested like the space.

A tree's arrays share their first axis: row `i` of every leaf together is the `i`-th value.
"""

from __future__ import annotations

import copy
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError
from streamsampler.data.digests import digest

Array: TypeAlias = NDArray[Any]
Tree: TypeAlias = "Array | dict[str, Tree] | tuple[Tree, ...]"
TreeT = TypeVar("TreeT")
"""A tree with the same structure in argument and result; type checkers do not accept a dict of arrays as `Tree`."""


def map_tree(function: Callable[[Array], Array], tree: TreeT) -> TreeT:
    mapped: Any = function(tree) if tree.__class__ is np.ndarray else _map_tree(function, tree)  # type: ignore[arg-type]
    return cast(TreeT, mapped)


def _map_tree(function: Callable[[Array], Array], tree: Any) -> Tree:
    if isinstance(tree, dict):
        return {key: _map_tree(function, child) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_map_tree(function, child) for child in tree)
    return function(tree)


def map_trees(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to the corresponding leaves of equally nested trees."""
    if isinstance(tree, dict):
        return {key: map_trees(function, child, *(it[key] for it in others)) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_trees(function, child, *(it[i] for it in others)) for i, child in enumerate(tree))
    return function(tree, *others)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Array]]:
    """Yield each leaf with its path in Python's syntax: `observation['camera'][0]`."""
    if isinstance(tree, dict):
        for key, child in tree.items():
            yield from leaves(child, f"{path}[{key!r}]")
    elif isinstance(tree, tuple):
        for position, child in enumerate(tree):
            yield from leaves(child, f"{path}[{position}]")
    else:
        yield path, tree


def arrays(tree: Any) -> list[Array]:
    return [tree] if tree.__class__ is np.ndarray else [leaf for _, leaf in leaves(tree)]


def form(tree: Any) -> list[Any]:
    """Return the leaves' paths, and shapes and dtypes of rows: trees of equal form can be joined."""
    if tree.__class__ is np.ndarray:
        return [("", tree.shape[1:], tree.dtype)]
    return [(path, leaf.shape[1:], leaf.dtype) for path, leaf in leaves(tree)]


def bytes_of(tree: Tree) -> int:
    return tree.nbytes if isinstance(tree, np.ndarray) else sum([leaf.nbytes for leaf in arrays(tree)])


def n_rows_of(tree: Any) -> int:
    """Return the number of rows; raise a `UsageError` for a tree without leaves."""
    for _, leaf in leaves(tree):
        return len(leaf)
    raise UsageError("cannot infer the number of actions from these observations: their space has no arrays")


def take(tree: TreeT, index: slice | Array) -> TreeT:
    """Select rows of every leaf: views for a slice, copies for an array."""
    if tree.__class__ is np.ndarray:  # the usual case, of a single leaf
        return cast(TreeT, tree[index])  # type: ignore[index]
    return map_tree(operator.itemgetter(index), tree)


def concatenate(trees: Sequence[Tree]) -> Tree:
    """Join equally nested trees along the rows, in new memory."""
    return cast(Tree, map_trees(lambda *leaves: np.concatenate(leaves), *trees))


def pad(tree: TreeT, lengths: NDArray[np.int64], length: int, value: Any = 0) -> TreeT:
    """Return a row for each run of rows, padded to `length`: leaves of (N, L, ...), new arrays.

    `value` is the padding, for leaves of objects None.
    """
    n_runs = len(lengths)
    ends = np.cumsum(lengths)
    rows = np.arange(int(ends[-1]) if n_runs else 0) + np.repeat(np.arange(n_runs) * length - (ends - lengths), lengths)

    def pad_leaf(array: Array) -> Array:
        shape = n_runs * length, *array.shape[1:]
        if array.dtype.kind in "biufc" and value.__class__ in (bool, int) and not value:
            padded = np.zeros(shape, array.dtype)  # the system need not write these pages
        else:
            padded = np.full(shape, None if array.dtype == object else value, array.dtype)
        to, of = padded, array
        if array.ndim > 1 and array.size:
            # Each row as a single item: up to four times as fast.
            row = np.dtype((np.void, array[0].nbytes))
            to, of = (it.reshape(len(it), -1).view(row)[:, 0] for it in (padded, np.ascontiguousarray(array)))
        to[rows] = of
        return padded.reshape(n_runs, length, *array.shape[1:])

    return map_tree(pad_leaf, tree)


def object_array(values: Sequence[Any]) -> Array:
    array = np.empty(len(values), dtype=object)
    for position, value in enumerate(values):
        array[position] = value
    return array


def equal(one: Any, other: Any) -> bool:
    """Return whether two arrays are equal bit for bit in dtype, shape and bytes; a NaN equals the same NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.hasobject:
        return all(map(same, one.ravel().tolist(), other.ravel().tolist()))
    return np.array_equal(_as_bytes(one), _as_bytes(other))


def same(one: Any, other: Any) -> bool:
    """Return whether two values have the same type and, bit for bit, the same numbers and arrays.

    Instances of a class without `==` are compared by their attributes: an unpickled copy is the same value.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    for kind, comparison in _COMPARISONS:
        if isinstance(one, kind):
            return comparison(one, other)
    if cast(Any, type(one)).__eq__ is object.__eq__:
        return same(vars(one), vars(other)) if hasattr(one, "__dict__") else digest(one) == digest(other)
    return bool(np.all(one == other))


def snapshot(value: Any) -> Any:
    """Return a copy, because the value's owner may change it."""
    kind = value.__class__
    if kind in _IMMUTABLE or isinstance(value, np.generic):
        return value
    if kind is np.ndarray and value.dtype != object:
        return value.copy()
    if kind is dict and not value:
        return {}  # `deepcopy` takes 3 µs
    try:
        return copy.deepcopy(value)
    except Exception:
        # A lock, a generator, a tensor with a history: stays as it is, and raises when it is sent.
        return value


def as_constant(value: Any) -> Any:
    """Make the arrays in a value read-only, also in dicts, lists and tuples; return the value."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            as_constant(part)
    return value


def owned(tree: Tree) -> Tree:
    """Copy the objects in object leaves: arrays among them may lie in reused memory."""

    def own(array: Array) -> Array:
        return object_array([snapshot(value) for value in array]) if array.dtype == object else array

    return map_tree(own, tree)


def _as_bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _same_dicts(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())


def _same_sequences(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


def _same_floats(one: float, other: float) -> bool:
    return struct.pack("<d", one) == struct.pack("<d", other)


_IMMUTABLE = frozenset((bool, int, float, complex, str, bytes, type(None)))

# In order: `np.float64` is also a `float`, longer NumPy floats are not.
_COMPARISONS: tuple[tuple[type | tuple[type, ...], Callable[[Any, Any], bool]], ...] = (
    ((str, bytes, int), operator.eq),
    (np.ndarray, equal),
    (float, _same_floats),
    (complex, lambda one, other: _same_floats(one.real, other.real) and _same_floats(one.imag, other.imag)),
    (np.generic, lambda one, other: equal(np.asarray(one), np.asarray(other))),
    (dict, _same_dicts),
    ((list, tuple), _same_sequences),
)
