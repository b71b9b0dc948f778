"""Keep a sampler's filters, and merge into them what calls return."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from streamsampler.filters.base import Filters
from streamsampler.scheduling.result import Segment

__all__ = ["Filtering", "Summaries", "summaries_of"]


class Summaries(NamedTuple):
    """Summaries of consecutive trajectories of one report.

    Attributes:
        pickled: Those of all its trajectories, pickled: see `Filters.summaries`.
        start: Position of the first one among them.
        stop: One more than the position of the last one.
    """

    pickled: bytes
    start: int
    stop: int


def summaries_of(segments: Sequence[Segment], *, each: bool = False) -> list[Summaries]:
    """Return the summaries of the trajectories of segments; none without filters.

    Args:
        segments: The segments.
        each: Whether to return those of each trajectory by themselves.
    """
    found: list[Summaries] = []
    for delivery, start, stop, _ in segments:
        if pickled := delivery.rollouts.summaries:
            bounds = [(i, i + 1) for i in range(start, stop)] if each else [(start, stop)]
            found += [Summaries(pickled, *one) for one in bounds]
    return found


class Filtering:
    """The filters of a sampler, over all its calls.

    Args:
        filters: Those of the first version; false for none.
    """

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self._returned: list[Summaries] = []

    def add(self, summaries: Sequence[Summaries]) -> None:
        """Add what was returned, in order."""
        self._returned += summaries

    @property
    def latest(self) -> Filters:
        """The filters with the statistics of all that was returned so far."""
        if self._returned:
            # Only then are they forgotten: a user's merge may raise.
            self._filters = self._filters.merged(_unpickled(self._returned))
            self._returned = []
        return self._filters


def _unpickled(each: Sequence[Summaries]) -> Iterator[tuple[Any, Any]]:
    pickled, read = b"", list[tuple[Any, Any]]()
    for one in each:
        if one.pickled is not pickled:  # those of one report follow each other
            pickled, read = one.pickled, list(zip(*pickle.loads(one.pickled), strict=True))
        yield from read[one.start : one.stop]
