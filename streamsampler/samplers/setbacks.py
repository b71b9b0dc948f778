"""What went wrong in a worker, and the error that it ends the call with when its turn comes."""

from __future__ import annotations

from dataclasses import dataclass

from streamsampler.errors import WorkerError
from streamsampler.protocol.messages import Failure, Phase
from streamsampler.samplers.failures import failure_error, loss_error
from streamsampler.scheduling.restarts import Incident, Losses

__all__ = ["UPDATE_PHASES", "Setback"]

UPDATE_PHASES = {Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE, Phase.ENV_CONSTRUCTION, Phase.CLOSE}
"""What a worker does while it takes in updates."""


@dataclass(frozen=True, slots=True)
class Setback:
    """An exception of user code, a death or a hang.

    Attributes:
        worker: The worker number.
        failure: The worker's report of an exception; None for a death or a hang.
        exception: The exception itself, where it did not leave this process.
        incident: The loss; None for an exception that is none, and ends the call when its turn comes.
    """

    worker: int
    failure: Failure | None = None
    exception: object = None
    incident: Incident | None = None

    @property
    def final(self) -> bool:
        """Whether it ends the call when its turn comes, whatever the quotas."""
        return self.incident is None

    @property
    def is_of_an_update(self) -> bool:
        """Whether it happened while the worker took in updates, so that an update may be the cause."""
        if self.failure is not None:
            return self.failure.phase in UPDATE_PHASES
        # Without a version the worker had not begun the call's work.
        return self.incident is not None and self.incident.version is not None and self.incident.phase in UPDATE_PHASES

    def __str__(self) -> str:
        if self.incident is not None:
            return str(self.incident)
        assert self.failure is not None
        where = "" if self.failure.trajectory is None else f" in trajectory {self.failure.trajectory}"
        return f"worker {self.worker} failed while {self.failure.phase}{where}: {self.failure.summary}"

    def count(self, losses: Losses) -> WorkerError | None:
        """Count the loss, if it is one; return the error that ends the call, None if the trajectories are run again."""
        if self.incident is None:
            assert self.failure is not None
            return failure_error(self.worker, self.failure, self.exception)
        quota = losses.add(self.incident)
        if quota is None and not self.incident.hopeless:
            return None
        history = losses.history()
        if self.failure is not None:
            return failure_error(self.worker, self.failure, self.exception, quota=quota, history=history)
        return loss_error(self.incident, quota, history)
