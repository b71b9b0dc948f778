"""Find the tasks with significant differences among many tasks (Holm, 1979)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from streamsampler.evaluation.intervals import LEVEL, Interval, Unknown
from streamsampler.evaluation.suites.scores import check_level


@dataclass(frozen=True)
class TaskDifference:
    """The difference of a task among many.

    Attributes:
        interval: The interval at the level of its turn in Holm's method, or the reason for its absence.
    """

    interval: Interval | Unknown

    @property
    def sure(self) -> Literal["better", "worse"] | None:
        """Whether the interval lies above 0, or below; None if it contains 0, or is unknown."""
        if not isinstance(self.interval, Interval) or self.interval.low <= 0 <= self.interval.high:
            return None
        return "better" if self.interval.low > 0 else "worse"


def holm(interval_at: Sequence[Callable[[float], Interval | Unknown]], level: float = LEVEL) -> list[TaskDifference]:
    """Return the significant differences, with a common error rate of `1 - level` (Holm, 1979).

    "A simple sequentially rejective multiple test procedure", with intervals in place of p-values: while k differences
    remain, those are significant whose interval of level 1 - (1 - level) / k excludes 0; the others remain for the next
    turn, until a turn finds none.

    Raises:
        UsageError: `level` is not between 0 and 1.
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
