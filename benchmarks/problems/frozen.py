"""Agents of the bare loops, frozen: what `TorchAgent` and `MlpAgent` do in commit 7da5917e.

The bare loop is the limit that this library is measured against. With the library's own agents it would become faster
whenever they do, and what they gain would not show. So these are copies: the same actions as the library's, and every
check on the way to them, at the cost of that commit. Whoever changes what they cost makes results incomparable.

They are pickled and unpickled once, as agents are on their way to a worker: attributes of such objects take longer to
find, up to 5 % of an action. Left out is what bare loops never reach: modes instead of draws, squashing, nested
observations, streams of rows.
"""

from __future__ import annotations

import math
import pickle
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

__all__ = ["FrozenMlpAgent", "FrozenTorchAgent", "as_in_a_worker"]

_FEW = 32
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def as_in_a_worker(agent: Any) -> Any:
    """Return a copy of an agent, made as workers make theirs."""
    return pickle.loads(pickle.dumps(agent))


class _OfRows(ABC):
    """What a head may be given to draw from instead; bare loops have none."""

    @abstractmethod
    def random(self) -> np.ndarray:
        """Draw."""


class _Categorical:
    names = ("logits",)
    row_independent = True

    def __init__(self, space: Any) -> None:
        self._n, self._start = int(space.n), int(space.start)

    def one(self, outputs: tuple, random: Any, deterministic: bool) -> tuple[int, dict]:
        if self._n > _FEW:
            raise ValueError(self._n)
        row = outputs[0].tolist()[0]
        if row.__class__ is not list or len(row) != self._n:
            raise ValueError(row)
        top = max(row)
        cumulative = list(accumulate([math.exp(logit - top) for logit in row]))
        total = cumulative[-1]
        if total != total:
            raise ValueError(row)
        action = row.index(top) if deterministic else bisect_right(cumulative, random.random_sample() * total)
        return action + self._start, {"log_prob": row[action] - top - math.log(total)}

    def batch(self, outputs: tuple, random: Any, deterministic: bool) -> tuple[np.ndarray, dict]:
        logits = _array_of(outputs[0])
        if logits.ndim != 2 or logits.shape[1] != self._n:
            raise ValueError(logits.shape)
        shifted = np.subtract(logits, np.maximum.reduce(logits, axis=1, keepdims=True), dtype=np.float64)
        cumulative = np.add.accumulate(np.exp(shifted), axis=1)
        total = cumulative[:, -1]
        if math.isnan(np.add.reduce(total)):
            raise ValueError(logits)
        if deterministic:
            raise ValueError(deterministic)
        drawn = random.random() if isinstance(random, _OfRows) else random.random_sample(len(logits))
        actions = np.add.reduce(cumulative <= (drawn * total)[:, None], axis=1)
        log_prob = shifted[np.arange(len(logits)), actions] - np.log(total)
        return actions + self._start, {"log_prob": log_prob}


class _Gaussian:
    names = ("mean", "log_std")
    row_independent = True

    def __init__(self, space: Any) -> None:
        self._shape, self._size, self._dtype = space.shape, math.prod(space.shape), space.dtype
        self._low, self._high = space.low.ravel(), space.high.ravel()
        self._bounds = list(zip(self._low.tolist(), self._high.tolist(), strict=True))
        self._half: Any = None
        self._log_std: Any = None
        self._std: Any = None
        self._normaliser: Any = None

    def one(self, outputs: tuple, random: Any, deterministic: bool) -> tuple[np.ndarray, dict]:
        if (
            deterministic
            or self._half is not None
            or self._size > _FEW
            or len(self._shape) != 1
            or outputs[0].shape != (1, self._size)
        ):
            raise ValueError(self._shape)
        if outputs[1] is not self._log_std:
            self._take_log_std(outputs[1], 1)
        noise = random.standard_normal(self._size).tolist()
        raw = [m + s * e for m, s, e in zip(outputs[0].tolist()[0], self._std[0].tolist(), noise, strict=True)]
        clipped = [min(max(x, low), high) for x, (low, high) in zip(raw, self._bounds, strict=True)]
        log_prob = float(self._normaliser[0]) - 0.5 * sum([e * e for e in noise])
        return np.array(clipped, self._dtype), {"log_prob": log_prob, "raw_action": np.array(raw, self._dtype)}

    def batch(self, outputs: tuple, random: Any, deterministic: bool) -> tuple[np.ndarray, dict]:
        mean = _array_of(outputs[0])
        n = len(mean) if mean.ndim else 0
        if mean.size != n * self._size or (mean.shape != (n, self._size) and mean.shape[1:] != self._shape):
            raise ValueError(mean.shape)
        mean = mean.reshape(n, self._size)
        if outputs[1] is not self._log_std:
            self._take_log_std(outputs[1], n)
        if deterministic:
            raise ValueError(deterministic)
        noise = random.normal(self._size) if isinstance(random, _OfRows) else random.standard_normal(mean.shape)
        raw = (mean + self._std * noise).astype(self._dtype)
        log_prob = self._normaliser - 0.5 * np.add.reduce(noise * noise, axis=1)
        if self._half is None:
            actions = np.minimum(np.maximum(raw, self._low), self._high)
        shape = (n, *self._shape)
        return actions.reshape(shape), {"log_prob": log_prob, "raw_action": raw.reshape(shape)}

    def _take_log_std(self, given: Any, n: int) -> None:
        log_std = _array_of(given).astype(np.float64)
        if log_std.size == self._size and (log_std.ndim == 0 or log_std.shape != (n, self._size)):
            log_std = log_std.reshape(1, self._size)
        else:
            log_std = log_std.reshape(n, self._size)
        self._std = np.exp(log_std)
        self._normaliser = -log_std.sum(axis=1) - self._size * _HALF_LOG_TWO_PI
        self._log_std = given if given.__class__ is np.ndarray else None


def _array_of(output: Any) -> np.ndarray:
    if output.__class__ is np.ndarray:
        return output
    try:
        return output.numpy()
    except RuntimeError:
        return output.detach().numpy()


class _Frozen:
    """Acts by a head, with what it draws from seeded at each trajectory's start."""

    def __init__(self, space: Any) -> None:
        self.head = _Categorical(space) if hasattr(space, "n") else _Gaussian(space)
        self.deterministic = False
        self._random = np.random.RandomState()

    def reset(self, seed: int) -> None:
        """Seed the generator."""
        self._random.seed(seed)

    def _drawn_from(self, draws: Any) -> Any:
        return draws if draws is not None and self.head.row_independent else self._random


class FrozenTorchAgent(_Frozen):
    """Acts with a torch module that returns a tensor, as `TorchAgent` does in a worker.

    Args:
        module: The module; with a Gaussian head it has a parameter `log_std`.
        space: The action space, Discrete or Box.
    """

    def __init__(self, module: Any, space: Any) -> None:
        import torch

        super().__init__(space)
        self.module, self._inference, self._is_copy = module.eval(), torch.inference_mode(), True
        self._tensor_class, self._inputs = torch.Tensor, _Inputs(torch.from_numpy)
        self._log_std: Any = None

    def get_action(self, observation: Any) -> tuple[Any, dict]:
        """Choose one action."""
        output = self._forward(self._inputs.one, observation)
        if output.__class__ is self._tensor_class and len(self.head.names) == 1:
            return self.head.one((output,), self._random, self.deterministic)
        parameters, extras = self._parted(output)
        action, infos = self.head.one(parameters, self._random, self.deterministic)
        for key, rows in extras.items():
            infos[key] = rows[0]
        return action, infos

    def get_actions(self, observations: Any, *, draws: Any = None) -> tuple[np.ndarray, dict]:
        """Choose an action for each row."""
        parameters, extras = self._parted(self._forward(self._inputs.batch, observations))
        actions, infos = self.head.batch(parameters, self._drawn_from(draws), self.deterministic)
        return actions, infos | extras

    def _forward(self, inputs: Any, observation: Any) -> Any:
        with self._inference:
            tensors = inputs(observation)
            return self.module(tensors) if self._is_copy else None

    def _parted(self, output: Any) -> tuple[tuple, dict]:
        names = self.head.names
        extras: dict = {}
        if output.__class__ is self._tensor_class:
            parameters: tuple = (output,)
        else:
            raise ValueError(output)
        if len(parameters) < len(names):
            parameters += self._missing(names[len(parameters) :])
        return parameters, extras

    def _missing(self, names: tuple) -> tuple:
        if names != ("log_std",) or not isinstance(getattr(self.module, "log_std", None), self._tensor_class):
            raise ValueError(names)
        if self._log_std is None or not self._is_copy:
            self._log_std = self.module.log_std.detach().cpu().numpy()
        return (self._log_std,)


class _Inputs:
    def __init__(self, from_numpy: Any) -> None:
        self._from_numpy, self._dtype = from_numpy, np.dtype(np.float32)
        self._shape: Any = None
        self._kind: Any = None
        self._rows: Any = None

    def one(self, observation: Any) -> Any:
        if (
            observation.__class__ is not np.ndarray
            or observation.shape != self._shape
            or (observation.dtype is not self._kind and observation.dtype != self._kind)
        ):
            observation = _as_numbers(observation)
            self._fit(1, observation.shape, observation.dtype)
        self._row[...] = observation
        return self._row_tensor

    def batch(self, observations: Any) -> Any:
        if isinstance(observations, Mapping):
            raise TypeError(observations)
        if isinstance(observations, tuple):
            raise TypeError(observations)
        observations = _as_numbers(observations)
        n = len(observations)
        self._fit(n, observations.shape[1:], observations.dtype)
        self._rows[:n] = observations
        return self._tensor[:n]

    def _fit(self, n: int, shape: tuple, kind: Any) -> None:
        if shape == self._shape and kind == self._kind and n <= len(self._rows):
            return
        self._shape, self._kind = shape, kind
        self._rows = np.empty((n, *shape), self._dtype or kind)
        self._tensor = self._from_numpy(self._rows)
        self._row, self._row_tensor = self._rows[:1], self._tensor[:1]


def _as_numbers(observation: Any) -> np.ndarray:
    array = np.asarray(observation)
    if array.dtype.kind not in "biuf":
        raise ValueError(array.dtype)
    return array


class FrozenMlpAgent(_Frozen):
    """Acts with an `nn.Sequential` of Linear and Tanh in NumPy, as `MlpAgent` does; see `FrozenTorchAgent`."""

    def __init__(self, network: Any, space: Any) -> None:
        super().__init__(space)
        values = {name: tensor.detach().numpy().copy() for name, tensor in network.state_dict().items()}
        self._flatten, self._source = False, None
        self._steps = [
            (np.ascontiguousarray(values[f"{name}.weight"].T), values[f"{name}.bias"])
            if f"{name}.weight" in values
            else np.tanh
            for name, _ in network.named_children()
        ]
        self._log_std = values.get("log_std")

    def reset(self, seed: int) -> None:
        """Seed the generator."""
        if self._source is not None:
            raise ValueError(self._source)
        super().reset(seed)

    def get_action(self, observation: Any) -> tuple[Any, dict]:
        """Choose one action."""
        outputs = self._outputs(np.asarray(observation, dtype=np.float32)[None])
        return self.head.one(outputs, self._random, self.deterministic)

    def get_actions(self, observations: Any, *, draws: Any = None) -> tuple[np.ndarray, dict]:
        """Choose an action for each row."""
        outputs = self._outputs(np.asarray(observations, dtype=np.float32))
        return self.head.batch(outputs, self._drawn_from(draws), self.deterministic)

    def _outputs(self, rows: Any) -> tuple:
        if self._flatten or rows.ndim != 2:
            raise ValueError(rows.shape)
        for step in self._steps:
            if step.__class__ is not tuple:
                rows = step(rows)
                continue
            weight, bias = step
            try:
                rows = rows @ weight
            except ValueError:
                raise ValueError(rows.shape) from None
            if bias is not None:
                rows += bias
        return (rows,) if self._log_std is None else (rows, self._log_std)
