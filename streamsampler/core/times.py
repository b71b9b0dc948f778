"""Name the seconds of a worker by their use."""

from __future__ import annotations

import operator
from typing import NamedTuple


class Times(NamedTuple):
    """Where a worker's time went, in seconds.

    Attributes:
        reset: Seeding and resetting, environment and agent; making new ones where a trajectory was left out.
        agent: Choosing actions.
        step: Stepping the environment and recording what it returned. How `agent` and `step` share the time of a
            rollout is estimated from every 64th timestep.
        sending: Serialising and sending rollouts.
        idle: Waiting for work.
        checking: Checking that trajectories depend on their seeds alone; see `check` of `Sampler`.
    """

    reset: float = 0.0
    agent: float = 0.0
    step: float = 0.0
    sending: float = 0.0
    idle: float = 0.0
    checking: float = 0.0

    def plus(self, other: Times) -> Times:
        """Return the sums."""
        return Times(*map(operator.add, self, other))

    @property
    def rollout(self) -> float:
        """What rollouts took."""
        return self.reset + self.agent + self.step
