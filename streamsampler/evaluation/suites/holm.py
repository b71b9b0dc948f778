"""Find the tasks whose differences are sure, although many tasks are looked at (Holm, 1979)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from streamsampler.evaluation.intervals import LEVEL, Interval, Unknown
from streamsampler.evaluation.suites.scores import check_level


@dataclass(frozen=True)
class TaskDifference:
    """What is known of one task's difference, as one of many.

    Attributes:
        interval: Its interval at the level at which Holm's method judged it, or why there is none.
    """

    interval: Interval | Unknown

    @property
    def sure(self) -> Literal["better", "worse"] | None:
        """Whether the interval is above 0, or below; None where it contains 0, or there is none."""
        if not isinstance(self.interval, Interval) or self.interval.low <= 0 <= self.interval.high:
            return None
        return "better" if self.interval.low > 0 else "worse"


def holm(interval_at: Sequence[Callable[[float], Interval | Unknown]], level: float = LEVEL) -> list[TaskDifference]:
    """Return which differences are sure: as often as `level` says, none is that is 0 (Holm, 1979).

    "A simple sequentially rejective multiple test procedure", with intervals in the place of p-values: where k
    differences are left, those are sure whose interval of level 1 - (1 - level) / k does not contain 0; then again with
    those that are left, until no further one is.

    Args:
        interval_at: For each difference, the function that returns its interval at a level.
        level: How often all that are called sure are to be so.

    Raises:
        UsageError: `level` is no share.
    """
    check_level(level)
    found: dict[int, TaskDifference] = {}
    left = list(range(len(interval_at)))
    while left:
        at = 1 - (1 - level) / len(left)
        judged = {number: TaskDifference(interval_at[number](at)) for number in left}
        found |= judged
        unsure = [number for number in left if judged[number].sure is None]
        if len(unsure) == len(left):
            break
        left = unsure
    return [found[number] for number in range(len(interval_at))]
