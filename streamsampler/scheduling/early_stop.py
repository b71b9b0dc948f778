"""How many timesteps of a ticket suffice, and what is known of blocks that were cut short: pure.

It is about tickets whose trajectories are run side by side: a ticket is whole blocks, and may be more than is missing.
"""

from __future__ import annotations

import math

from streamsampler.scheduling.throughput import Throughput

__all__ = ["EarlyStops"]

CAUTION = 2.0, 0.05
"""How much more than is expected to be missing a ticket is to bring, while others before it are under way: so many
standard deviations of what those bring, and such a share of it, since what is known of lengths may be out of date. A
block that was cut too short is run again from its start; one that was cut late costs the rest of a few trajectories."""


class EarlyStops:
    """The terms of the tickets under way.

    Args:
        timesteps: How many are wanted in all; None where no ticket is ever cut short.

    Attributes:
        n_expected: How many new trajectories all tickets under way count for.
        partial: The ticket that less is expected of than it could bring, if there is one: it is the last one.
    """

    def __init__(self, timesteps: int | None) -> None:
        self._timesteps = timesteps
        self._enough: dict[range, int] = {}
        self._expected: dict[range, int] = {}
        self._short: dict[int, tuple[int, int]] = {}  # by a block's first index, trajectories and timesteps of it
        self.n_expected = 0
        self.partial: range | None = None

    @property
    def allowed(self) -> bool:
        """Whether tickets may be cut short."""
        return self._timesteps is not None

    def enough_of(self, indices: range) -> int:
        """How many timesteps of a ticket's first trajectories suffice; 0 where all are wanted."""
        return self._enough.get(indices, 0)

    def arrived_of(self, first: int) -> tuple[int, int]:
        """Trajectories and timesteps that are there of the block that begins with `first`, if it was cut short."""
        return self._short.get(first, (0, 0))

    def add(self, indices: range, enough: int, expected: int) -> None:
        """Take note of a ticket.

        Args:
            indices: Its indices.
            enough: How many timesteps suffice.
            expected: How many new trajectories are wanted of it.
        """
        if enough:
            self._enough[indices] = enough
        could = len(indices) - self.arrived_of(indices[0])[0]
        if expected < could:
            self.partial = indices
        self._expected[indices] = min(expected, could)
        self.n_expected += self._expected[indices]

    def add_copy(self, indices: range, n_timesteps: int) -> None:
        """Take note of a copy of a ticket, where a prefix of `n_timesteps` is there."""
        if self._timesteps is not None:
            self._enough[indices] = self.enough_without_others(indices, n_timesteps)

    def remove(self, indices: range) -> None:
        """Forget a ticket that is no longer under way."""
        self._enough.pop(indices, None)
        if self.partial == indices:
            self.partial = None
        self.n_expected -= self._expected.pop(indices)

    def record_stop(self, first: int, n_trajectories: int, n_timesteps: int) -> None:
        """Take note of what is there of the block that begins with index `first`."""
        if n_trajectories:
            self._short[first] = n_trajectories, n_timesteps

    def pop_arrived(self, first: int) -> tuple[int, int]:
        """Take note that the block which begins with `first` was run again; returns what was there before."""
        return self._short.pop(first, (0, 0))

    def enough_without_others(self, indices: range, n_timesteps: int) -> int:
        """How many timesteps suffice behind a prefix of `n_timesteps`, whatever else is under way."""
        if self._timesteps is None:
            return 0
        return self._timesteps - n_timesteps + self.arrived_of(indices[0])[1]

    def enough_with_others(self, indices: range, n_timesteps: int, n_others: int, throughput: Throughput) -> int:
        """How many timesteps suffice behind `n_timesteps` that are there and `n_others` trajectories under way."""
        if self._timesteps is None:
            return 0
        others = n_others * (throughput.timesteps or 1.0)
        deviations, share = CAUTION
        missing = self._timesteps - n_timesteps - others
        missing += deviations * throughput.spread * math.sqrt(n_others) + share * others
        return max(1, math.ceil(missing - 1e-6)) + self.arrived_of(indices[0])[1]
