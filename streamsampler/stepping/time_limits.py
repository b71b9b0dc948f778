"""How long a worker may take for what it does. Pure: no clock."""

from __future__ import annotations

from dataclasses import dataclass

from streamsampler.errors import positive_seconds
from streamsampler.protocol.messages import Phase

__all__ = ["TimeLimits"]

_LEAST_CONSTRUCTION_SECONDS = 60.0


@dataclass(frozen=True)
class TimeLimits:
    """How long a worker may take without a sign of progress, in seconds; None for any time.

    Attributes:
        step: For a step, and for what is neither of the others.
        reset: For a reset.
        construction: From its start until its environments are made.

    Raises:
        UsageError: One of them is no number of seconds above 0.
    """

    step: float | None
    reset: float | None
    construction: float | None

    @classmethod
    def of(
        cls, step_timeout: float | None, reset_timeout: float | None, construction_timeout: float | None
    ) -> TimeLimits:
        """Return the limits that a manager was given; where it was given none, they follow from the others."""
        given = {
            "step_timeout": step_timeout,
            "reset_timeout": reset_timeout,
            "construction_timeout": construction_timeout,
        }
        for name, seconds in given.items():
            if seconds is not None:
                positive_seconds(name, seconds)
        reset = step_timeout if reset_timeout is None else reset_timeout
        longest = max(filter(None, (step_timeout, reset)), default=None)
        if construction_timeout is None and longest is not None:
            construction_timeout = max(_LEAST_CONSTRUCTION_SECONDS, longest)
        return cls(step_timeout, reset, construction_timeout)

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return any(limit is not None for limit in (self.step, self.reset, self.construction))

    def look(self, phase: Phase, seconds: float) -> tuple[bool, float | None]:
        """Look at a worker that has work.

        Args:
            phase: What it does just now.
            seconds: For how long it has shown no progress.

        Returns:
            Whether it hangs; and in how many seconds to look again, None for never. A worker may go on to what has
            another limit without showing it: it is looked at within the shortest limit.
        """
        if phase is Phase.ENV_CONSTRUCTION:
            limit, shortest = self.construction, self.construction
        else:
            limit = self.reset if phase is Phase.RESET else self.step
            shortest = min(filter(None, (self.step, self.reset)), default=None)
        if limit is not None and seconds >= limit:
            return True, 0.0
        if shortest is None:
            return False, None
        left = shortest - seconds
        return False, left if left > 0 else shortest if limit is None else min(shortest, limit - seconds)
