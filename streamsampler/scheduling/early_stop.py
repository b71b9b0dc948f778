"""Decide how many timesteps of a ticket suffice, and keep what arrived of blocks that were stopped early. Pure.

This concerns workers that run the trajectories of a block together: their tickets are whole blocks, which may bring
more than is missing.
"""

from __future__ import annotations

import math

from streamsampler.scheduling.throughput import Throughput

__all__ = ["EarlyStops"]

CAUTION = 2.0, 0.05
"""How much more than expected a ticket must bring while earlier ones are in flight: so many standard deviations of what
those bring, and such a share of it, since known lengths may be out of date. A block that stops too early is run again
from its start; one that stops late costs the rest of a few trajectories."""


class EarlyStops:
    """Track how much is expected of the tickets in flight.

    Args:
        timesteps: How many the call needs in all; None if no ticket is stopped early.

    Attributes:
        n_expected: How many new trajectories are expected of all tickets in flight.
        partial: The last ticket, if fewer trajectories are expected of it than it has; or None.
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
        """Whether tickets may be stopped early."""
        return self._timesteps is not None

    def enough_of(self, indices: range) -> int:
        """Return how many timesteps of a ticket's first trajectories suffice; 0 if all are needed."""
        return self._enough.get(indices, 0)

    def arrived_of(self, first: int) -> tuple[int, int]:
        """Return the trajectories and timesteps that arrived of the stopped block that begins with `first`."""
        return self._short.get(first, (0, 0))

    def add(self, indices: range, enough: int, expected: int) -> None:
        """Track a ticket.

        Args:
            indices: Its indices.
            enough: How many timesteps suffice.
            expected: How many new trajectories are expected of it.
        """
        if enough:
            self._enough[indices] = enough
        could = len(indices) - self.arrived_of(indices[0])[0]
        if expected < could:
            self.partial = indices
        self._expected[indices] = min(expected, could)
        self.n_expected += self._expected[indices]

    def add_copy(self, indices: range, n_timesteps: int) -> None:
        """Track a copy of a ticket; the result has `n_timesteps`."""
        if self._timesteps is not None:
            self._enough[indices] = self.enough_without_others(indices, n_timesteps)

    def remove(self, indices: range) -> None:
        """Forget a ticket that is no longer in flight."""
        self._enough.pop(indices, None)
        if self.partial == indices:
            self.partial = None
        self.n_expected -= self._expected.pop(indices)

    def record_stop(self, first: int, n_trajectories: int, n_timesteps: int) -> None:
        """Keep what arrived of the block that begins with index `first`."""
        if n_trajectories:
            self._short[first] = n_trajectories, n_timesteps

    def pop_arrived(self, first: int) -> tuple[int, int]:
        """Forget and return what arrived before of a block that was run again."""
        return self._short.pop(first, (0, 0))

    def enough_without_others(self, indices: range, n_timesteps: int) -> int:
        """Return how many timesteps of a ticket suffice after a prefix of `n_timesteps`, whatever else is in flight."""
        if self._timesteps is None:
            return 0
        return self._timesteps - n_timesteps + self.arrived_of(indices[0])[1]

    def enough_with_others(self, indices: range, n_timesteps: int, n_others: int, throughput: Throughput) -> int:
        """Return how many timesteps suffice after `n_timesteps` that arrived and `n_others` trajectories in flight."""
        if self._timesteps is None:
            return 0
        others = n_others * (throughput.timesteps or 1.0)
        deviations, share = CAUTION
        missing = self._timesteps - n_timesteps - others
        missing += deviations * throughput.spread * math.sqrt(n_others) + share * others
        return max(1, math.ceil(missing - 1e-6)) + self.arrived_of(indices[0])[1]
