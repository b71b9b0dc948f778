"""Heads: turn a policy network's outputs into actions and log-probabilities.

Sampling runs in plain Python and NumPy: for a single observation, `torch.distributions` takes three times as long as a
small network. Log-probabilities are the textbook densities, in float64. The squashed Gaussian and its stable
log-density are from Soft Actor-Critic (Haarnoja et al., 2018, appendix C).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from itertools import accumulate
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from streamsampler.agents.draws import Draws, RowDraws
from streamsampler.core.errors import ActionError, UsageError
from streamsampler.core.keywords import suggesting

Outputs = tuple[Any, ...]
"""Tensors on the CPU, or arrays, with a row for each observation."""

_FEW = 32
"""Up to this many actions, a list of Python floats is faster than NumPy."""
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Head(ABC):
    """Turns a module's outputs into actions.

    Attributes:
        names: The outputs' names in a dict; a module may omit the last names.
        row_independent: Whether each row of a result depends only on that row and its draws, and `batch` accepts
            `Draws`.
    """

    names: tuple[str, ...]
    row_independent = False

    @abstractmethod
    def batch(
        self, outputs: Outputs, random: np.random.RandomState | RowDraws, deterministic: bool
    ) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Choose an action for each of n observations.

        Args:
            outputs: The module's outputs in the order of `names`, with n rows each.
            random: A generator for all rows; with `row_independent`, also draws for n rows.
            deterministic: Return the mode instead of a random draw.

        Returns:
            The actions, n rows, and infos with n rows: at least `log_prob`, (n,) float64.
        """

    def one(self, outputs: Outputs, random: np.random.RandomState, deterministic: bool) -> tuple[Any, dict[str, Any]]:
        actions, infos = self.batch(outputs, random, deterministic)
        return actions[0], {key: rows[0] for key, rows in infos.items()}


class CategoricalHead(Head):
    """For Discrete action spaces: the module returns n logits, normalised or not; minus infinity forbids an action.

    Args:
        space: The action space.

    Raises:
        UsageError: The space is not Discrete.
    """

    names = ("logits",)
    row_independent = True

    @suggesting()
    def __init__(self, space: Space[Any]) -> None:
        if not isinstance(space, Discrete):
            raise UsageError(f"CategoricalHead is for Discrete action spaces, not {space!r}")
        self._n = int(space.n)
        self._start = int(space.start)

    def one(self, outputs: Outputs, random: np.random.RandomState, deterministic: bool) -> tuple[Any, dict[str, Any]]:
        if self._n > _FEW:
            actions, infos = self.batch(outputs, random, deterministic)
            return int(actions[0]), {"log_prob": float(infos["log_prob"][0])}
        row = outputs[0].tolist()[0]
        if row.__class__ is not list or len(row) != self._n:
            raise self._wrong_shape(outputs[0])
        top = max(row)
        cumulative = list(accumulate([math.exp(logit - top) for logit in row]))
        total = cumulative[-1]
        if total != total:  # some logit is not finite (minus infinity masks an action, and is allowed)
            raise _not_finite("logits", row)
        # The product is below the total: the total is at least 1, and the largest draw is 1 - 2**-53.
        action = row.index(top) if deterministic else bisect_right(cumulative, random.random_sample() * total)
        return action + self._start, {"log_prob": row[action] - top - math.log(total)}

    def batch(
        self, outputs: Outputs, random: np.random.RandomState | RowDraws, deterministic: bool
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        logits = array_of(outputs[0])
        if logits.ndim != 2 or logits.shape[1] != self._n:
            raise self._wrong_shape(logits)
        # ufunc methods: on a few rows, `max`, `sum` and `cumsum` spend most of their time in dispatch.
        shifted = np.subtract(logits, np.maximum.reduce(logits, axis=1, keepdims=True), dtype=np.float64)
        cumulative = np.add.accumulate(np.exp(shifted), axis=1)
        total = cumulative[:, -1]
        if math.isnan(np.add.reduce(total)):
            raise _not_finite("logits", logits[np.isnan(total).argmax()])
        if deterministic:
            actions = shifted.argmax(axis=1)
        else:
            drawn = random.random() if isinstance(random, RowDraws) else random.random_sample(len(logits))
            actions = np.add.reduce(cumulative <= (drawn * total)[:, None], axis=1)
        log_prob = shifted[np.arange(len(logits)), actions] - np.log(total)
        return actions + self._start, {"log_prob": log_prob}

    def _wrong_shape(self, logits: Any) -> ActionError:
        return ActionError(
            f"the module's logits have the shape {tuple(logits.shape)}, but should have (n, {self._n}): a value for "
            "each action, and a row for each of n observations"
        )


class GaussianHead(Head):
    """For Box action spaces: the module returns the mean, and the logarithm of the standard deviation.

    The mean has n rows, each of the action's shape or flat. The log standard deviation has the same form, or a row for
    all.

    Draws may lie outside the box. Either the action is *clipped*: then `log_prob` is the log-density of the unclipped
    action, as the policy gradient needs (and as in OpenAI's baselines). Or it is *squashed*:
    `low + (high - low) * (tanh(raw) + 1) / 2`, and `log_prob` is the log-density of the squashed action. The infos have
    `log_prob`, and the draw as `raw_action`, (n, *A). A learner computes its own log-density at `raw_action`; the
    squashing term does not depend on the parameters, and cancels in a ratio.

    Args:
        space: The action space, a Box of floats.
        squash: Squash instead of clip; needs finite bounds.

    Raises:
        UsageError: The space is not a Box of floats, or a bound is infinite.
    """

    names = ("mean", "log_std")
    row_independent = True

    @suggesting()
    def __init__(self, space: Space[Any], *, squash: bool = False) -> None:
        if not isinstance(space, Box) or space.dtype is None or space.dtype.kind != "f":
            raise UsageError(f"GaussianHead is for Box action spaces of floats, not {space!r}")
        if squash and not space.is_bounded():
            raise UsageError(f"squash=True needs finite bounds on both sides, and the action space is {space!r}")
        self._shape: tuple[int, ...] = space.shape
        self._size = math.prod(self._shape)
        self._dtype = space.dtype
        self._low, self._high = space.low.ravel(), space.high.ravel()
        self._bounds = list(zip(self._low.tolist(), self._high.tolist(), strict=True))
        self._half = 0.5 * (self._high.astype(np.float64) - self._low) if squash else None
        # Caches for the last array of log standard deviations.
        self._log_std: Any = None
        self._std: Any = None
        self._normaliser: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log_std": None, "_std": None, "_normaliser": None}

    def batch(
        self, outputs: Outputs, random: np.random.RandomState | RowDraws, deterministic: bool
    ) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Choose n actions, (n, *A) of the space's dtype."""
        mean = array_of(outputs[0])
        n = len(mean) if mean.ndim else 0
        if mean.size != n * self._size or (mean.shape != (n, self._size) and mean.shape[1:] != self._shape):
            raise self._wrong_shape("mean", mean)
        mean = mean.reshape(n, self._size)
        if outputs[1] is not self._log_std:
            self._take_log_std(outputs[1], n)
        if deterministic:
            raw = mean.astype(self._dtype)
            log_prob = np.broadcast_to(self._normaliser, n).astype(np.float64)
        else:
            noise = random.normal(self._size) if isinstance(random, RowDraws) else random.standard_normal(mean.shape)
            raw = (mean + self._std * noise).astype(self._dtype)
            log_prob = self._normaliser - 0.5 * np.add.reduce(noise * noise, axis=1)
        if self._half is None:
            actions = np.minimum(np.maximum(raw, self._low), self._high)
        else:
            actions, log_prob = self._squashed(raw, log_prob)
        shape = (n, *self._shape)
        return actions.reshape(shape), {"log_prob": log_prob, "raw_action": raw.reshape(shape)}

    def one(self, outputs: Outputs, random: np.random.RandomState, deterministic: bool) -> tuple[Any, dict[str, Any]]:
        """Choose an action, (*A,) of the space's dtype."""
        if (
            deterministic
            or self._half is not None
            or self._size > _FEW
            or len(self._shape) != 1
            or outputs[0].shape != (1, self._size)
        ):
            return super().one(outputs, random, deterministic)
        if outputs[1] is not self._log_std:
            self._take_log_std(outputs[1], 1)
        # The same numbers as `batch` with a single row, in a third of the time.
        noise = random.standard_normal(self._size).tolist()
        raw = [m + s * e for m, s, e in zip(outputs[0].tolist()[0], self._std[0].tolist(), noise, strict=True)]
        clipped = [min(max(x, low), high) for x, (low, high) in zip(raw, self._bounds, strict=True)]
        log_prob = float(self._normaliser[0]) - 0.5 * sum([e * e for e in noise])
        return np.array(clipped, self._dtype), {"log_prob": log_prob, "raw_action": np.array(raw, self._dtype)}

    def _take_log_std(self, given: Any, n: int) -> None:
        log_std = array_of(given).astype(np.float64)
        if log_std.size == self._size and (log_std.ndim == 0 or log_std.shape != (n, self._size)):
            log_std = log_std.reshape(1, self._size)
        elif log_std.size == n * self._size:
            log_std = log_std.reshape(n, self._size)
        else:
            raise self._wrong_shape("log_std", log_std)
        self._std = np.exp(log_std)
        self._normaliser = -log_std.sum(axis=1) - self._size * _HALF_LOG_TWO_PI
        # Only arrays are recognised by identity: a tensor may be the module's own, and change in place by an update.
        self._log_std = given if given.__class__ is np.ndarray else None

    def _squashed(self, raw: NDArray[Any], log_prob: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        assert self._half is not None
        wide = raw.astype(np.float64)
        actions = (self._low + self._half * (np.tanh(wide) + 1.0)).astype(self._dtype)
        # log(1 - tanh(x)^2), without cancellation.
        log_slope = 2.0 * (math.log(2.0) - wide - np.logaddexp(0.0, -2.0 * wide)) + np.log(self._half)
        return np.minimum(np.maximum(actions, self._low), self._high), log_prob - log_slope.sum(axis=1)

    def _wrong_shape(self, name: str, array: NDArray[Any]) -> ActionError:
        return ActionError(
            f"the module's {name} has the shape {array.shape}, but should have {('n', *self._shape)}: "
            "a row for each of n observations"
        )


class ActsByHead:
    """Base of agents with a head: owns the generator of draws, which `reset` seeds.

    Attributes:
        head: The head.
        deterministic: Choose the mode of the distribution instead of drawing from it.
    """

    head: Head
    deterministic: bool
    _random: np.random.RandomState

    def reset(self, seed: int) -> None:
        """Seed the generator of actions; see `Agent`."""
        self._random.seed(seed)

    def get_state(self) -> Any:
        """Return the generator's state; None if actions are deterministic."""
        return None if self.deterministic else self._random.get_state(legacy=False)

    def set_state(self, state: Any) -> None:
        """Set the generator's state; see `Agent`."""
        if state is not None:
            self._random.set_state(state)

    def _drawn_from(self, draws: Draws | None) -> np.random.RandomState | Draws:
        """Return each row's own stream, if the head supports it, otherwise the agent's generator."""
        return draws if draws is not None and self.head.row_independent else self._random


def default_head(space: Space[Any]) -> Head:
    """Return a categorical head for a Discrete space, a clipped Gaussian head for a Box of floats.

    Raises:
        UsageError: The space is of another kind.
    """
    if isinstance(space, Discrete):
        return CategoricalHead(space)
    if isinstance(space, Box):
        return GaussianHead(space)
    raise UsageError(f"there is no default head for the action space {space!r}: pass your own subclass of Head")


def array_of(output: Any) -> NDArray[Any]:
    """Return a module's output as an array; raise UsageError if NumPy has no such dtype."""
    if output.__class__ is np.ndarray:
        return cast("NDArray[Any]", output)
    try:
        return cast("NDArray[Any]", output.numpy())
    except RuntimeError:  # a parameter of the module, or a view of it, requires a gradient even in inference mode
        return cast("NDArray[Any]", output.detach().numpy())
    except TypeError as error:
        dtype = getattr(output, "dtype", type(output).__name__)
        message = (
            f"a tensor of {dtype} cannot be recorded, since NumPy has no such dtype: let the module return float32"
        )
        raise UsageError(message) from error


def _not_finite(name: str, row: Any) -> ActionError:
    return ActionError(f"the module's {name} are not finite: {row!r}")
