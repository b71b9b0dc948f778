"""Decide what follows from what went wrong in a call: an error, or another run."""

from __future__ import annotations

from operator import attrgetter

from streamsampler.data.statistics import Stats
from streamsampler.errors import SamplerError, WorkerError
from streamsampler.samplers.failures import dropped_error
from streamsampler.samplers.session import Session
from streamsampler.samplers.setbacks import Setback
from streamsampler.samplers.supervisor import logger
from streamsampler.samplers.updates import Snapshot
from streamsampler.scheduling.gathering import Gathering
from streamsampler.scheduling.plans import Endless

__all__ = ["Decisions"]

_NOT_NEEDED = "%s; the call did not need it"


class Decisions:
    """Decide about the setbacks of one call.

    A setback in a trajectory is decided about when `gathering` reports that its turn has come; until then it uses up no
    quota. A setback outside of trajectories (in a constructor, an update, while a worker was idle) is decided about at
    once.

    Args:
        gathering: The call's gathering, which holds back the setbacks in trajectories.
        session: What outlives the call.
        snapshot: The updates that were in force before the call's own: restored if one of its own is refused.
        stats: The call's accounts.
        version: The call's agent version.
    """

    def __init__(self, gathering: Gathering, session: Session, snapshot: Snapshot, stats: Stats, version: int) -> None:
        self._gathering = gathering
        self._session = session
        self._snapshot = snapshot
        self._stats = stats
        self._version = version
        self._is_stream = isinstance(gathering.plan, Endless)
        self._outside: list[Setback] = []
        self._refusal: SamplerError | None = None

    def add(self, setback: Setback, *, needed: bool = True) -> None:
        """Add a setback outside of this call's trajectories.

        Args:
            setback: What happened.
            needed: Whether it counts: not if it happened in a trajectory of an older call.
        """
        if needed:
            self._outside.append(setback)
        else:
            logger.warning(_NOT_NEEDED, setback)

    def refuse(self, error: SamplerError | None) -> None:
        """End the call with `error`, if there is one, because its environment or agent cannot be used."""
        self._refusal = self._refusal or error

    def decide(self) -> None:
        """Decide about everything whose turn it is, in an order that does not depend on timing.

        Raises:
            WorkerError: The call ends.
        """
        if self._refusal is not None:
            self._session.restore_updates(self._snapshot)
            raise self._refusal
        if self._outside:
            self._decide_outside()
        gathering = self._gathering
        if self._is_stream and gathering.result.has_segments:
            return  # the consumer gets what comes before first
        while (held := gathering.result.due) is not None:
            self._stats.failed_trajectories += 1
            if (error := self._error_of(held.reason)) is not None:
                gathering.result.remove_failure(held)
                raise error
            gathering.retry(held)
        if (last := gathering.result.one_too_many) is not None:
            raise dropped_error(last, self._version, gathering.result.n_dropped, gathering.n_trajectories)

    def _decide_outside(self) -> None:
        setbacks, self._outside = sorted(self._outside, key=attrgetter("worker")), []
        for setback in setbacks:
            if self._gathering.complete:
                # If an update is the cause, the next call, which sends this worker all updates, fails.
                logger.warning(_NOT_NEEDED, setback)
                continue
            self._stats.failed_trajectories += 1
            if (error := self._error_of(setback)) is not None:
                if setback.is_of_an_update:
                    self._session.restore_updates(self._snapshot)
                raise error

    def _error_of(self, setback: Setback) -> WorkerError | None:
        return self._session.supervisor.decide(setback)

    def end(self) -> None:
        """Log the losses that did not count: their workers are replaced all the same."""
        for held in self._gathering.result.held_failures():
            if not held.final:
                logger.warning(_NOT_NEEDED, held.reason)
