"""Normalise observations and rewards with the mean and variance of earlier samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from streamsampler.agents.moments import EachMoments, Moments, check_moments
from streamsampler.core.errors import UsageError, number
from streamsampler.core.keywords import suggesting
from streamsampler.data.trees import same

_EPSILON = 1e-8


class _NormOfLeaf:
    """Normalises an array in its own dtype.

    A timestep costs about a microsecond per NumPy call, two or three after a network has filled the processor's caches:
    hence only four calls, on operands of a single dtype.
    """

    def __init__(self, moments: Moments, clip: float | None, epsilon: float) -> None:
        self._mean = moments.mean
        self._deviation = np.sqrt(moments.variance + epsilon)
        self._clip = clip
        self._of: dict[str, tuple[Any, ...]] = {}  # by dtype: mean, deviation, smallest and largest value

    def apply(self, numbers: NDArray[Any]) -> NDArray[Any]:
        wanted = self._mean.shape
        if wanted != numbers.shape[numbers.ndim - len(wanted) :]:  # NumPy would broadcast
            raise UsageError(
                f"the filter has statistics of the shape {wanted}, but the data has the shape {numbers.shape}"
            )
        if not numbers.ndim:  # in-place operations are for arrays
            return np.asarray(self.apply(numbers[None])[0])
        mean, deviation, low, high = self._of.get(numbers.dtype.char) or self._in(numbers.dtype)
        result: NDArray[Any] = numbers - mean
        result /= deviation
        if low is not None:
            np.minimum(result, high, out=result)
            np.maximum(result, low, out=result)
        return result

    def on_arrays_of(self, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return a faster `apply` for float arrays of this dtype with at least a dimension."""
        mean, deviation, low, high = self._in(dtype)
        minimum, maximum = np.minimum, np.maximum

        def apply(numbers: NDArray[Any]) -> NDArray[Any]:
            result: NDArray[Any] = numbers - mean
            result /= deviation
            if low is not None:
                minimum(result, high, out=result)
                maximum(result, low, out=result)
            return result

        return apply

    def scale(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Divide by the deviation and clip, without subtracting the mean."""
        _, deviation, low, high = self._in(numbers.dtype)
        scaled: NDArray[Any] = numbers / deviation
        return scaled if low is None else np.clip(scaled, low, high)

    def _in(self, dtype: np.dtype[Any]) -> tuple[Any, ...]:
        low, high = (None, None) if self._clip is None else (np.array(-self._clip, dtype), np.array(self._clip, dtype))
        with np.errstate(over="ignore", under="ignore"):
            found = self._of[dtype.char] = (self._mean.astype(dtype), self._deviation.astype(dtype), low, high)
        return found


class RunningMoments:
    """Base of both filters: settings, and moments of each array."""

    def __init__(self, clip: float | None, epsilon: float) -> None:
        clip, epsilon = None if clip is None else number("clip", clip), number("epsilon", epsilon)
        if clip is not None and not clip > 0:
            raise UsageError(f"clip must be above 0, or None for no limit, not {clip}")
        if not epsilon > 0:
            raise UsageError(f"epsilon must be above 0, not {epsilon}")
        self.clip = clip
        self.epsilon = epsilon
        self._set(None)

    def _set(self, moments: Any) -> None:
        self._moments = moments
        self._plan = _mapped(moments, lambda one: _NormOfLeaf(one, self.clip, self.epsilon))

    def with_moments(self, moments: Any) -> Self:
        """Return a filter with the same settings and other statistics."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._set(moments)
        return other

    def merge(self, summaries: Sequence[Any]) -> Self:
        moments = self._moments
        if summaries and all(summary.__class__ is Moments for summary in summaries):
            first, *others = summaries if moments is None else [moments, *summaries]
            return self.with_moments(first.plus_each(others))
        for summary in summaries:
            moments = _plus(moments, summary)
        return self.with_moments(moments)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_plan"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set(self._moments)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and same(self.__getstate__(), other.__getstate__())

    __hash__ = None  # type: ignore[assignment]

    @property
    def moments(self) -> Any:
        """The statistics: a `Moments`, or a tree of them for a nested space; None before the first merge."""
        return self._moments

    @property
    def _statistics(self) -> str:
        if not self.count:
            return "no statistics"
        digest = hashlib.sha256()
        for one in _found(self._moments):
            for numbers in (one.mean, one.squares):
                digest.update(np.ascontiguousarray(numbers).tobytes())
        return f"{self.count:.0f} timesteps, {digest.hexdigest()[:12]}"

    @property
    def count(self) -> float:
        """The number of timesteps in the statistics."""
        first = next(_found(self._moments), None)
        return 0.0 if first is None else first.n


class RunningNorm(RunningMoments):
    """Normalises observations: `(observation - mean) / sqrt(variance + epsilon)`, clipped to `-clip … clip`.

    Arrays of float dtypes are normalised in their dtype, with statistics in float64; others pass unchanged. Each array
    of a nested observation has its own mean and variance. Before the first statistics, observations pass unchanged.

    Args:
        clip: The largest value, above 0; None for no limit.
        epsilon: Added to the variance, above 0.

    Raises:
        UsageError: An argument is invalid.
    """

    @suggesting()
    def __init__(self, clip: float | None = 10.0, epsilon: float = _EPSILON) -> None:
        super().__init__(clip, epsilon)

    @property
    def mean(self) -> Any:
        """The mean of each number; None before the first statistics."""
        return _mapped(self._moments, lambda one: one.mean)

    @property
    def variance(self) -> Any:
        """The variance of each number; None before the first statistics."""
        return _mapped(self._moments, lambda one: one.variance)

    def check_space(self, space: Any) -> None:
        """Check that the statistics fit an observation space; see `check_moments`."""
        check_moments(self._moments, space, f"the observation filter {type(self).__name__}")

    def on_arrays_of(self, space: Any) -> Callable[[NDArray[Any]], NDArray[Any]] | None:
        """Return a faster `apply` for arrays of a space's dtype and shape, or None."""
        if type(self).apply is not RunningNorm.apply or self._plan.__class__ is not _NormOfLeaf:
            return None
        is_fit = isinstance(space, Box) and space.shape and space.dtype.kind == "f"
        return self._plan.on_arrays_of(space.dtype) if is_fit else None

    def apply(self, data: Any) -> Any:
        """Return normalised observations; see `Filter`."""
        plan = self._plan
        if plan is None:
            return data
        if plan.__class__ is _NormOfLeaf and data.__class__ is np.ndarray and data.dtype.kind == "f":
            return plan.apply(data)
        return _normalised(plan, data)

    def summarise(self, data: Any) -> Any:
        """Return the moments of a trajectory's observations.

        Raises:
            UsageError: No array has a float dtype.
        """
        if data.__class__ is np.ndarray and data.dtype.kind == "f":
            return Moments.of(data)
        found = _moments_of(data)
        if next(_found(found), None) is None:
            raise UsageError("RunningNorm needs observations of a float dtype: these have none to normalise")
        return found

    def summarise_each(self, data: Any, lengths: NDArray[np.int64]) -> EachMoments | None:
        """Return the results of `summarise` for several trajectories, or None if that would not be faster."""
        is_own = type(self).summarise is RunningNorm.summarise
        return Moments.of_each(data, lengths) if is_own and data.__class__ is np.ndarray else None

    def __repr__(self) -> str:
        return f"RunningNorm(clip={self.clip}, epsilon={self.epsilon}; {self._statistics})"


class RunningReturnNorm(RunningMoments):
    """Scales rewards: `reward / sqrt(variance + epsilon)`, clipped to `-clip … clip`.

    The variance is of the discounted return so far, `R[t] = gamma * R[t - 1] + reward[t]`, which starts at 0 in each
    trajectory, and in fragments in each part of an episode: in parts shorter than about `2 / (1 - gamma)` timesteps,
    rewards come out larger. Rewards keep their sign. Before the first statistics, rewards pass unchanged.

    Args:
        gamma: The discount, 0 to 1.
        clip: The largest value, above 0; None for no limit.
        epsilon: Added to the variance, above 0.

    Raises:
        UsageError: An argument is invalid.
    """

    @suggesting()
    def __init__(self, gamma: float = 0.99, clip: float | None = 10.0, epsilon: float = _EPSILON) -> None:
        self.gamma = number("gamma", gamma)
        if not 0.0 <= self.gamma <= 1.0:
            raise UsageError(f"gamma must be between 0 and 1, not {gamma}")
        super().__init__(clip, epsilon)

    @property
    def variance(self) -> float | None:
        """The variance of discounted returns; None before the first statistics."""
        return None if self._moments is None else float(self._moments.variance)

    def apply(self, data: Any) -> Any:
        """Return scaled rewards; see `Filter`."""
        plan = self._plan
        return data if plan is None else plan.scale(np.asarray(data, dtype=np.float64))

    def summarise(self, data: Any) -> Moments:
        return Moments.of(np.array(self._returns(data.tolist())))

    def summarise_each(self, data: Any, lengths: NDArray[np.int64]) -> EachMoments | None:
        """Return the results of `summarise` for several trajectories, or None if that would not be faster."""
        if type(self).summarise is not RunningReturnNorm.summarise:
            return None
        rewards, start, returns = data.tolist(), 0, []
        for stop in np.cumsum(lengths).tolist():
            returns += self._returns(rewards[start:stop])
            start = stop
        return Moments.of_each(np.array(returns), lengths)

    def _returns(self, rewards: list[float]) -> list[float]:
        gamma, total, returns = self.gamma, 0.0, []
        for reward in rewards:
            total = gamma * total + reward
            returns.append(total)
        return returns

    def __repr__(self) -> str:
        return f"RunningReturnNorm({self.gamma}, clip={self.clip}, epsilon={self.epsilon}; {self._statistics})"


# Below, trees of moments are dicts or tuples where observations nest, with None for an array that passes unchanged.


def _moments_of(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _moments_of(child) for key, child in data.items()}
    if isinstance(data, tuple):
        return tuple(map(_moments_of, data))
    return Moments.of(data) if np.asarray(data).dtype.kind == "f" else None


def _mapped(tree: Any, function: Any) -> Any:
    if tree is None or isinstance(tree, Moments):
        return None if tree is None else function(tree)
    if isinstance(tree, dict):
        return {key: _mapped(child, function) for key, child in tree.items()}
    return tuple(_mapped(child, function) for child in tree)


def _found(tree: Any) -> Any:
    if isinstance(tree, Moments):
        yield tree
    elif tree is not None:
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from _found(child)


def _plus(tree: Any, other: Any) -> Any:
    if tree is None or other is None:
        return other if tree is None else tree
    if isinstance(tree, Moments):
        return tree.plus(other)
    if isinstance(tree, dict):
        return {key: _plus(child, other[key]) for key, child in tree.items()}
    return tuple(map(_plus, tree, other))


def _normalised(plan: Any, data: Any) -> Any:
    if plan is None:
        return data
    if isinstance(plan, dict):
        return {key: _normalised(plan[key], child) for key, child in data.items()}
    if isinstance(plan, tuple):
        return tuple(map(_normalised, plan, data))
    return plan.apply(np.asarray(data))
