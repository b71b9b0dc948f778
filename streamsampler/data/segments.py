"""The trajectories of reports, as batches are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from streamsampler.data.recorder import Rollouts


class Segment(NamedTuple):
    """Consecutive trajectories of one report that stand together in the result.

    Attributes:
        delivery: What the report brought.
        start: Position of the first one among the trajectories that the report brought.
        stop: One more than the position of the last one.
        indices: Their indices.
    """

    delivery: Delivery
    start: int
    stop: int
    indices: range


@dataclass(slots=True)
class Delivery:
    """What one report brought to the sampler; a `Segment` is a part of it.

    Attributes:
        worker: The worker that ran the trajectories.
        rollouts: The trajectories; arrays in memory that belongs to the engine.
        n_bytes: How many bytes the observations have.
        spaces: The observation and the action space of the worker's environment.
        fingerprint: The bits of the worker's fingerprint; empty where they are not known.
        number: The number of the report.
    """

    worker: int
    rollouts: Rollouts
    n_bytes: int = 0
    spaces: Any = None
    fingerprint: str = ""
    number: int = -1

    def ends_with(self, segment: Segment) -> bool:
        """Whether `segment` is the last one of this delivery."""
        return segment.stop == self.rollouts.n_trajectories
