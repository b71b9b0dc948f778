"""Trajectories whose lengths and times were measured, and whose contents follow from their seeds.

They come in two forms that hold the same data: an environment and an agent, and arrays for whole tickets, which
simulated workers hand in without stepping anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from streamsampler.data.info_columns import InfoColumns
from streamsampler.data.recorder import Rollouts

__all__ = ["CARTPOLE", "HALF_CHEETAH", "MEASURED", "ON_POLICY", "SPACES", "Distribution", "Replayed", "chosen"]

SPACES = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)
_LENGTH, _SECONDS = 0x9E3779B1, 0x85EBCA6B  # odd constants that spread seeds over all quantiles


@dataclass(frozen=True)
class Distribution:
    """Describe trajectories by 21 quantiles, 0, 5, … 100 %, each.

    Attributes:
        name: What was measured.
        lengths: Timesteps of a trajectory.
        microseconds: CPU time of a timestep, with the agent's action, averaged over a trajectory.
    """

    name: str
    lengths: tuple[float, ...]
    microseconds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """What a trajectory takes, on average."""
        return 1e-6 * float(np.mean(self.lengths) * np.mean(self.microseconds))

    def lasting(self, seconds: float) -> Distribution:
        """Return the same trajectories, whose timesteps take so much longer that one takes `seconds` on average."""
        times = seconds / self.seconds
        return replace(self, microseconds=tuple(times * each for each in self.microseconds))

    def lengths_of(self, seeds: Sequence[int]) -> NDArray[np.int64]:
        """Return the timesteps of the trajectories that begin from these seeds."""
        return np.rint(_quantiles(self.lengths, seeds, _LENGTH)).astype(np.int64)

    def seconds_of(self, seeds: Sequence[int], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the time that each of these trajectories takes."""
        return 1e-6 * _quantiles(self.microseconds, seeds, _SECONDS) * lengths

    def rollouts(self, seeds: Sequence[int], lengths: NDArray[np.int64]) -> Rollouts:
        """Return the trajectories of a ticket as a worker records them."""
        n, t = len(lengths), int(lengths.sum())
        ends = np.cumsum(lengths)
        times = np.arange(t) - np.repeat(ends - lengths, lengths)
        each = np.array(seeds, np.int64)
        of_steps = np.repeat(each, lengths)
        return Rollouts(
            _observations(of_steps, times),
            _observations(each, lengths),
            (of_steps + times) & 1,
            0.5 * times,
            np.ones(n, np.bool_),
            np.zeros(n, np.bool_),
            lengths,
            InfoColumns(t, {}),
            InfoColumns(t, {}),
            InfoColumns(n, {}),
        )


def _quantiles(table: tuple[float, ...], seeds: Sequence[int], constant: int) -> NDArray[np.float64]:
    shares = (np.array(seeds, np.uint64) * np.uint64(constant) & np.uint64(0xFFFFFFFF)) / 2.0**32
    return np.interp(shares * (len(table) - 1), np.arange(len(table)), table)


def _observations(seeds: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return observations that tell the trajectory and the timestep; each number is exact in float32."""
    observations = np.empty((len(seeds), 4), np.float32)
    for column, numbers in enumerate((seeds & 0xFFFF, seeds >> 16, times & 0xFFFF, times >> 16)):
        observations[:, column] = numbers
    return observations


class Replayed(gymnasium.Env[Any, Any]):
    """An environment with the trajectories of a distribution.

    Args:
        distribution: Whose trajectories.
    """

    observation_space, action_space = SPACES

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin the trajectory of a seed."""
        del options
        assert seed is not None
        self._seed, self._time = seed, 0
        (self._length,) = self._distribution.lengths_of([seed]).tolist()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on to the next timestep."""
        del action
        self._time += 1
        return self._observation(), 0.5 * (self._time - 1), self._time == self._length, False, {}

    def _observation(self) -> NDArray[np.float32]:
        numbers = (self._seed & 0xFFFF, self._seed >> 16, self._time & 0xFFFF, self._time >> 16)
        return np.array(numbers, np.float32)


def chosen(observation: NDArray[np.float32]) -> int:
    """Return the action of the agent that goes with `Replayed`."""
    return int(observation[0] + observation[2]) & 1


CARTPOLE = Distribution(
    "CartPole-v1",
    (9, 13, 16, 18, 20, 21, 23, 24, 26, 27, 28, 30, 31, 33, 34, 36, 39, 42, 46, 56, 115),
    (9.7, 10.2, 10.4, 10.8, 11.4, 12.3, 13.8, 15.3, 16.1, 16.4, 16.7, 17, 17.3, 17.6, 17.9, 18.4, 18.9, 19.7, 21.3,
     23.8, 232),
)  # fmt: skip
"""A NumPy agent that acts at random half of the time; 2,000 trajectories."""

HALF_CHEETAH = Distribution(
    "HalfCheetah-v5",
    (1000,) * 21,
    (51.6, 60.6, 68.2, 68.7, 70.6, 72, 74.9, 76.6, 77.3, 77.7, 78.4, 79.5, 80, 83.6, 84.4, 85.8, 86.4, 86.6, 87, 88,
     88.3),
)  # fmt: skip
"""A NumPy network of two layers of 64; 30 trajectories."""

ON_POLICY = Distribution(
    "learning CartPole-v1",
    (8, 12, 14, 16, 18, 20, 22, 26, 29, 33, 41, 50, 60, 76, 92, 110, 144, 187, 288, 435, 500),
    (80,) * 21,
)
"""All 1,653 trajectories with which `streamsampler.examples.reinforce` learns CartPole; 80 µs for a timestep."""

MEASURED = {"cartpole": CARTPOLE, "half_cheetah": HALF_CHEETAH, "on_policy": ON_POLICY}
