"""Derive the seeds of trajectories, and of the generators that a trajectory draws from.

A trajectory draws everything from one integer: its trajectory seed, a fixed function of the sampler's seed, the agent
version and the trajectory index. The numbers this module gives are part of the package's promise: changing a constant
here changes every batch that was ever sampled.
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

# Of three rounds. See TrajectorySeeds.
_SHIFTS = 17, 11, 15
_MULTIPLIERS = 0xED5AD4BB, 0xAC4C1B51, 0x31848BAB
_LAST_SHIFT = 14
# From here on numpy's fixed cost per operation is less than Python's cost per seed.
_VECTOR_LENGTH = 20

# The increment of splitmix64, 2**64 divided by the golden ratio: far-apart starting points for its finaliser.
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def fresh_seed() -> int:
    """Draw a seed of 128 bits from the operating system's entropy."""
    entropy = np.random.SeedSequence().entropy
    assert isinstance(entropy, int)
    return entropy


def check_seed(seed: Any) -> int:
    """Return the seed that a user gave as a plain integer.

    Args:
        seed: A non-negative integer of any size, or None for a fresh one.

    Returns:
        The seed as a Python integer.

    Raises:
        UsageError: If it is neither.
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
    """Return the Python integer that a value stands for, or None for a bool or anything else that is no integer."""
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

    A trajectory seed is a keyed permutation of the 31-bit integers, applied to the trajectory index. Being a
    permutation, it cannot give two trajectories of one version the same seed; being of 31 bits, every environment takes
    it, also one that hands it to ``np.random.RandomState`` or to a C ``int``. The keys come from the sampler's seed and
    the agent version by way of ``numpy.random.SeedSequence``.

    Each of the three rounds adds a key, xors the number with its own upper bits, and multiplies by an odd constant; all
    of these can be undone modulo 2**31. Shifts and multipliers are the ones that Chris Wellons' hash prospector found
    for his ``triple32`` (a search for good avalanche in mixers of the kind that Thomas Mueller made popular).

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
        """Return the seed of one trajectory.

        Args:
            index: The trajectory index, at least 0 and less than 2**31.

        Returns:
            The trajectory seed, at least 0 and less than 2**31.

        Raises:
            UsageError: If there is no such index.
        """
        if not 0 <= index < _SIZE:
            raise _out_of_range(index)
        x = int(index)
        for key, shift, multiplier in self._rounds:
            x = (x + key) & _MASK
            x = ((x ^ (x >> shift)) * multiplier) & _MASK
        return x ^ (x >> _LAST_SHIFT)

    def of(self, indices: Indices) -> list[int]:
        """Return the seeds of many trajectories, as Python integers.

        Args:
            indices: Trajectory indices, each at least 0 and less than 2**31.

        Returns:
            Their seeds, in the same order.

        Raises:
            UsageError: If one of them is no index.
        """
        if len(indices) < _VECTOR_LENGTH:
            return list(map(self.__getitem__, indices.tolist() if isinstance(indices, np.ndarray) else indices))
        x = self._checked(indices)
        mask = np.uint64(_MASK)
        # A 31-bit number times a 32-bit constant has 63 bits: nothing is lost before the mask.
        for key, shift, multiplier in self._rounds:
            x = (x + np.uint64(key)) & mask
            x = ((x ^ (x >> np.uint64(shift))) * np.uint64(multiplier)) & mask
        seeds: list[int] = (x ^ (x >> np.uint64(_LAST_SHIFT))).tolist()
        return seeds

    @staticmethod
    def _checked(indices: Indices) -> NDArray[np.uint64]:
        # The ends of a range are enough; going through a long one would cost more than all the rest.
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
    """What draws from a seed derived from the trajectory's; the environment gets the trajectory seed itself."""

    AGENT = 1
    PYTHON = 2
    NUMPY = 3
    TORCH = 4
    PARAMETERS = 5


def derived_seed(trajectory_seed: int, stream: SeedUse) -> int:
    """Derive the seed of one of a trajectory's generators.

    Two generators of the same kind seeded alike draw the same numbers. An agent that was given the environment's own
    seed would, with ``default_rng(seed)``, draw the very noise that the environment draws, so each of them gets a
    number of its own: the upper bits of splitmix64's finaliser (David Stafford's variant 13) at a starting point that
    depends on both.

    Args:
        trajectory_seed: The trajectory seed.
        stream: Whose seed to derive.

    Returns:
        An integer, at least 0 and less than 2**31.
    """
    z = (trajectory_seed + _GOLDEN_GAMMA * stream) & _MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return (z ^ (z >> 31)) >> (64 - SEED_BITS)


_FIRST_AGENT = 16  # streams below it have other uses


def seed_of_agent(seed: int, number: int) -> int:
    """Derive the seed of one of several agents of an environment.

    Args:
        seed: What one agent alone would be reset with: `derived_seed(trajectory_seed, Stream.AGENT)`.
        number: The agent's position among all that may take part. The first one gets `seed`.

    Returns:
        An integer, at least 0 and less than 2**31.
    """
    return derived_seed(seed, _FIRST_AGENT + number) if number else seed  # type: ignore[arg-type]


def derived_seeds(trajectory_seeds: Sequence[int], stream: SeedUse) -> list[int]:
    """Derive the seeds of the same generator of many trajectories; see `derived_seed`.

    Args:
        trajectory_seeds: The trajectory seeds.
        stream: Whose seeds to derive.
    """
    if len(trajectory_seeds) < _VECTOR_LENGTH:
        return list(map(derived_seed, trajectory_seeds, repeat(stream)))
    z = np.array(trajectory_seeds, dtype=np.uint64) + np.uint64(_GOLDEN_GAMMA * stream & _MASK_64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    derived: list[int] = ((z ^ (z >> np.uint64(31))) >> np.uint64(64 - SEED_BITS)).tolist()
    return derived
