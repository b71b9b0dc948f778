"""Convert between batches of a space's values and single values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.core.errors import ActionError, DataError, UsageError
from streamsampler.data import trees
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import snapshot


def row_of(tree: Any, row: int) -> Any:
    """Return a single value of a batch."""
    if isinstance(tree, dict):
        return {key: row_of(child, row) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row_of(child, row) for child in tree)
    return tree[row]


def padded(space: AnySpace, batch: Any, sources: NDArray[np.int64]) -> Any:
    """Return a batch in which each row has the value of its source row; other objects are returned as they are."""
    if batch.__class__ is np.ndarray:
        return batch[sources] if batch.shape[:1] == (len(sources),) else batch
    if isinstance(space, gym_spaces.Dict) and isinstance(batch, Mapping) and batch.keys() == space.spaces.keys():
        return {key: padded(child, batch[key], sources) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple) and isinstance(batch, tuple):
        if len(batch) != len(space.spaces):
            return batch
        return tuple(padded(child, part, sources) for child, part in zip(space.spaces, batch, strict=True))
    if isinstance(batch, list | tuple) and len(batch) == len(sources):
        return [batch[row] for row in sources]
    return batch


def singles_of(space: AnySpace, batch: Any) -> list[Any]:
    """Return the single values of a recorded batch, which environments may keep or change."""
    if batch.__class__ is np.ndarray:
        # Integers stay NumPy's, as in `space.sample()`: Gymnasium checks them faster than Python's.
        if batch.ndim == 1 and not batch.dtype.hasobject:
            return list(batch)
        return list(map(snapshot, batch)) if batch.dtype.hasobject else list(batch.copy())
    if isinstance(space, gym_spaces.Dict) and isinstance(batch, Mapping):
        parts = zip(*(singles_of(child, batch[key]) for key, child in space.spaces.items()), strict=True)
        return [dict(zip(space.spaces, part, strict=True)) for part in parts]
    if isinstance(space, gym_spaces.Tuple) and isinstance(batch, tuple):
        parts = zip(*(singles_of(child, part) for child, part in zip(space.spaces, batch, strict=True)), strict=True)
        return list(parts)
    return list(map(snapshot, batch)) if isinstance(batch, list | tuple) else list(np.array(batch))


def stacked(space: Space[Any], observations: Sequence[Any]) -> Any:
    """Return observations as a batch: tree of (n, ...)."""
    if isinstance(space, gym_spaces.Dict):
        return {key: stacked(child, [each[key] for each in observations]) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        parts = zip(*observations, strict=True)
        return tuple(stacked(child, part) for child, part in zip(space.spaces, parts, strict=True))
    # In the recorders' form: texts, graphs and sequences are objects. An array of texts would have the longest one's
    # length.
    is_array = space.dtype is not None and not isinstance(space, gym_spaces.Text)
    return np.array(observations, dtype=space.dtype) if is_array else trees.object_array(observations)


def checked_results(space: Space[Any], chosen: Any, n: int) -> tuple[list[Any], dict[str, Any]]:
    """Return the single actions and the infos of a `get_actions` result for n observations, and check their numbers."""
    actions, infos = checked_result(chosen)
    singles = _actions_of_rows(space, actions, n)
    if infos:
        _check_rows(infos, n)
    return singles, infos


def checked_result(chosen: Any) -> tuple[Any, dict[str, Any]]:
    """Return the result of `get_actions` if it is a tuple with a dict: an array of two rows would unpack, too."""
    if not isinstance(chosen, tuple) or len(chosen) != 2 or not isinstance(chosen[1], dict):
        raise UsageError("get_actions must return a tuple (actions, agent_infos), with agent_infos a dict")
    return chosen


def _actions_of_rows(space: Space[Any], actions: Any, n: int) -> list[Any]:
    try:
        singles = singles_of(space, actions)
    except (IndexError, KeyError, TypeError, ValueError):
        singles = []
    if len(singles) != n:
        raise ActionError(f"get_actions must return an action for each of {n} observations, got {actions!r:.80}")
    return singles


def _check_rows(infos: Mapping[str, Any], n: int) -> None:
    for key, values in infos.items():
        if isinstance(values, Mapping):
            _check_rows(values, n)
        elif not isinstance(values, np.ndarray | list | tuple) or np.ndim(values) < 1 or len(values) != n:
            raise DataError(
                f"agent_infos[{key!r}] should have one row for each of {n} observations, got {values!r:.60}"
            )
