"""Summaries of returned trajectories, merged into a sampler's filters."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from streamsampler.data.segments import Segment


class Summaries(NamedTuple):
    """Summaries of consecutive trajectories of one report."""

    pickled: bytes  # of all the report's trajectories; see `Filters.summaries`
    start: int
    stop: int


def summaries_of(segments: Sequence[Segment], *, each: bool = False) -> list[Summaries]:
    """Return the summaries of segments, or, if `each`, of every trajectory; empty without filters."""
    found: list[Summaries] = []
    for delivery, start, stop, _ in segments:
        if pickled := delivery.rollouts.summaries:
            bounds = [(i, i + 1) for i in range(start, stop)] if each else [(start, stop)]
            found += [Summaries(pickled, *one) for one in bounds]
    return found


def unpickled(each: Sequence[Summaries]) -> Iterator[tuple[Any, Any]]:
    pickled, read = b"", list[tuple[Any, Any]]()
    for one in each:
        if one.pickled is not pickled:  # a report's summaries are consecutive
            pickled, read = one.pickled, list(zip(*pickle.loads(one.pickled), strict=True))
        yield from read[one.start : one.stop]
