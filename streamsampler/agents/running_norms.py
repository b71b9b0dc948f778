"""Normalise observations and rewards with the mean and variance of earlier samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium.spaces import Box, Dict, Tuple
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError, number
from streamsampler.core.keywords import suggesting
from streamsampler.data.trees import same


def check_moments(moments: Any, space: Any, name: str) -> None:
    """Check that statistics fit an observation space: NumPy's broadcasting would hide a mismatch."""
    if moments is None:
        return
    if isinstance(moments, dict):
        _check_keys(moments, space, name)
    elif hasattr(moments, "mean"):
        shape = None if isinstance(space, Dict | Tuple) else getattr(space, "shape", None)
        if shape != moments.mean.shape:
            _refuse(name, f"statistics of the shape {moments.mean.shape}", space, shape)
    else:
        if not isinstance(space, Tuple) or len(space.spaces) != len(moments):
            _refuse(name, f"statistics of a tuple of {len(moments)}", space)
        for position, child in enumerate(moments):
            check_moments(child, space[position], f"{name}[{position}]")


def _check_keys(moments: dict[str, Any], space: Any, name: str) -> None:
    if not isinstance(space, Dict) or space.spaces.keys() != moments.keys():
        _refuse(name, f"statistics of the keys {', '.join(moments)}", space)
    for key, child in moments.items():
        check_moments(child, space[key], f"{name}[{key!r}]")


def _refuse(name: str, what: str, space: Any, shape: Any = None) -> None:
    has = f"observations {space}" if shape is None else f"observations of the shape {shape}"
    raise UsageError(
        f"{name} has {what}, but the environment has {has}: the statistics are of another environment. Use a new "
        "filter, and for another environment a new sampler"
    )


# Moments are computed per trajectory, and combined as in Chan, Golub and LeVeque (1979), in float64: they equal those
# of all data together, up to rounding.

# Rows with fewer numbers than this are summed for several trajectories in a single call. With more numbers, that would
# run through the memory once per number.
_MOST_NUMBERS = 20
_MOST_BYTES = 1 << 20  # of rows summed in a single call, so that their float64 copies stay in the cache
_FEW = 8  # up to this many numbers, Python adds faster than NumPy


class Moments(NamedTuple):
    """Number, mean and squared deviations of rows.

    Attributes:
        n: The number of rows; a fraction in files that weight rows.
        mean: (*O) float64.
        squares: (*O) float64, the sum of squared deviations from the mean.
    """

    n: float
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """Compute the moments of (n, *O) numbers."""
        numbers = np.ascontiguousarray(rows, dtype=np.float64)
        n = len(numbers)
        if numbers.size < _MOST_NUMBERS * n:
            return next(iter(_of_each(numbers, np.array([n]))))
        mean = np.add.reduce(numbers, 0) / n
        deviations = numbers - mean
        deviations *= deviations
        return cls(float(n), mean, np.add.reduce(deviations, 0))

    @classmethod
    def of_each(cls, rows: NDArray[Any], lengths: NDArray[np.int64]) -> EachMoments | None:
        """Compute the moments of trajectories of these lengths, bit for bit as `of`; None if not faster."""
        few_numbers = rows.size < _MOST_NUMBERS * len(rows) and rows.nbytes <= _MOST_BYTES
        if rows.dtype.kind != "f" or not few_numbers or not lengths.all():
            return None
        return _of_each(np.ascontiguousarray(rows, dtype=np.float64), lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        # Bytes are pickled ten times as fast as arrays.
        mean, squares = np.asarray(self.mean, np.float64), np.asarray(self.squares, np.float64)
        return _from_bytes, (self.n, mean.shape, mean.tobytes(), squares.tobytes())

    def plus(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows together."""
        return self.plus_each([other])

    def plus_each(self, others: Sequence[Moments]) -> Moments:
        """Return the moments of these rows and others together, added in order."""
        n, mean, squares = self
        if 0 < mean.size <= _FEW:
            return self._plus_few(others)
        for its_n, its_mean, its_squares in others:
            total, difference = n + its_n, its_mean - mean
            mean = mean + difference * (its_n / total)
            difference *= difference
            difference *= n * its_n / total
            squares = squares + its_squares
            squares += difference
            n = total
        return Moments(n, mean, squares)

    def _plus_few(self, others: Sequence[Moments]) -> Moments:
        """Compute the same as `plus_each`, to the last bit, with Python's numbers."""
        n, (shape, size) = self.n, (self.mean.shape, self.mean.size)
        weights = []  # of the differences of the means, and of their squares
        for other in others:
            total = n + other.n
            weights.append((other.n / total, n * other.n / total))
            n = total
        means = np.array([other.mean for other in others], np.float64).reshape(-1, size).T.tolist()
        squares = np.array([other.squares for other in others], np.float64).reshape(-1, size).T.tolist()
        found = []
        for middle, spread, its_means, its_squares in zip(
            self.mean.ravel().tolist(), self.squares.ravel().tolist(), means, squares, strict=True
        ):
            for (share, weight), its_mean, its_square in zip(weights, its_means, its_squares, strict=True):
                step = its_mean - middle
                middle += step * share
                spread = spread + its_square + step * step * weight
            found.append((middle, spread))
        mean, spreads = np.array(found).T.reshape(2, *shape)
        return Moments(n, np.array(mean), np.array(spreads))

    @property
    def variance(self) -> NDArray[np.float64]:
        """(*O) float64, the population's variance, as `numpy.var` computes it."""
        return np.asarray(self.squares / self.n)


@dataclass(frozen=True, slots=True)
class EachMoments:
    """The moments of k trajectories, as arrays; iteration creates a `Moments` at a time."""

    lengths: NDArray[np.float64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Moments]:
        for i, n in enumerate(self.lengths.tolist()):
            yield Moments(n, self.mean[i, ...], self.squares[i, ...])


def _of_each(numbers: NDArray[np.float64], lengths: NDArray[np.int64]) -> EachMoments:
    # Sums of `reduceat` depend on their own rows alone; those of `reduce` differ in the last bit.
    starts = np.cumsum(lengths) - lengths
    mean = np.add.reduceat(numbers, starts, 0)
    mean /= lengths.reshape(-1, *[1] * (numbers.ndim - 1))
    deviations = numbers - np.repeat(mean, lengths, 0)
    deviations *= deviations
    return EachMoments(lengths.astype(np.float64), mean, np.add.reduceat(deviations, starts, 0))


def _from_bytes(n: float, shape: tuple[int, ...], mean: bytes, squares: bytes) -> Moments:
    return Moments(n, *(np.ndarray(shape, np.float64, numbers) for numbers in (mean, squares)))


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

    Arrays of float dtypes are normalised in their dtype, with statistics in float64. Arrays of integers or objects pass
    unchanged. Each array of a nested observation has its own mean and variance. Before the first statistics,
    observations pass unchanged.

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
