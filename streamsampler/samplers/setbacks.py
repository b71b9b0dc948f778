"""What went wrong in a worker, and what follows from it when it is its turn."""

from __future__ import annotations

from dataclasses import dataclass

from streamsampler.errors import WorkerError
from streamsampler.protocol.messages import Failure, Phase
from streamsampler.samplers.failures import failure_error, loss_error
from streamsampler.scheduling.restarts import Incident, Losses

__all__ = ["UPDATE_PHASES", "Setback"]

UPDATE_PHASES = {Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE, Phase.ENV_CONSTRUCTION, Phase.CLOSE}
"""What a worker does while it is brought up to date."""


@dataclass(frozen=True, slots=True)
class Setback:
    """An exception of user code, a death or a hang.

    Attributes:
        worker: The worker number.
        failure: What the worker said of an exception; None for a death or a hang.
        exception: The exception itself, where it did not leave this process.
        incident: The loss; None for an exception that is none, and ends the call when it is its turn.
    """

    worker: int
    failure: Failure | None = None
    exception: object = None
    incident: Incident | None = None

    @property
    def final(self) -> bool:
        """Whether it ends the call when it is its turn, whatever the quotas."""
        return self.incident is None

    @property
    def is_of_an_update(self) -> bool:
        """Whether it happened while the worker was brought up to date, so that an update may be at fault."""
        if self.failure is not None:
            return self.failure.phase in UPDATE_PHASES
        # Without a version it had not even begun the call's work.
        return self.incident is not None and self.incident.version is not None and self.incident.phase in UPDATE_PHASES

    def __str__(self) -> str:
        if self.incident is not None:
            return str(self.incident)
        assert self.failure is not None
        where = "" if self.failure.trajectory is None else f" in trajectory {self.failure.trajectory}"
        return f"worker {self.worker} failed while {self.failure.phase}{where}: {self.failure.summary}"

    def verdict(self, losses: Losses) -> WorkerError | None:
        """Return the error that ends the call; None if what was lost is to be run again.

        Args:
            losses: The losses so far: this one is counted now, if it is one.
        """
        verdict = "" if self.incident is None else losses.add(self.incident)
        if verdict is None:
            return None
        history = losses.history() if self.incident is not None else ()
        if self.failure is not None:
            return failure_error(self.worker, self.failure, self.exception, verdict=verdict, history=history)
        assert self.incident is not None
        return loss_error(self.incident, verdict, history)
