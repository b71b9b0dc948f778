"""Find data that may be wrong: NaN, and observations outside their space.

All rows of a ticket are looked at together, when its trajectories have ended, and first only for whether there is
anything: that takes some hundredths of a microsecond for each timestep of a small observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.data.spaces import AnySpace, rows_inside, short, space_leaves
from streamsampler.data.trees import Array, Tree
from streamsampler.protocol.messages import by_position

__all__ = ["Anomaly", "AnomalyFinder"]

_CHUNK = 1 << 14  # numbers
Clean: TypeAlias = Callable[[Array], bool]


@by_position
@dataclass(frozen=True, slots=True)
class Anomaly:
    """What may be wrong with a trajectory.

    Attributes:
        position: Which trajectory of its ticket it is.
        count: How many of its observations (the final one included) and rewards may be wrong.
        timestep: The timestep of the first one; the trajectory's length where that is the final observation.
        what: What that is, with its value.
    """

    position: int
    count: int
    timestep: int
    what: str


class AnomalyFinder:
    """Looks through the observations of one space, and through rewards.

    An observation may be wrong where it holds NaN, or is outside its space: a Box, Discrete, MultiDiscrete or
    MultiBinary, alone or within Dicts and Tuples. A reward may be wrong where it is NaN.

    Args:
        space: The observation space.

    Attributes:
        space: The same.
    """

    def __init__(self, space: AnySpace) -> None:
        self.space = space
        self._clean: dict[str, Clean | None] = {}

    def find(
        self, observations: Tree, last_observations: Tree, rewards: NDArray[np.float64], lengths: NDArray[np.int64]
    ) -> tuple[Anomaly, ...]:
        """Return the trajectories that may be wrong, in order.

        Args:
            observations: Tree of (t, *O).
            last_observations: Tree of (n, *O).
            rewards: (t,).
            lengths: (n,), which add up to t.
        """
        doubts = [*self._doubts(observations, last=False), *self._doubts(last_observations, last=True)]
        if rewards.size and np.isnan(rewards.min()):
            doubts.append(_Doubt(np.isnan(rewards), lambda _: "the reward is nan", is_reward=True))
        return _by_trajectory(doubts, lengths) if doubts else ()

    def _doubts(self, tree: Tree, *, last: bool) -> Iterator[_Doubt]:
        for name, leaf, rows in space_leaves(self.space, tree, "final observation" if last else "observation"):
            if name not in self._clean:
                self._clean[name] = _clean_of(leaf)
            clean = self._clean[name]
            if clean is not None and rows.size and not clean(rows):
                yield _Doubt(~rows_inside(leaf, rows), partial(_describe, name, leaf, rows), is_last=last)


class _Doubt(NamedTuple):
    """Rows that may be wrong.

    Attributes:
        wrong: Which ones.
        describe: Describes what is wrong with one of them.
        is_last: Whether there is one row for each trajectory, and not for each timestep.
        is_reward: Whether they are rewards, and not parts of observations.
    """

    wrong: NDArray[np.bool_]
    describe: Callable[[int], str]
    is_last: bool = False
    is_reward: bool = False


def _describe(name: str, leaf: AnySpace, rows: Array, row: int) -> str:
    value = rows[row]
    if value.dtype.kind == "f" and np.isnan(value).any():
        return f"{name} holds nan: {short(value)}"
    space = " ".join(str(leaf).split())
    return f"{name} is outside its space: {short(value)} is not in {space if len(space) < 100 else space[:96] + '...'}"


def _by_trajectory(doubts: list[_Doubt], lengths: NDArray[np.int64]) -> tuple[Anomaly, ...]:
    ends = np.cumsum(lengths)
    # One entry for each observation, of however many parts, and one for each reward.
    found: dict[tuple[int, int, bool], tuple[Callable[[int], str], int]] = {}
    for doubt in doubts:
        rows = np.flatnonzero(doubt.wrong)
        positions = rows if doubt.is_last else np.searchsorted(ends, rows, side="right")
        timesteps = lengths[rows] if doubt.is_last else rows - (ends - lengths)[positions]
        for position, timestep, row in zip(positions.tolist(), timesteps.tolist(), rows.tolist(), strict=True):
            found.setdefault((position, timestep, doubt.is_reward), (doubt.describe, row))
    counts: dict[int, int] = {}
    first: dict[int, tuple[int, str]] = {}
    for position, timestep, is_reward in sorted(found):
        counts[position] = counts.get(position, 0) + 1
        if position not in first:
            describe, row = found[position, timestep, is_reward]
            first[position] = timestep, describe(row)
    return tuple(Anomaly(position, counts[position], *first[position]) for position in counts)


# --- Whether all rows of a leaf are surely right, quickly


@singledispatch
def _clean_of(_space: AnySpace) -> Clean | None:
    """Return a function that returns whether all rows are surely right; None if nothing can be wrong."""
    return None


@_clean_of.register(gym_spaces.Discrete)
@_clean_of.register(gym_spaces.MultiDiscrete)
@_clean_of.register(gym_spaces.MultiBinary)
def _(space: AnySpace) -> Clean | None:
    return lambda rows: bool(rows_inside(space, rows).all())


@_clean_of.register
def _(space: gym_spaces.Box) -> Clean | None:
    low, high = space.low.ravel(), space.high.ravel()
    if not low.size:
        return None
    lowest, highest = low.min(), high.max()
    if (low == lowest).all() and (high == highest).all():
        return _within_one_interval(lowest, highest)
    return _Within(low, high)


def _within_one_interval(low: Any, high: Any) -> Clean | None:
    kind = low.dtype.kind
    # The least of numbers of which one is NaN is NaN, which is not within anything.
    if kind == "f":
        if low == -np.inf and high == np.inf:
            return lambda rows: not np.isnan(rows.min())
        return lambda rows: bool(low <= rows.min() and rows.max() <= high)
    if kind not in "iu":
        return None
    limits = np.iinfo(low.dtype)
    if low == limits.min and high == limits.max:
        return None
    return lambda rows: bool(low <= rows.min() and rows.max() <= high)


class _Within:
    """Compares rows with bounds that differ from number to number.

    NumPy compares short rows with one row a row at a time; so the bounds are laid out for many rows at once.
    """

    def __init__(self, low: Array, high: Array) -> None:
        n_rows = max(1, _CHUNK // low.size)
        self._low, self._high = np.tile(low, n_rows), np.tile(high, n_rows)

    def __call__(self, rows: Array) -> bool:
        flat, n = rows.reshape(-1), len(self._low)
        for start in range(0, len(flat), n):
            part = flat[start : start + n]
            if not ((part >= self._low[: len(part)]).all() and (part <= self._high[: len(part)]).all()):
                return False
        return True
