"""Observations as tensors, the inputs of torch modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError


class TensorInputs:
    """Copies observations into tensors whose memory is reused: half the cost of new tensors."""

    def __init__(self, dtype: np.dtype[Any] | None) -> None:
        self._dtype = dtype
        self._children: dict[Any, TensorInputs] = {}
        self._shape: tuple[int, ...] | None = None
        self._kind: np.dtype[Any] | None = None  # of the observations
        self._rows: Any = None
        self._row: Any = None
        self._tensor: Any = None
        self._row_tensor: Any = None

    def one(self, observation: Any) -> Any:
        if (
            observation.__class__ is not np.ndarray
            or observation.shape != self._shape
            or (observation.dtype is not self._kind and observation.dtype != self._kind)
        ):
            if isinstance(observation, Mapping):
                return {key: self._child(key).one(part) for key, part in observation.items()}
            if isinstance(observation, tuple):
                return tuple(self._child(key).one(part) for key, part in enumerate(observation))
            observation = _as_numbers(observation)
            self._fit(1, observation.shape, observation.dtype)
        self._row[...] = observation
        return self._row_tensor

    def batch(self, observations: Any) -> Any:
        if isinstance(observations, Mapping):
            return {key: self._child(key).batch(part) for key, part in observations.items()}
        if isinstance(observations, tuple):
            return tuple(self._child(key).batch(part) for key, part in enumerate(observations))
        observations = _as_numbers(observations)
        n = len(observations)
        self._fit(n, observations.shape[1:], observations.dtype)
        self._rows[:n] = observations
        return self._tensor[:n]

    def _child(self, key: Any) -> TensorInputs:
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = TensorInputs(self._dtype)
        return child

    def _fit(self, n: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
        if shape == self._shape and kind == self._kind and n <= len(self._rows):
            return
        self._shape, self._kind = shape, kind
        self._rows = np.empty((n, *shape), self._dtype or kind)
        self._tensor = torch.from_numpy(self._rows)
        self._row, self._row_tensor = self._rows[:1], self._tensor[:1]


def _as_numbers(observation: Any) -> NDArray[Any]:
    array = np.asarray(observation)
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"an observation of dtype {array.dtype} cannot become a tensor: {observation!r}; wrap the "
            "environment, or the module"
        )
    return array
