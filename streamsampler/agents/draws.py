"""Random numbers for the rows of a batch: each row draws from its own trajectory's stream.

Seeding a generator per trajectory costs microseconds, and with a generator for the batch, a row's numbers would depend
on the number of rows. Therefore number p of a trajectory is a hash of its seed and p: a counter-based generator in the
sense of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The hash is SplitMix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) with David Stafford's thirteenth mixer. Normal
numbers come in pairs by Box and Muller's method (Annals of Mathematical Statistics, 1958), which rejects nothing, so
all rows use the same number of words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = ["Draws", "PreparedDraws", "RowDraws"]

Words = NDArray[np.uint64]
Numbers = NDArray[np.float64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_CALLS = 32
"""Numbers for this many calls are computed at a time per row: about the timesteps of a short trajectory."""
_MANY = 2048
"""Above this many numbers, only two calls' numbers are computed at a time."""


class RowDraws(ABC):
    """Random numbers for the rows of a batch."""

    @abstractmethod
    def random(self) -> Numbers:
        """Draw a number for each row."""

    @abstractmethod
    def normal(self, k: int) -> Numbers:
        """Draw k numbers for each row."""


class Draws(RowDraws):
    """Draws random numbers for n rows, each from its own trajectory's stream.

    An agent receives it as the keyword ``draws`` of its `get_actions`. A row's numbers depend on its trajectory's seed
    and the number of earlier draws of the same kind in the trajectory; not on other rows, nor on the sizes of draws.

    The caller starts trajectories in rows: ``prepared = draws.prepare(seeds)`` for many trajectories together, then
    ``draws.begin(row, prepared, position)`` for each. Before its first trajectory, a row draws from the stream of seed
    0.

    Args:
        n_rows: The number of rows.

    Attributes:
        n_rows: The number of rows.
    """

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self._uniform: _NumberStream | None = None
        self._normal: _NumberStream | None = None
        self._streams: tuple[_NumberStream, ...] = ()  # the kinds that the agent has drawn
        self._seeds = [0] * n_rows
        self._steps: NDArray[np.int64] | None = None  # how far a draw advances each row; None for 1

    def __getstate__(self) -> dict[str, Any]:
        kinds = [None if it is None else (it.keys, it.positions(), it.size) for it in (self._uniform, self._normal)]
        return {"seeds": self._seeds, "streams": kinds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.n_rows, self._seeds = len(state["seeds"]), list(state["seeds"])
        self._steps = None
        uniform, normal = state["streams"]
        self._uniform = None if uniform is None else _NumberStream(_uniforms, *uniform)
        self._normal = None if normal is None else _NumberStream(_normals, *normal)
        self._streams = tuple(stream for stream in (self._uniform, self._normal) if stream is not None)

    @classmethod
    def of(cls, seeds: Sequence[int]) -> Draws:
        """Return draws for trajectories at their start, by their seeds in row order, such as `batch.seeds`."""
        draws = cls(len(seeds))
        draws._seeds = list(seeds)
        return draws

    def only(self, rows: NDArray[np.bool_] | None) -> None:
        """Advance only some rows, (n_rows,) bool; others receive the same numbers again later. None means all."""
        self._steps = None if rows is None else rows.astype(np.int64)

    def with_rows(self, n_rows: int) -> Draws:
        """Return draws with more rows: present rows continue, the others have no trajectory yet."""
        wider = Draws(n_rows)
        wider._seeds[: self.n_rows] = self._seeds
        streams: list[_NumberStream | None] = []
        for it, compute in ((self._uniform, _uniforms), (self._normal, _normals)):
            if it is None:
                streams.append(None)
                continue
            positions = np.zeros(n_rows, np.uint64)
            positions[: self.n_rows] = it.positions()
            streams.append(_NumberStream(compute, _keys(wider._seeds, compute), positions, it.size))
        wider._uniform, wider._normal = streams
        wider._streams = tuple(stream for stream in streams if stream is not None)
        return wider

    def of_rows(self, rows: NDArray[np.int64]) -> SomeRowsDraws:
        """Return draws for some rows, by number, without advancing the others."""
        return SomeRowsDraws(self, rows)

    def random(self) -> Numbers:
        """Draw a number for each row: (n_rows,) float64, uniform in [0, 1), multiples of 2**-53."""
        stream = self._uniform
        if stream is None or not stream.left:
            stream = self._uniform = self._filled(stream, _uniforms, 1)
        stream.left -= 1
        numbers: Numbers = stream.flat[stream.at]
        np.add(stream.at, stream.ones if self._steps is None else self._steps, stream.at)
        return numbers

    def normal(self, k: int) -> Numbers:
        """Draw k standard normal numbers for each row: (n_rows, k) float64."""
        stream = self._normal
        if stream is None or stream.left < k:
            stream = self._normal = self._filled(stream, _normals, k)
        stream.left -= k
        windows, steps = stream.windows.get(k) or stream.windows_of(k)
        numbers: Numbers = windows[stream.at]
        np.add(stream.at, steps if self._steps is None else self._steps * k, stream.at)
        return numbers

    def prepare(self, seeds: Sequence[int]) -> PreparedDraws:
        """Compute the first numbers of many trajectories together, for `begin`."""
        prepared = PreparedDraws(seeds)
        prepared.compute(self._streams)
        return prepared

    def begin(self, row: int, prepared: PreparedDraws, position: int) -> None:
        """Start a trajectory's stream in a row; `position` is of its seed in the arguments of `prepare`."""
        self._seeds[row] = prepared.seeds[position]
        if prepared.streams is not self._streams:
            prepared.compute(self._streams)
        for rows, at, begins, numbers in prepared.tables:
            rows[row][...] = numbers[position]
            at[row] = begins[row]

    def _filled(self, stream: _NumberStream | None, compute: _Compute, k: int) -> _NumberStream:
        """Return the stream with at least k numbers left in each row."""
        size = _size_for(k)
        if stream is not None and size <= stream.size:
            stream.fill(stream.positions())
            return stream
        keys = _keys(self._seeds, compute) if stream is None else stream.keys
        positions = np.zeros_like(keys) if stream is None else stream.positions()
        wider = _NumberStream(compute, keys, positions, size)
        self._streams = (*(other for other in self._streams if other is not stream), wider)
        return wider


class SomeRowsDraws(RowDraws):
    """Draws random numbers for some rows of a `Draws`; see `Draws.of_rows`."""

    def __init__(self, draws: Draws, rows: NDArray[np.int64]) -> None:
        self.n_rows = len(rows)
        self._draws, self._rows = draws, rows
        self._mask = np.zeros(draws.n_rows, dtype=np.bool_)
        self._mask[rows] = True

    def random(self) -> Numbers:
        return self._drawn(self._draws.random)

    def normal(self, k: int) -> Numbers:
        return self._drawn(lambda: self._draws.normal(k))

    def _drawn(self, draw: Callable[[], Numbers]) -> Numbers:
        self._draws.only(self._mask)
        try:
            return draw()[self._rows]
        finally:
            self._draws.only(None)


class PreparedDraws:
    """The first numbers of many trajectories; see `Draws.prepare`.

    Attributes:
        seeds: Their seeds.
        streams: The streams of the numbers.
        tables: For each stream, the columns for `Draws.begin`; the last is each trajectory's buffer row.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = seeds

    def compute(self, streams: tuple[_NumberStream, ...]) -> None:
        """Compute the first numbers of these streams."""
        self.streams = streams
        self.tables = [
            (stream.rows, stream.at_view, stream.begins, list(stream.first(self.seeds))) for stream in streams
        ]


class _NumberStream:
    """Numbers of one kind, computed ahead for each row.

    A row of the buffer ends with its stream's key and the stream position of its first number, so copying a single
    buffer row starts a trajectory.

    Attributes:
        flat: The buffer as one array; `rows` are its rows (size + 2,), `begins` their first positions.
        at: (n,) each row's next position in `flat`; setting a single value is faster in `at_view`.
        left: The least number of unused numbers of all rows.
        windows: By k, a view (…, k) of `flat` from each position on, and n times k.
    """

    def __init__(self, compute: _Compute, keys: Words, positions: Words, size: int) -> None:
        self._compute, self.size = compute, size
        self._numbers = np.empty((len(keys), size + 2))
        self._words = self._numbers.view(np.uint64)
        self._words[:, -2] = keys
        self.rows = list(self._numbers)
        self.flat = self._numbers.reshape(-1)
        self.begins = list(range(0, self.flat.size, size + 2))
        self.at = np.array(self.begins)
        self.at_view = memoryview(self.at)  # type: ignore[arg-type]
        self.fill(positions)
        self.ones = np.ones_like(self.at)
        self.windows: dict[int, tuple[Numbers, NDArray[np.int64]]] = {}

    @property
    def keys(self) -> Words:
        return self._words[:, -2]

    def positions(self) -> Words:
        """Return each row's next position in its stream."""
        return self._words[:, -1] + (self.at - self.begins).astype(np.uint64)

    def fill(self, positions: Words) -> None:
        """Compute the numbers of all rows from these positions on: a few rows would take as long as all."""
        odd = positions % np.uint64(2)  # normal numbers come in pairs
        self._numbers[:] = self._computed(self.keys, positions - odd)
        self.at[:] = self.begins + odd.astype(np.int64)
        self.left = self.size - int(odd.max())

    def first(self, seeds: Sequence[int]) -> Numbers:
        keys = _keys(seeds, self._compute)
        return self._computed(keys, np.zeros_like(keys))

    def windows_of(self, k: int) -> tuple[Numbers, NDArray[np.int64]]:
        self.windows[k] = found = sliding_window_view(self.flat, k), self.ones * k
        return found

    def _computed(self, keys: Words, positions: Words) -> Numbers:
        numbers = np.empty((len(keys), self.size + 2))
        numbers[:, :-2] = self._compute(keys, positions, self.size)
        words = numbers.view(np.uint64)
        words[:, -2], words[:, -1] = keys, positions
        return numbers


_Compute = Callable[[Words, Words, int], Numbers]
"""Computes numbers (n, size) from keys (n,), even positions (n,), and a size."""


def _size_for(k: int) -> int:
    """Return how many numbers to compute at a time for each row, for draws of k.

    Pairs fill whole vectors of any processor: in a loop's remainder, logarithms and tangents may have other bits, and
    numbers would depend on the number of rows.
    """
    return -(-max(min(_CALLS * k, _MANY), 2 * k) // 32) * 32


def _uniforms(keys: Words, positions: Words, size: int) -> Numbers:
    return _fractions(_mixed(np.add.outer(keys + positions * _GAMMA, _steps(1, size + 1))))


def _normals(keys: Words, positions: Words, size: int) -> Numbers:
    begun = keys + positions * _GAMMA
    # Even and odd words apart: the functions below then run over contiguous, whole vectors.
    radius = _fractions(_mixed(np.add.outer(begun, _steps(1, size, 2))))
    angle = _fractions(_mixed(np.add.outer(begun, _steps(2, size + 1, 2))))
    np.subtract(1.0, radius, radius)  # (0, 1], for the logarithm
    np.log(radius, radius)
    np.multiply(radius, -2.0, radius)
    np.sqrt(radius, radius)
    # Cosine and sine by the tangent of half the angle, a quarter of the time in NumPy.
    tangent = np.tan(np.multiply(angle, np.pi, angle), angle)
    share = np.divide(2.0, 1.0 + tangent * tangent)
    numbers = np.empty((len(keys), size))
    np.multiply(radius, share - 1.0, numbers[:, 0::2])
    np.multiply(radius, np.multiply(tangent, share, tangent), numbers[:, 1::2])
    return numbers


def _keys(seeds: Sequence[int], compute: _Compute) -> Words:
    return _mixed(np.array(seeds, dtype=np.uint64) + _KINDS[compute])


def _steps(*bounds: int) -> Words:
    return np.arange(*bounds, dtype=np.uint64) * _GAMMA


_KINDS: dict[_Compute, np.uint64] = dict(zip((_uniforms, _normals), _steps(5, 7), strict=True))
"""The numbers continue those of `seeding.SeedUse`."""


def _mixed(words: Words) -> Words:
    """Mix the bits of words in place, and return them."""
    shifted = np.right_shift(words, np.uint64(30))
    np.bitwise_xor(words, shifted, words)
    np.multiply(words, np.uint64(0xBF58476D1CE4E5B9), words)
    np.right_shift(words, np.uint64(27), shifted)
    np.bitwise_xor(words, shifted, words)
    np.multiply(words, np.uint64(0x94D049BB133111EB), words)
    np.right_shift(words, np.uint64(31), shifted)
    return np.bitwise_xor(words, shifted, words)


def _fractions(words: Words) -> Numbers:
    """Return numbers in [0, 1) from the upper 53 bits of words."""
    np.right_shift(words, np.uint64(11), words)
    return np.multiply(words.view(np.int64), 2.0**-53)  # signed integers convert faster
