"""What the environment said, in batches whose observations or rewards were filtered."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.data import trees

__all__ = ["RawData", "RawRows", "sums"]


class RawRows(NamedTuple):
    """The raw data of a filtered batch.

    Attributes:
        observations: Tree of (T, *O).
        last_observations: Tree of (N, *O).
        rewards: (T,) float64.
    """

    observations: Any
    last_observations: Any
    rewards: NDArray[np.float64]

    def select(self, timesteps: Any, rows: Any) -> RawRows:
        """Return the raw data of some timesteps and some trajectories."""
        last = trees.take(self.last_observations, rows)
        return RawRows(trees.take(self.observations, timesteps), last, self.rewards[timesteps])

    @classmethod
    def joined(cls, batches: Sequence[Any]) -> RawRows | None:
        """Return the raw data of batches together; None where none of them was filtered."""
        if all(it.raw is None for it in batches):
            return None
        names = ("raw_observations", "raw_last_observations", "raw_rewards")
        observations, last, rewards = (trees.concatenate([getattr(it, name) for it in batches]) for name in names)
        return cls(observations, last, cast("NDArray[np.float64]", rewards))


class RawData:
    """The part of a `TrajectoryBatch` that tells raw data from filtered ones; without filters they are the same."""

    if TYPE_CHECKING:
        observations: Any
        last_observations: Any
        rewards: NDArray[np.float64]
        lengths: NDArray[np.int64]
        raw: RawRows | None

    @property
    def raw_observations(self) -> Any:
        """Tree of (T, *O): what the environment showed; the agent saw `observations`."""
        return self.observations if self.raw is None else self.raw.observations

    @property
    def raw_last_observations(self) -> Any:
        """Tree of (N, *O): what the environment showed last."""
        return self.last_observations if self.raw is None else self.raw.last_observations

    @property
    def raw_rewards(self) -> NDArray[np.float64]:
        """(T,) float64: what the environment gave."""
        return self.rewards if self.raw is None else self.raw.rewards

    @property
    def returns(self) -> NDArray[np.float64]:
        """(N,) float64: the sum of each trajectory's rewards, not discounted; of filtered ones where there is a filter.

        `raw_returns` has those of the environment. Of fragments these are returns of parts of episodes:
        `episode_returns` has those of episodes.
        """
        return sums(self.rewards, self.lengths)

    @property
    def raw_returns(self) -> NDArray[np.float64]:
        """(N,) float64: the sum of each trajectory's raw rewards, not discounted; see `returns`."""
        return sums(self.raw_rewards, self.lengths)

    def unfiltered(self) -> Self:
        """Return the batch as it would be without filters: itself where there were none."""
        raw = self.raw
        if raw is None:
            return self
        return cast(Self, dataclasses.replace(cast(Any, self), **raw._asdict(), raw=None))


def sums(rewards: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sum of the rewards of each trajectory.

    Args:
        rewards: (T,) float64.
        lengths: (N,) int64, which add up to T.

    Returns:
        (N,) float64.
    """
    starts = np.cumsum(lengths) - lengths
    return cast("NDArray[np.float64]", np.add.reduceat(rewards, starts)) if len(lengths) else np.zeros(0)
