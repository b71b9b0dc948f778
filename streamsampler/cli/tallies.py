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
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.data.shards import ShardFiles, read_manifest

Values = Sequence[float] | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Spread:
    """Mean and spread of some numbers.

    Attributes:
        n: How many numbers.
        mean: Their mean.
        squares: Sum of their squared distances from the mean.
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
        array = np.asarray(values, dtype=np.float64)
        if not len(array):
            return cls()
        # Infinite and NaN rewards are the user's, and no reason for NumPy's warnings.
        with np.errstate(all="ignore"):
            mean = array.mean()
            distances = array - mean
            squares = (distances * distances).sum()
        return cls(len(array), float(mean), float(squares), float(array.min()), float(array.max()))

    def __add__(self, other: Spread) -> Spread:
        """Combine two spreads (Chan, Golub and LeVeque, 1979)."""
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
        """The standard error of the mean; None if undefined."""
        return None if self.n < 2 else finite(math.sqrt(self.squares / (self.n - 1)) / math.sqrt(self.n))

    def facts(self) -> dict[str, float | None]:
        """Return mean, minimum and maximum; None if undefined."""
        names = ("mean", "minimum", "maximum")
        return {name: finite(getattr(self, name)) if self.n else None for name in names}


def finite(value: Any) -> Any:
    """Return JSON values with None in place of NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Tally:
    """The totals of some trajectories.

    Attributes:
        returns: Spread of the returns.
        lengths: Spread of the lengths.
        timesteps: Total of timesteps.
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
        return cls(Spread.of(returns), Spread.of(lengths), int(lengths.sum()))

    @classmethod
    def of_batch(cls, batch: TrajectoryBatch[Any, Any] | None) -> Tally:
        """Return the tally of a batch; None stands for an empty batch."""
        return cls() if batch is None else cls.of(batch.lengths, batch.rewards)

    @classmethod
    def of_policies(cls, batch: TrajectoryBatch[Any, Any] | None) -> dict[str, Tally]:
        """Return the tally of each policy by name; empty for a single agent."""
        several = batch.policies if isinstance(batch, MultiAgentBatch) else {}
        return {name: cls.of(each.lengths, each.raw_rewards) for name, each in several.items()}

    @classmethod
    def of_folder(cls, folder: Path) -> tuple[Tally, int]:
        """Return the tally of a folder's undamaged shards, and the number of all shards.

        Raises:
            StorageError: The folder has no shards.
        """
        manifest = read_manifest(folder)
        files = ShardFiles(folder, manifest)
        tallies = [cls()]

        def add(number: int) -> None:
            arrays = files.read(number, "rewards")
            tallies[0] += cls.of(arrays["lengths"], arrays["rewards"])

        files.survey(add)
        return tallies[0], len(manifest.shards)

    def facts(self) -> dict[str, Any]:
        """Return amounts, returns and lengths as JSON values; None if undefined."""
        return {
            "trajectories": self.trajectories,
            "timesteps": self.timesteps,
            "return": {**self.returns.facts(), "standard_error": self.returns.standard_error},
            "length": self.lengths.facts(),
        }

    @property
    def trajectories(self) -> int:
        return self.lengths.n

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.returns + other.returns, self.lengths + other.lengths, self.timesteps + other.timesteps)
