"""Decide what follows from what went wrong in a call: an error, or another run."""

from __future__ import annotations

from operator import attrgetter

from streamsampler.data.statistics import Stats
from streamsampler.errors import SamplerError
from streamsampler.protocol.messages import Answer, Checked, Failure, Fingerprint
from streamsampler.samplers.session import Session
from streamsampler.samplers.setbacks import Setback, WorkerRecord, dropped_error, kernels_error
from streamsampler.samplers.supervisor import logger
from streamsampler.samplers.updates import Snapshot
from streamsampler.scheduling.gathering import Gathering
from streamsampler.scheduling.plans import Streamed

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
        self._is_stream = isinstance(gathering.plan, Streamed)
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

    def refuse(self, error: SamplerError) -> None:
        """End the call with `error`, because its environment or agent cannot be used."""
        self._refusal = self._refusal or error

    def take_checked(self, record: WorkerRecord, answer: Answer, checked: Checked) -> None:
        """Warn if several workers' environments write to the same files."""
        if isinstance(answer, Failure):
            self._stats.take_checked(checked)
        for warning in self._session.checks.shared_files(record, self._session.records, checked.files):
            logger.warning("%s", warning)

    def take_fingerprint(self, worker: int, found: Fingerprint) -> None:
        """Record how a worker computes; warn if others compute otherwise, or end the call."""
        session = self._session
        if found.is_guest and "torch=" in found.bits and not session.need("torch"):
            found = found.without_torch()
        if refused := session.fingerprints.take(worker, found):
            self.refuse(kernels_error(worker, refused))
        self._warn_of_kernels(session.engine.n_workers)

    def _warn_of_kernels(self, n_expected: int = 0) -> None:
        if text := self._session.fingerprints.warning(n_expected):
            logger.warning("%s", text)

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
        gathering, supervisor = self._gathering, self._session.supervisor
        if self._is_stream and gathering.result.has_segments:
            return  # the consumer gets what comes before first
        while (held := gathering.result.due) is not None:
            self._stats.failed_trajectories += 1
            if (error := supervisor.decide(held.reason)) is not None:
                gathering.result.remove_failure(held)
                raise error
            gathering.retry(held)
        if (last := gathering.result.one_too_many) is not None:
            raise dropped_error(last, self._version, gathering.result.n_dropped, gathering.result.n_trajectories)

    def _decide_outside(self) -> None:
        setbacks, self._outside = sorted(self._outside, key=attrgetter("worker")), []
        supervisor = self._session.supervisor
        for setback in setbacks:
            if self._gathering.result.complete:
                # If an update is the cause, the next call, which sends this worker all updates, fails.
                logger.warning(_NOT_NEEDED, setback)
                continue
            self._stats.failed_trajectories += 1
            if (error := supervisor.decide(setback)) is not None:
                if setback.is_of_an_update:
                    self._session.restore_updates(self._snapshot)
                raise error

    def end(self) -> None:
        """Log the losses that did not count, whose workers are replaced all the same, and what is not logged yet."""
        self._warn_of_kernels()
        for held in self._gathering.result.held_failures():
            if not held.final:
                logger.warning(_NOT_NEEDED, held.reason)
