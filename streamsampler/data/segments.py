"""The parts of reports from which batches are assembled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from streamsampler.data.recorder import Rollouts


class Segment(NamedTuple):
    """Consecutive trajectories of a report, adjacent in the batch: positions `start` to `stop`, and their indices."""

    delivery: Delivery
    start: int
    stop: int
    indices: range


@dataclass(slots=True)
class Delivery:
    """The trajectories of a report; a `Segment` is a part of it.

    Attributes:
        worker: The worker number.
        rollouts: The trajectories; arrays in the engine's memory.
        n_bytes: The size of the observations in bytes.
        spaces: The worker's observation and action space.
        fingerprint: The worker's fingerprint of floating-point results; empty if unknown.
        number: The report's number.
    """

    worker: int
    rollouts: Rollouts
    n_bytes: int = 0
    spaces: Any = None
    fingerprint: str = ""
    number: int = -1

    def ends_with(self, segment: Segment) -> bool:
        return segment.stop == self.rollouts.n_trajectories
