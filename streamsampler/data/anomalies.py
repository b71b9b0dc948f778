"""Find suspect values: NaN, and observations outside their space.

All rows of a ticket are checked at once, after its trajectories have ended. The first pass only answers whether any row
is suspect: some hundredths of a microsecond for each timestep of a small observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.core.by_position import by_position
from streamsampler.data.spaces import AnySpace, row_spec, rows_inside, short, space_leaves
from streamsampler.data.trees import Array, Tree

_CHUNK = 1 << 14  # numbers
Clean: TypeAlias = Callable[[Array], bool]


@by_position
@dataclass(frozen=True, slots=True)
class Anomaly:
    """The suspect values of a trajectory.

    Attributes:
        position: The trajectory's position in its ticket.
        count: The number of suspect observations (with the final observation) and rewards.
        timestep: The first suspect timestep; the trajectory's length for the final observation.
        what: A description of the first.
    """

    position: int
    count: int
    timestep: int
    what: str


class AnomalyFinder:
    """Checks observations of a space, and rewards.

    An observation is suspect if it holds NaN or lies outside its space: a Box, Discrete, MultiDiscrete or MultiBinary,
    alone or within Dicts and Tuples. A reward is suspect if it is NaN.
    """

    def __init__(self, space: AnySpace) -> None:
        self.space = space
        self._clean: dict[str, Clean | None] = {}
        self._of_policies: dict[str, AnomalyFinder] = {}

    def find_in(self, rollouts: Any) -> tuple[Anomaly, ...]:
        """Return the anomalies of `Rollouts`, at most 1 for each trajectory, in order."""
        if rollouts.policies:
            return self._find_of_agents(rollouts.policies)
        return self.find(rollouts.observations, rollouts.last_observations, rollouts.rewards, rollouts.lengths)

    def _find_of_agents(self, policies: Sequence[Any]) -> tuple[Anomaly, ...]:
        found: dict[int, Anomaly] = {}
        for each in policies:
            agents = each.known or list(self.space.spaces)  # type: ignore[attr-defined]
            if each.policy not in self._of_policies:
                space = each.spaces[0] if each.known else self.space[agents[each.agents[0]]]  # type: ignore[index]
                self._of_policies[each.policy] = AnomalyFinder(space)
            for one in self._of_policies[each.policy].find_in(each.rollouts):
                episode, agent = int(each.episodes[one.position]), agents[each.agents[one.position]]
                mine = Anomaly(episode, one.count, one.timestep, f"agent {agent!r}: {one.what}")
                first = min(found.get(episode, mine), mine, key=attrgetter("timestep"))
                count = one.count + (found[episode].count if episode in found else 0)
                found[episode] = replace(first, count=count)
        return tuple(found[episode] for episode in sorted(found))

    def find(
        self, observations: Tree, last_observations: Tree, rewards: NDArray[np.float64], lengths: NDArray[np.int64]
    ) -> tuple[Anomaly, ...]:
        """Return the anomalies of n trajectories, at most 1 for each, in order."""
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
    """Suspect rows of an array: `wrong` is a mask, `describe` describes a row by its number.

    Rows are timesteps or, if `is_last`, trajectories (final observations).
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
    # An observation counts once, however many of its leaves are suspect; so does a reward.
    found: dict[tuple[int, int, bool], tuple[Callable[[int], str], int]] = {}
    for doubt in doubts:
        rows = np.flatnonzero(doubt.wrong)
        positions = rows if doubt.is_last else np.searchsorted(ends, rows, side="right")
        timesteps = lengths[rows] if doubt.is_last else rows - (ends - lengths)[positions]
        for position, timestep, row in zip(positions.tolist(), timesteps.tolist(), rows.tolist(), strict=True):
            found.setdefault((position, timestep, doubt.is_reward), (doubt.describe, row))
    anomalies = []
    for position, of_one in groupby(sorted(found), key=itemgetter(0)):
        first, *others = of_one
        describe, row = found[first]
        anomalies.append(Anomaly(position, 1 + len(others), first[1], describe(row)))
    return tuple(anomalies)


def _clean_of(space: AnySpace) -> Clean | None:
    """Return a fast check of all rows of a leaf; None if no value can be invalid."""
    if row_spec(space)[1].hasobject:
        return None
    if not isinstance(space, gym_spaces.Box):
        return lambda rows: bool(rows_inside(space, rows).all())
    low, high = space.low.ravel(), space.high.ravel()
    if not low.size:
        return None
    lowest, highest = low.min(), high.max()
    if (low == lowest).all() and (high == highest).all():
        return _within_one_interval(lowest, highest)
    return _within(low, high)


def _within_one_interval(low: Any, high: Any) -> Clean | None:
    kind = low.dtype.kind
    # If any number is NaN, so is the minimum, and no comparison with NaN is true.
    if kind == "f" and low == -np.inf and high == np.inf:
        return lambda rows: not np.isnan(rows.min())
    if kind not in "fiu" or (kind != "f" and (low, high) == (np.iinfo(low.dtype).min, np.iinfo(low.dtype).max)):
        return None
    return lambda rows: bool(low <= rows.min() and rows.max() <= high)


def _within(low: Array, high: Array) -> Clean:
    """Return a check against different bounds for each element.

    NumPy broadcasts a short row row by row. The bounds are tiled for many rows at once instead.
    """
    n_rows = max(1, _CHUNK // low.size)
    lows, highs = np.tile(low, n_rows), np.tile(high, n_rows)

    def clean(rows: Array) -> bool:
        flat = rows.reshape(-1)
        parts = (flat[start : start + len(lows)] for start in range(0, len(flat), len(lows)))
        return all((part >= lows[: len(part)]).all() and (part <= highs[: len(part)]).all() for part in parts)

    return clean
