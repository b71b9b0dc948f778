"""Walk through the parts of nested spaces, and of their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.data.spaces import AnySpace, misfit
from streamsampler.data.trees import Array, Tree
from streamsampler.errors import DataError

__all__ = ["children_of", "leaves_of", "nested", "values_of"]


def children_of(space: AnySpace, path: str) -> list[tuple[str, AnySpace, Any]] | None:
    """Return path, space and key of each part of a Dict or a Tuple; None for a leaf."""
    if isinstance(space, gym_spaces.Dict):
        return [(f"{path}[{key!r}]", child, key) for key, child in space.spaces.items()]
    if isinstance(space, gym_spaces.Tuple):
        return [(f"{path}[{i}]", child, i) for i, child in enumerate(space.spaces)]
    return None


def leaves_of(space: AnySpace, path: str) -> Iterator[tuple[str, AnySpace]]:
    """Yield path and space of each leaf."""
    children = children_of(space, path)
    if children is None:
        yield path, space
    else:
        for name, child, _ in children:
            yield from leaves_of(child, name)


def nested(space: AnySpace, arrays: Iterator[Array]) -> Tree:
    """Nest arrays, one for each leaf in order, as a space does."""
    if isinstance(space, gym_spaces.Dict):
        return {key: nested(child, arrays) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple([nested(child, arrays) for child in space.spaces])
    return next(arrays)


def values_of(space: AnySpace, value: Any, path: str, error: type[DataError]) -> Iterator[Any]:
    """Yield what each leaf has of a single value."""
    children = children_of(space, path)
    if children is None:
        yield value
        return
    if isinstance(space, gym_spaces.Dict):
        fits = isinstance(value, Mapping) and value.keys() == space.spaces.keys()
    else:
        # An array stands for the tuple of its rows: environments of several discrete parts hand out such.
        is_sequence = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)
        fits = is_sequence and len(value) == len(children)
    if not fits:
        raise misfit(value, cast(Any, space), path, error)
    for name, child, key in children:
        yield from values_of(child, value[key], name, error)
