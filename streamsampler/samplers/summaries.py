"""Summarise the trajectories that calls return, and merge the summaries into a sampler's filters."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from streamsampler.data.segments import Segment


class Summaries(NamedTuple):
    """Summaries of consecutive trajectories of one report."""

    pickled: bytes  # those of all its trajectories: see `Filters.summaries`
    start: int  # the position of the first one among them
    stop: int


def summaries_of(segments: Sequence[Segment], *, each: bool = False) -> list[Summaries]:
    """Return the summaries of the trajectories of segments, or those of `each` by themselves; none without filters."""
    found: list[Summaries] = []
    for delivery, start, stop, _ in segments:
        if pickled := delivery.rollouts.summaries:
            bounds = [(i, i + 1) for i in range(start, stop)] if each else [(start, stop)]
            found += [Summaries(pickled, *one) for one in bounds]
    return found


def unpickled(each: Sequence[Summaries]) -> Iterator[tuple[Any, Any]]:
    """Yield the summaries of each trajectory, for `Filters.merged`."""
    pickled, read = b"", list[tuple[Any, Any]]()
    for one in each:
        if one.pickled is not pickled:  # those of one report follow each other
            pickled, read = one.pickled, list(zip(*pickle.loads(one.pickled), strict=True))
        yield from read[one.start : one.stop]
