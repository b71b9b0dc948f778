"""Moments: number, mean and squared deviations of rows, computed per trajectory and merged.

They are merged as in Chan, Golub and LeVeque (1979), in float64, and equal those of all data up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Dict, Tuple
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError

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
