"""The life of a sampler's workers: started, lent to a call at a time, replaced after an interrupt, ended."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from streamsampler.agents.filters import Filters
from streamsampler.core.errors import ClosedError, ConcurrentCallError, ProtocolError, SamplerError
from streamsampler.core.serialization import Payload
from streamsampler.core.timing import ScriptTimes
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.statistics import Stats
from streamsampler.engines.base import Answered, Engine, Event, Logged
from streamsampler.protocol.losses import Policy
from streamsampler.protocol.messages import Failure, Phase, Report
from streamsampler.protocol.plans import GatherPlan
from streamsampler.protocol.result import Order
from streamsampler.protocol.run_twice_checks import RunTwiceChecks, TaskChecks
from streamsampler.protocol.worker_kernels import Fingerprints
from streamsampler.samplers.call import Call
from streamsampler.samplers.call_start import start_call
from streamsampler.samplers.failures import failure_error, kernels_error, logger
from streamsampler.samplers.file_infos import FileInfos
from streamsampler.samplers.fragments import FragmentLedger
from streamsampler.samplers.off_by_one import OffByOneSchedule
from streamsampler.samplers.session import Session
from streamsampler.samplers.summaries import Summaries, unpickled
from streamsampler.samplers.task_payloads import publish, published
from streamsampler.samplers.tasks import TaskFacts, refuse_calls
from streamsampler.samplers.updates import Kind, Updates
from streamsampler.workers.explain import is_interrupt
from streamsampler.workers.factory import WorkerSetup
from streamsampler.workers.logs import handle_records
from streamsampler.workers.resets import Resets

Lock = Any  # typeshed has no name for the result of threading.RLock()

_CANCEL_SECONDS = 1.0
_ONE_AT_A_TIME = "another call on this sampler is under way: wait for its end, or make a sampler for each thread"


@dataclass(frozen=True)
class SamplerSetup:
    """A sampler's arguments, checked; immutable."""

    workers: WorkerSetup
    order: Order
    policy: Policy
    policy_names: tuple[str, ...]  # empty with a single agent
    holds_agent: bool  # whether the agent stays in this process, unpickled, without copies in workers
    env_facts: tuple[Any, ...]  # facts about the environments given to the constructor, by worker
    tasks: tuple[TaskFacts, ...] = ()  # empty with a single task

    @property
    def policy_of_workers(self) -> Policy:
        if not self.holds_agent:
            return self.policy
        # The worker is in this process: the engine applies time limits to the environments' processes instead.
        return replace(self.policy, step_timeout=None, construction_timeout=None, max_worker_memory=None)

    @property
    def most_envs(self) -> int | None:
        return self.workers.factory.layout.rows if self.holds_agent else None


class SamplerLife:
    """A sampler's workers and state: a single engine, or several in turn if an interrupt left one in doubt."""

    session: Session

    def __init__(
        self, setup: SamplerSetup, make_engine: Callable[[WorkerSetup], Engine], updates: Updates[Payload],
        filters: Filters, off_by_one: OffByOneSchedule | None = None,
    ) -> None:  # fmt: skip
        self.setup, self.off_by_one = setup, off_by_one
        # Weak, so that an unused sampler is freed at once, without waiting for the cycle collector.
        self._make_engine = weakref.WeakMethod(make_engine)
        self._filters = filters
        self._returned: list[Summaries] = []  # not yet merged into `_filters`
        self.seed = setup.workers.seed
        self.n_workers = setup.workers.n_workers
        self.stats = Stats.of(self.n_workers, script=ScriptTimes())
        self._lock = threading.RLock()
        self.checks = TaskChecks(setup.workers.check) if setup.tasks else RunTwiceChecks(setup.workers.check)
        self.fingerprints = Fingerprints(setup.workers.fingerprint)
        self.file_infos = FileInfos()
        self.salvaged: TrajectoryBatch[Any, Any] | None = None  # finished prefix of the last interrupted call
        self.is_closed = False
        self.ran_before = 0  # timesteps run by workers of earlier engines
        self.n_envs: int | None = None  # of the last call for fragments
        self.fingerprints_of_tasks: dict[int, set[str]] = {}  # of returned trajectories, by task number
        self._pending: tuple[Updates[Payload], int, FragmentLedger | None] | None = None
        self._busy = False
        self.streaming: Call | None = None  # the call of the open stream
        self._start(updates, 0)

    def _start(self, updates: Updates[Payload], version: int) -> None:
        setup, make_engine = self.setup, self._make_engine()
        assert make_engine is not None, "whoever calls this holds the sampler"
        engine = make_engine(setup.workers)
        try:
            self.session = Session(
                engine, updates.mapped(partial(publish, engine)), seed=self.seed, order=setup.order, version=version,
                layout=setup.workers.factory.layout, policy=setup.policy_of_workers, checks=self.checks,
                fingerprints=self.fingerprints, file_infos=self.file_infos,
                record_taken=setup.workers.record_taken, clock=engine.clock,
            )  # fmt: skip
        except BaseException:
            engine.close()
            raise
        self._owner = os.getpid()
        # For garbage collection and exit; `__del__` may find half of the interpreter gone.
        self._finalizer = weakref.finalize(self, _end_quietly, self.session, self._lock, self._owner)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._guarded():
            self.check_usable()
            # Reentrant: an interrupt between a plain lock's acquisition and the `try` would block it for good.
            if not self._lock.acquire(blocking=False):
                raise ConcurrentCallError(_ONE_AT_A_TIME)
            try:
                if self._busy and not self.session.suspect:
                    raise ConcurrentCallError(_ONE_AT_A_TIME)
                try:
                    self._busy = True
                    yield
                finally:
                    self._busy = False
            finally:
                self._lock.release()

    def check_usable(self) -> None:
        if self.is_closed:
            raise ClosedError("this sampler is closed: make a new one, or call it inside its `with` block")
        if os.getpid() != self._owner:
            raise SamplerError(
                f"this sampler belongs to process {self._owner}, and was called in process {os.getpid()}: pickle it, "
                "or make a new one after the fork"
            )

    @contextmanager
    def call(self, plan: GatherPlan, updates: dict[Kind, Any], resets: Resets | None) -> Iterator[Call]:
        with self.exclusive():
            self.salvaged, version = None, self.session.scheduler.version
            try:
                call = self._begin(plan, updates, Stats.of(self.n_workers), resets)
                with self._ended(call):
                    if self.off_by_one is not None and self.off_by_one.has_prefetched:
                        call.turn(0.0)  # `pump` would wait forever for workers that have answered everything
                    elif self.off_by_one is not None:
                        call.handle(())
                    yield call
                    if self.off_by_one is not None:
                        self.off_by_one.complete(call, self.session)
            except BaseException:
                if self.off_by_one is not None and self.session.scheduler.version > version:
                    # Even if the interrupt came after `complete`: the next call must not depend on its place.
                    self.off_by_one.start_fresh()
                raise

    @contextmanager
    def _ended(self, call: Call) -> Iterator[None]:
        try:
            with self._guarded():
                yield
        except BaseException as error:
            call.count_the_rest()
            if is_interrupt(error) and call.gathering.result.n_trajectories:
                self.salvaged = call.finished()
            raise
        finally:
            call.accounts.close_unseen()
            try:
                if not self.session.suspect:
                    call.end()
                    if self.off_by_one is not None and self.off_by_one.first is not None:
                        with self._guarded():
                            self.off_by_one.prefetch(call, self.session)
            finally:
                self._returned += call.returned
                self.stats.merge(call.stats)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Mark the session as suspect if an interrupt or lack of memory may have split two steps of bookkeeping.

        The workers are stopped at once, and replaced in the next call.
        """
        try:
            yield
        except ProtocolError as error:
            error.trace = error.trace or self.session.scheduler.trace.ended_with(error)
            raise
        except SamplerError:
            raise
        except BaseException:
            self.session.mark_suspect()
            raise

    def _begin(self, plan: GatherPlan, updates: dict[Kind, Any], stats: Stats, resets: Resets | None) -> Call:
        if self.setup.tasks and not plan.sections:
            refuse_calls(self.setup.tasks)
        if self.streaming is not None:
            self.end_stream()
        if self.session.suspect:
            self._replace_engine()
        if refused := self.fingerprints.refusal():
            raise kernels_error(0, refused)
        call = start_call(self.session, plan, updates, stats, resets, self.filters, self.off_by_one)
        if self.off_by_one is not None:
            self.off_by_one.begin_call(self.session)
        return call

    def updates_in_force(self) -> Updates[Payload]:
        """Return the current agent and environment, for workers that have received neither."""
        updates = self.session.store.latest.mapped(partial(published, self.session.engine))
        if self.setup.holds_agent:  # it contains its parameters, and may have learnt since
            updates.forget("parameters")
        return updates

    def _replace_engine(self) -> None:
        """Replace the engine; after an interrupt in here it can be repeated."""
        old = self.session
        if self._pending is None:
            # Episodes of fragments survive an interrupted call for whole trajectories.
            ledger = old.episodes.open_ledger() if old.ledger is None else None
            self._pending = self.updates_in_force(), old.scheduler.version, ledger
        old.close()
        self._count_unreported()
        self._finalizer.detach()
        updates, version, fragments = self._pending
        self._start(updates, version)
        self.session.continue_from(version, version, fragments)
        self._pending = None

    def restart(self, version: int) -> None:
        updates = self.updates_in_force() if self._pending is None else self._pending[0]
        self._pending = updates, version, None
        self._replace_engine()

    @property
    def filters(self) -> Filters:
        if self._returned:
            # Cleared only after the merge: a user's `merge` may raise.
            self._filters = self._filters.merged(unpickled(self._returned))
            self._returned = []
        return self._filters

    @filters.setter
    def filters(self, filters: Filters) -> None:
        self._filters, self._returned = filters, []

    def skip_version(self) -> None:
        with self.exclusive():
            self.end_stream()
            last = self.session.scheduler.version
            self.session.scheduler.continue_from(last + 1, last + 1)
            self.session.store.sampled = self.session.store.used

    def begin_stream(self, plan: GatherPlan, updates: dict[Kind, Any], resets: Resets | None) -> Call:
        self.streaming = self._begin(plan, updates, self.stats, resets)
        return self.streaming

    def check_streaming(self, call: Call) -> None:
        self.check_usable()
        if self.streaming is not call:
            raise SamplerError("this stream was ended by a later call on the same sampler")

    def end_stream(self, only: Call | None = None) -> None:
        """Stop the open stream (if `only` is given, just that call's) and count its unseen trajectories."""
        call = self.streaming
        if call is not None and only in (None, call):
            self.streaming = None
            with self._guarded():
                call.count_the_rest()
                call.accounts.close_unseen()
                call.batches.warn_of_actions()
                self._returned += call.returned
                if not self.session.suspect:
                    call.end()

    def close(self) -> None:
        """End the workers and release all resources, then raise an environment's error of closing; may be repeated."""
        if self.is_closed and not self._finalizer.alive:
            return
        self.is_closed = True
        if os.getpid() != self._owner:
            self._finalizer.detach()
            return
        if self._lock.acquire(blocking=False):  # otherwise another thread is in the stream, and ends it
            try:
                self.end_stream()
            finally:
                self._lock.release()
        last_answers = _end(self.session, self._lock)
        # Only now: a call in another thread may still have been counting answers.
        failures = self._count_last_answers([*self.session.arrivals.pop_uncounted(), *last_answers])
        self._count_unreported()
        self._finalizer.detach()
        for known in self.session.scheduler.workers if self.setup.tasks else ():
            self._warn_of_unclosed(known.worker)
        if failures:
            raise failures[0]

    def _warn_of_unclosed(self, worker: int) -> None:
        seen = self.session.engine.progress(worker)
        if seen.task is not None and seen.is_closing:
            name = self.setup.tasks[seen.task].name
            logger.warning("worker %d ended before the environment of %s was closed", worker, name)

    def _count_unreported(self) -> None:
        """Count as abandoned the timesteps in the ended workers' progress words that no answer reported."""
        self.ran_before += self.session.pop_ran_timesteps()
        self.stats.abandoned_timesteps += max(0, self.ran_before - self.stats.ran_timesteps)

    def _count_last_answers(self, last_answers: Sequence[Event]) -> list[SamplerError]:
        failures = []
        for event in last_answers:
            match event:
                case Logged(worker=worker, records=records):
                    handle_records(worker, records)
                case Answered(worker=worker, answer=Report() as report):
                    self.stats.add_report(worker, report)
                    self.stats.stale_trajectories += report.n_trajectories
                    self.stats.stale_timesteps += report.n_timesteps
                case Answered(worker=worker, answer=Failure(phase=Phase.CLOSE) as failure):
                    failures.append(failure_error(worker, failure, event.contents))
        return failures


def _end(session: Session, lock: Lock) -> list[Answered | Logged]:
    """Close the engine; a call in another thread is ended before, so that its engine does not vanish under it."""
    ours = lock.acquire(blocking=False)
    if not ours:
        session.cancel()
        # After this time it is stuck in code that nothing can end, or is a callback that called `close` itself.
        ours = lock.acquire(timeout=_CANCEL_SECONDS)
    try:
        return session.close()
    finally:
        if ours:
            lock.release()


def _end_quietly(session: Session, lock: Lock, owner: int) -> None:
    if os.getpid() != owner:
        return
    # After a second Ctrl-C the workers are dead already; at the end of the program nothing would catch it.
    with contextlib.suppress(KeyboardInterrupt):
        for event in _end(session, lock):
            if isinstance(event, Logged):
                handle_records(event.worker, event.records)
