"""Add up returns and lengths of trajectories, without keeping the trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import sums
from streamsampler.data.manifest import Shard, read_manifest
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.data.shards import ShardFiles

Values = Sequence[float] | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Spread:
    """Mean and spread of some numbers.

    Attributes:
        n: How many there are.
        mean: Their mean.
        squares: The sum of the squares of their distances from it.
        minimum: Their minimum.
        maximum: Their maximum.
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    @classmethod
    def of(cls, values: Values) -> Spread:
        """Return the spread of some numbers."""
        array = np.asarray(values, dtype=np.float64)
        if not len(array):
            return cls()
        # Rewards may be infinite or NaN; that is not for NumPy to comment on.
        with np.errstate(all="ignore"):
            mean = array.mean()
            distances = array - mean
            squares = (distances * distances).sum()
        return cls(len(array), float(mean), float(squares), float(array.min()), float(array.max()))

    def __add__(self, other: Spread) -> Spread:
        """Return the spread of both: Chan, Golub and LeVeque, 1979."""
        if not (self.n and other.n):
            return self if self.n else other
        n, distance = self.n + other.n, other.mean - self.mean
        return Spread(
            n,
            self.mean + distance * other.n / n,
            self.squares + other.squares + distance * distance * self.n * other.n / n,
            float(np.minimum(self.minimum, other.minimum)),
            float(np.maximum(self.maximum, other.maximum)),
        )

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean; None for fewer than two numbers, and where it is no number."""
        return None if self.n < 2 else _finite(math.sqrt(self.squares / (self.n - 1)) / math.sqrt(self.n))

    def facts(self) -> dict[str, float | None]:
        """Mean, minimum and maximum; None where there is no such number."""
        names = ("mean", "minimum", "maximum")
        return {name: _finite(getattr(self, name)) if self.n else None for name in names}


def _finite(number: float) -> float | None:
    """Return a number that JSON has."""
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Tally:
    """The totals of some trajectories.

    Attributes:
        returns: The spread of their returns.
        lengths: The spread of their lengths.
        timesteps: The timesteps of all of them.
    """

    returns: Spread = Spread()
    lengths: Spread = Spread()
    timesteps: int = 0

    @classmethod
    def of(cls, lengths: np.ndarray[Any, Any], rewards: np.ndarray[Any, Any]) -> Tally:
        """Return the tally of trajectories with these lengths, and these rewards of all their timesteps."""
        return cls.of_values(sums(rewards, lengths), lengths)

    @classmethod
    def of_values(cls, returns: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> Tally:
        """Return the tally of trajectories with these returns and lengths."""
        return cls(Spread.of(returns), Spread.of(lengths), int(lengths.sum()))

    @classmethod
    def of_batch(cls, batch: TrajectoryBatch[Any, Any] | None) -> Tally:
        """Return the tally of a batch; None is an empty one."""
        return cls() if batch is None else cls.of(batch.lengths, batch.rewards)

    @classmethod
    def of_policies(cls, batch: TrajectoryBatch[Any, Any] | None) -> dict[str, Tally]:
        """Return the tallies of what each policy played, by name; none of one agent alone."""
        several = batch.policies if isinstance(batch, MultiAgentBatch) else {}
        return {name: cls.of(each.lengths, each.raw_rewards) for name, each in several.items()}

    @classmethod
    def of_folder(cls, folder: Path) -> tuple[Tally, int]:
        """Return the tally of a folder's shards that are not damaged, and how many shards there are.

        Raises:
            StorageError: It is no folder of shards.
        """
        files = ShardFiles(folder, read_manifest(folder))
        tallies = [cls()]

        def add(number: int, shard: Shard) -> None:
            arrays = files.read(number, shard, "rewards")
            tallies[0] += cls.of(arrays["lengths"], arrays["rewards"])

        shards, _ = files.survey(add)
        return tallies[0], len(shards)

    def facts(self) -> dict[str, Any]:
        """Return amounts, returns and lengths for programs; None where there is no such number."""
        return {
            "trajectories": self.trajectories,
            "timesteps": self.timesteps,
            "return": {**self.returns.facts(), "standard_error": self.returns.standard_error},
            "length": self.lengths.facts(),
        }

    @property
    def trajectories(self) -> int:
        """How many trajectories there are."""
        return self.lengths.n

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.returns + other.returns, self.lengths + other.lengths, self.timesteps + other.timesteps)
