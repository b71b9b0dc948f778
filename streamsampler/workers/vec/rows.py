"""Handle batches of values of a space: one row for each environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import snapshot


def row_of(tree: Any, row: int) -> Any:
    """Return one value of a batch."""
    if isinstance(tree, dict):
        return {key: row_of(child, row) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row_of(child, row) for child in tree)
    return tree[row]


def padded(space: AnySpace, batch: Any, sources: NDArray[np.int64]) -> Any:
    """Return a batch of n values of a space in which each row has the value of another one, or of itself.

    What is no such batch comes back as it is.
    """
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
    """Return the single values of a batch that was recorded, which environments may keep or change."""
    if batch.__class__ is np.ndarray:
        # Integers stay NumPy's, as the space itself draws them: Gymnasium checks those faster than Python's.
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


# ----------------------------------------------------------------------


AgentT = TypeVar("AgentT")


def noting(agent: AgentT, note: Callable[..., None]) -> AgentT:
    """Return a `BatchedAgent` that does what `agent` does, and calls `note(timestep, info[, row])` with its infos."""
    return cast(AgentT, _Noting(agent, note))


class _Noting:
    def __init__(self, agent: Any, note: Callable[..., None]) -> None:
        self._agent, self._note, self._timestep = agent, note, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def choose(
        self, observations: Any, live: Sequence[int], worker: Any, record_info: Callable[[int, Any], None],
        masks: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
        timestep, self._timestep = self._timestep, self._timestep + 1

        def record(row: int, info: Any) -> None:
            self._note(timestep, info, row)
            record_info(row, info)

        actions, infos = self._agent.choose(observations, live, worker, record, masks)
        self._note(timestep, infos)
        return actions, infos
