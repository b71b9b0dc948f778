"""Means and squared deviations, combined one after the other.

They are computed for each trajectory, and combined as Chan, Golub and LeVeque (1979) do it: in float64, so that they
equal those of all the data together up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["EachMoments", "Moments"]

# Of rows with fewer numbers, those of several trajectories are summed in one call. With more of them that would run
# through the memory once for each number.
_MOST_NUMBERS = 20
_MOST_BYTES = 1 << 20  # of rows that are summed in one call, whose float64 copies are to stay in the cache
_FEW = 8  # up to so many numbers, Python's are added faster than arrays


class Moments(NamedTuple):
    """How many rows there were, and what they were like.

    Attributes:
        n: The number of rows; no integer where it was read from a file that gives rows another weight.
        mean: (*O) float64.
        squares: (*O) float64: the sum of the squared deviations from the mean.
    """

    n: float
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """Return the moments of (n, *O) numbers."""
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
        """Return the moments of each of several trajectories, to the last bit; None where that would not be faster.

        Args:
            rows: (n, *O) numbers of one trajectory after the other.
            lengths: (k,), how many rows each trajectory has.
        """
        few_numbers = rows.size < _MOST_NUMBERS * len(rows) and rows.nbytes <= _MOST_BYTES
        if rows.dtype.kind != "f" or not few_numbers or not lengths.all():
            return None
        return _of_each(np.ascontiguousarray(rows, dtype=np.float64), lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        # As bytes they are pickled ten times as fast as arrays.
        mean, squares = np.asarray(self.mean, np.float64), np.asarray(self.squares, np.float64)
        return _from_bytes, (self.n, mean.shape, mean.tobytes(), squares.tobytes())

    def plus(self, other: Moments) -> Moments:
        """Return the moments of these rows and others together."""
        return self.plus_each([other])

    def plus_each(self, others: Sequence[Moments]) -> Moments:
        """Return the moments of these rows and others together, which are added one after the other."""
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
        """Return what `plus_each` returns, to the last bit, with Python's numbers."""
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
        """(*O) float64: of the population, as `numpy.var` gives it."""
        return np.asarray(self.squares / self.n)


@dataclass(frozen=True, slots=True)
class EachMoments:
    """The moments of each of several trajectories, one of which is made when it is asked for.

    Attributes:
        lengths: (k,) float64: how many rows each trajectory has.
        mean: (k, *O) float64.
        squares: (k, *O) float64.
    """

    lengths: NDArray[np.float64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Moments]:
        for i, n in enumerate(self.lengths.tolist()):
            yield Moments(n, self.mean[i, ...], self.squares[i, ...])


def _of_each(numbers: NDArray[np.float64], lengths: NDArray[np.int64]) -> EachMoments:
    # Sums of `reduceat` depend on their own rows alone. Those of `reduce` differ from them in the last bit.
    starts = np.cumsum(lengths) - lengths
    mean = np.add.reduceat(numbers, starts, 0)
    mean /= lengths.reshape(-1, *[1] * (numbers.ndim - 1))
    deviations = numbers - np.repeat(mean, lengths, 0)
    deviations *= deviations
    return EachMoments(lengths.astype(np.float64), mean, np.add.reduceat(deviations, starts, 0))


def _from_bytes(n: float, shape: tuple[int, ...], mean: bytes, squares: bytes) -> Moments:
    """Return moments that were pickled."""
    return Moments(n, *(np.ndarray(shape, np.float64, numbers) for numbers in (mean, squares)))
