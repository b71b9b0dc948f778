"""A worker's seconds, by use."""

from __future__ import annotations

import operator
from typing import NamedTuple


class Times(NamedTuple):
    """Where a worker's time went, in seconds.

    Attributes:
        reset: Seeding and resetting environment and agent; replacing an environment after a dropped trajectory.
        agent: Choosing actions.
        step: Stepping the environment and recording the results. The split between `agent` and `step` is estimated from
            every 64th timestep.
        sending: Serialising and sending reports.
        idle: Waiting for work.
        checking: Running trajectories twice; see `check` of `Sampler`.
    """

    reset: float = 0.0
    agent: float = 0.0
    step: float = 0.0
    sending: float = 0.0
    idle: float = 0.0
    checking: float = 0.0

    def plus(self, other: Times) -> Times:
        return Times(*map(operator.add, self, other))

    @property
    def rollout(self) -> float:
        """Seconds of rollouts: resetting, choosing actions, stepping."""
        return self.reset + self.agent + self.step
