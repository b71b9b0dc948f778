"""Derive the seeds of trajectories, and of the random generators within a trajectory.

A trajectory draws everything from its trajectory seed, a fixed function of sampler's seed, agent version and trajectory
index. These numbers are a promise: a changed constant here changes every batch ever sampled.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError

__all__ = [
    "SEED_BITS",
    "Indices",
    "SeedUse",
    "TrajectorySeeds",
    "check_seed",
    "derived_seed",
    "derived_seeds",
    "fresh_seed",
    "seed_of_agent",
]  # fmt: skip

SEED_BITS = 31
_SIZE = 1 << SEED_BITS
_MASK = _SIZE - 1
_MASK_64 = (1 << 64) - 1

# Three rounds, see TrajectorySeeds.
_SHIFTS = 17, 11, 15
_MULTIPLIERS = 0xED5AD4BB, 0xAC4C1B51, 0x31848BAB
_LAST_SHIFT = 14
# From this length, numpy's fixed cost per operation is below Python's cost per seed.
_VECTOR_LENGTH = 20

# The increment of splitmix64, 2**64 divided by the golden ratio: its finaliser starts from points far apart.
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def fresh_seed() -> int:
    """Draw a seed of 128 bits from the operating system's entropy."""
    entropy = np.random.SeedSequence().entropy
    assert isinstance(entropy, int)
    return entropy


def check_seed(seed: Any) -> int:
    """Check a seed, and return it as a Python integer.

    Args:
        seed: A non-negative integer of any size, or None for a fresh seed.

    Raises:
        UsageError: The seed is negative, or not an integer.
    """
    if seed is None:
        return fresh_seed()
    number = _as_index(seed)
    if number is None:
        raise UsageError(f"seed must be a non-negative integer or None, not {seed!r} ({type(seed).__name__})")
    if number < 0:
        raise UsageError(f"seed must not be negative, but is {number}")
    return number


def _as_index(value: Any) -> int | None:
    """Return an integer of any type as a Python integer; None for a bool or any other value."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


Indices: TypeAlias = range | Sequence[int] | NDArray[np.int64]
"""Trajectory indices."""


class TrajectorySeeds:
    """The trajectory seeds of one agent version.

    A trajectory seed is a keyed permutation of the 31-bit integers, applied to the trajectory index. A permutation
    gives no two trajectories of a version the same seed, and every environment accepts 31 bits, even for
    ``np.random.RandomState`` or a C ``int``. ``numpy.random.SeedSequence`` derives the keys from the sampler's seed and
    the agent version.

    Each of the three rounds adds a key, xors the number with its own upper bits, and multiplies by an odd constant: all
    invertible modulo 2**31. Shifts and multipliers are from Chris Wellons' ``triple32``, found by his hash prospector
    (a search for good avalanche in mixers of the kind Thomas Mueller made popular).

    Attributes:
        seed: The sampler's seed.
        agent_version: The agent version.
    """

    __slots__ = ("_rounds", "agent_version", "seed")

    def __init__(self, seed: int, agent_version: int) -> None:
        self.seed = seed
        self.agent_version = agent_version
        words = np.random.SeedSequence(seed, spawn_key=(agent_version,)).generate_state(len(_SHIFTS), np.uint32)
        self._rounds = tuple(zip((words & np.uint32(_MASK)).tolist(), _SHIFTS, _MULTIPLIERS, strict=True))

    def __repr__(self) -> str:
        return f"TrajectorySeeds(seed={self.seed}, agent_version={self.agent_version})"

    def __getitem__(self, index: int) -> int:
        """Return the seed, less than 2**31, of a trajectory index, likewise less than 2**31."""
        if not 0 <= index < _SIZE:
            raise _out_of_range(index)
        x = int(index)
        for key, shift, multiplier in self._rounds:
            x = (x + key) & _MASK
            x = ((x ^ (x >> shift)) * multiplier) & _MASK
        return x ^ (x >> _LAST_SHIFT)

    def of(self, indices: Indices) -> list[int]:
        """Return the seeds of trajectory indices, in order, as Python integers."""
        if len(indices) < _VECTOR_LENGTH:
            return list(map(self.__getitem__, indices.tolist() if isinstance(indices, np.ndarray) else indices))
        x = self._checked(indices)
        mask = np.uint64(_MASK)
        # A 31-bit number times a 32-bit constant has 63 bits: no overflow before the mask.
        for key, shift, multiplier in self._rounds:
            x = (x + np.uint64(key)) & mask
            x = ((x ^ (x >> np.uint64(shift))) * np.uint64(multiplier)) & mask
        seeds: list[int] = (x ^ (x >> np.uint64(_LAST_SHIFT))).tolist()
        return seeds

    @staticmethod
    def _checked(indices: Indices) -> NDArray[np.uint64]:
        # The ends of a range suffice; a pass over a long range would cost more than all the rest.
        if isinstance(indices, np.ndarray):
            ends = int(indices.min()), int(indices.max())
        else:
            ends = (indices[0], indices[-1]) if isinstance(indices, range) else (min(indices), max(indices))
        for index in ends:
            if not 0 <= index < _SIZE:
                raise _out_of_range(index)
        if isinstance(indices, range):
            return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64).astype(np.uint64)
        if isinstance(indices, np.ndarray):
            return indices.astype(np.uint64)
        return np.fromiter(indices, dtype=np.uint64, count=len(indices))


def _out_of_range(index: int) -> UsageError:
    return UsageError(
        f"trajectory index {index} is not between 0 and {_SIZE - 1}: one agent version has {_SIZE} trajectories; "
        "call the sampler again for a new version"
    )


class SeedUse(enum.IntEnum):
    """The uses of seeds derived from the trajectory seed; the environment receives the trajectory seed itself."""

    AGENT = 1
    PYTHON = 2
    NUMPY = 3
    TORCH = 4
    PARAMETERS = 5


def derived_seed(trajectory_seed: int, stream: SeedUse) -> int:
    """Derive the seed, less than 2**31, of a trajectory's generator.

    Generators with equal seeds draw equal numbers: an agent with the environment's seed would draw the environment's
    noise. Each generator therefore has its own seed: the upper bits of splitmix64's finaliser (David Stafford's variant
    13), started from the trajectory seed and the generator's number.
    """
    z = (trajectory_seed + _GOLDEN_GAMMA * stream) & _MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return (z ^ (z >> 31)) >> (64 - SEED_BITS)


_FIRST_AGENT = 16  # smaller numbers are values of SeedUse


def seed_of_agent(seed: int, number: int) -> int:
    """Derive the seed of an agent among several from the seed of a lone agent.

    Args:
        seed: `derived_seed(trajectory_seed, SeedUse.AGENT)`.
        number: The agent's position among all possible agents. The first agent gets `seed` itself.
    """
    return derived_seed(seed, _FIRST_AGENT + number) if number else seed  # type: ignore[arg-type]


def derived_seeds(trajectory_seeds: Sequence[int], stream: SeedUse) -> list[int]:
    """Derive the seeds of the same generator for many trajectories; see `derived_seed`."""
    if len(trajectory_seeds) < _VECTOR_LENGTH:
        return list(map(derived_seed, trajectory_seeds, repeat(stream)))
    z = np.array(trajectory_seeds, dtype=np.uint64) + np.uint64(_GOLDEN_GAMMA * stream & _MASK_64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    derived: list[int] = ((z ^ (z >> np.uint64(31))) >> np.uint64(64 - SEED_BITS)).tolist()
    return derived
