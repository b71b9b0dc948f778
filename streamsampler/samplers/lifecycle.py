"""Start a sampler's workers, give them to one call at a time, and end them in any case."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from streamsampler.agents.filters import Filters
from streamsampler.core.errors import (
    ClosedError,
    ConcurrentCallError,
    ProtocolError,
    SamplerError,
    UsageError,
    positive,
)
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import Payload
from streamsampler.core.timing import ScriptTimes
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.statistics import Stats
from streamsampler.engines.base import Answered, Engine, Event, Logged
from streamsampler.protocol.checks import PurityChecks
from streamsampler.protocol.kernels import Fingerprints
from streamsampler.protocol.messages import Failure, Phase, Report
from streamsampler.protocol.plans import GatherPlan
from streamsampler.protocol.restarts import Policy
from streamsampler.protocol.result import Order
from streamsampler.samplers.call import Call
from streamsampler.samplers.failures import failure_error, kernels_error
from streamsampler.samplers.fragments import FragmentLedger
from streamsampler.samplers.infos_of_files import InfosOfFiles
from streamsampler.samplers.lagging import Lag, begun
from streamsampler.samplers.options import refuse_rows_alone
from streamsampler.samplers.payloads import (
    check_side_by_side,
    facts_in,
    makes_environment,
    on_environments,
    pickled_updates,
)
from streamsampler.samplers.per_worker import Kind, Updates
from streamsampler.samplers.session import Session
from streamsampler.samplers.summaries import Summaries, merged
from streamsampler.workers.explain import is_interrupt
from streamsampler.workers.factory import WorkerSetup
from streamsampler.workers.logs import handle_records
from streamsampler.workers.resets import Resets

Lock = Any  # typeshed has no name for what threading.RLock() returns

_CANCEL_SECONDS = 1.0
_ONE_AT_A_TIME = "another call on this sampler is under way; a sampler serves one call at a time"


class SamplerLife(ABC):
    """What all samplers have in common, except obtaining.

    Attributes:
        seed: The seed, drawn or given.
        n_workers: How many workers there are.
        stats: What all calls together did.
    """

    _setup: WorkerSetup
    _order: Order
    _policy: Policy
    _holds_agent = False
    """Whether the agent stays in this process, as it is, and no worker gets a copy."""
    _kept_in_copies: tuple[str, ...] = ("_setup", "_order", "_policy", "_holds_agent")
    """The attributes that an unpickled sampler has as this one; a subclass adds its own."""

    def _begin_life(self, updates: Updates[Payload], filters: Filters, lag: Lag | None) -> None:
        self._lag = lag
        self._filters = filters
        self._returned: list[Summaries] = []  # which `_filters` have not
        self.seed = self._setup.seed
        self.n_workers = self._setup.n_workers
        self.stats = Stats.of(self.n_workers, script=ScriptTimes())
        self._lock = threading.RLock()
        self._checks = PurityChecks(self._setup.check)
        self._fingerprints = Fingerprints(self._setup.fingerprint)
        self._infos_of_files = InfosOfFiles()
        self._salvaged: TrajectoryBatch[Any, Any] | None = None
        self._closed = False
        self._ran_before = 0  # timesteps, by the workers of earlier engines
        self._pending: tuple[Updates[Payload], int, FragmentLedger | None] | None = None
        self._busy = False
        self._streaming: Call | None = None
        self._start(updates, 0)

    def _start(self, updates: Updates[Payload], version: int) -> None:
        engine = self.make_engine(self._setup)
        try:
            self._session = Session(
                engine,
                updates.mapped(engine.publish),
                seed=self.seed,
                order=self._order,
                version=version,
                layout=self._setup.factory.layout,
                policy=self._policy_of_workers(),
                checks=self._checks,
                fingerprints=self._fingerprints,
                infos_of_files=self._infos_of_files,
                record_taken=self._setup.record_taken,
                clock=engine.clock,
            )
        except BaseException:
            engine.close()
            raise
        self._owner = os.getpid()
        # At garbage collection and at exit; not through `__del__`, which may find half of the interpreter gone.
        self._finalizer = weakref.finalize(self, _end_quietly, self._session, self._lock, self._owner)

    def _policy_of_workers(self) -> Policy:
        """Return what is done about losses of workers."""
        return self._policy

    @abstractmethod
    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Start the workers: the one method that a sampler on another engine must have.

        Args:
            setup: What to make the workers with.
        """

    # ------------------------------------------------------------------ a call's frame

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._guarded():
            self._check_usable()
            # Reentrant, because an interrupt between taking it and the next step would leave it taken for good.
            if not self._lock.acquire(blocking=False):
                raise ConcurrentCallError(_ONE_AT_A_TIME)
            try:
                if self._busy and not self._session.suspect:
                    raise ConcurrentCallError(_ONE_AT_A_TIME)
                try:
                    self._busy = True
                    yield
                finally:
                    self._busy = False
            finally:
                self._lock.release()

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("this sampler is closed: make another, or call it inside its `with` block")
        if os.getpid() != self._owner:
            raise SamplerError(
                f"this sampler belongs to process {self._owner}; a forked process must make its own "
                "(pickle it, or make it after the fork)"
            )

    @contextmanager
    def _call(self, plan: GatherPlan, updates: dict[Kind, Any], resets: Resets | None) -> Iterator[Call]:
        self._salvaged = None
        call = self._begin(plan, updates, Stats.of(self.n_workers), resets)
        try:
            with self._ended(call):
                if self._lag is not None:
                    call.start(reads_answers=self._lag.has_prefetched)
                yield call
                if self._lag is not None:
                    self._lag.complete(call, self._session)
        except BaseException:
            if self._lag is not None:
                # Also where an interrupt came after `complete`: the next call must not depend on the place.
                self._lag.first = None
            raise

    @contextmanager
    def _ended(self, call: Call) -> Iterator[None]:
        """End a call, and account for it, however it went."""
        try:
            with self._guarded():
                yield
        except BaseException as error:
            call.count_the_rest()
            if is_interrupt(error) and call.gathering.result.n_trajectories:
                self._salvaged = call.finished()
            raise
        finally:
            call.accounts.close_unseen()
            try:
                if not self._session.suspect:
                    call.end()
                    self._prefetch(call)
            finally:
                self._returned += call.returned
                self.stats.merge(call.stats)

    def _prefetch(self, call: Call) -> None:
        """Let workers begin with the next batch, if this call's is complete, and there is a lag."""
        if self._lag is not None and self._lag.first is not None:
            with self._guarded():
                self._lag.prefetch(call, self._session)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Replace all workers if an interrupt or a lack of memory comes between two steps of the bookkeeping.

        The workers are stopped now, and replaced by new ones in the next call.
        """
        try:
            yield
        except ProtocolError as error:
            error.trace = error.trace or self._session.scheduler.trace.ended_with(error)
            raise
        except SamplerError:
            raise
        except BaseException:
            self._session.mark_suspect()
            raise

    def _begin(self, plan: GatherPlan, updates: dict[Kind, Any], stats: Stats, resets: Resets | None = None) -> Call:
        self._end_stream()
        if self._session.suspect:
            self._replace_engine()
        if refused := self._fingerprints.refusal():
            raise kernels_error(0, refused)
        if self._lag is not None:
            return self._lag.begun(self._session, plan, updates, stats, resets)
        return begun(self._session, plan, updates, stats, resets, self.filters)

    def _updates_in_force(self) -> Updates[Payload]:
        """Return the agent and the environment, for workers that were sent neither."""
        updates = self._session.updates.mapped(self._session.engine.published)
        if self._holds_agent:  # it has its parameters, and may have learnt since
            updates.forget("parameters")
        return updates

    def _replace_engine(self) -> None:
        """Replace the engine; after an interrupt in here it can be repeated."""
        old = self._session
        if self._pending is None:
            # Episodes of fragments go on after a call for whole trajectories that was interrupted.
            self._pending = self._updates_in_force(), old.version, old.going_on() if old.ledger is None else None
        old.close()
        self._count_the_rest()
        self._finalizer.detach()
        updates, version, fragments = self._pending
        self._start(updates, version)
        self._session.continue_from(version, version, fragments)
        self._pending = None

    def _restart(self, version: int) -> None:
        """Replace the engine by one whose workers have run nothing, after an agent version."""
        updates = self._updates_in_force() if self._pending is None else self._pending[0]
        self._pending = updates, version, None
        self._replace_engine()

    @property
    def agent_version(self) -> int:
        """The agent version of the last obtaining call; 0 before the first."""
        return self._session.version

    @property
    def filters(self) -> Filters:
        """The filters, with the statistics of all trajectories that were returned so far.

        See `streamsampler/docs/hooks-and-filters.md`.

        Those of a stream count when it has ended.
        """
        if self._returned:
            # Only then are they forgotten: a user's merge may raise.
            self._filters = merged(self._filters, self._returned)
            self._returned = []
        return self._filters

    def put_back_filters(self, filters: Filters) -> None:
        """Go on with filters that this sampler had before: what was returned since then does not count.

        Args:
            filters: What `filters` was.
        """
        self._filters, self._returned = filters, []

    def count_as_called(self) -> None:
        """Use up an agent version, as a stream does: its trajectories are there already."""
        with self._exclusive():
            self._end_stream()
            self._session.skip_version()

    def seeds(self, version: int, indices: Sequence[int]) -> list[int]:
        """Return the seeds that this sampler's trajectories begin from, unless a call is given others.

        Args:
            version: The agent version: 1 in the first obtaining call, 2 in the second.
            indices: Trajectory indices within that version, each at least 0 and less than 2**31.

        Returns:
            A seed for each index, as `batch.seeds` has them: at least 0 and less than 2**31.

        Raises:
            UsageError: There is no such version or index.
        """
        derived = TrajectorySeeds(self.seed, positive("version", version))
        return derived.of([positive("an index", index, least=0) for index in indices])

    # ------------------------------------------------------------------ what calls are given

    def refuse_lag(self, what: str) -> None:
        """Refuse what a sampler with `staleness=1` cannot do.

        Args:
            what: What it is, such as "a stream".

        Raises:
            UsageError: The sampler has `staleness=1`.
        """
        if self._lag is not None:
            raise UsageError(
                f"{what} cannot be had from a sampler with staleness=1, whose workers sample the next batch while you "
                "learn from the last one: use another sampler"
            )

    def _updates_of(self, agent_update: Any, env_update: Any, resets: Resets | None) -> dict[Kind, Any]:
        self._check_usable()
        worker_class = self._setup.factory.worker_class
        if resets is not None and resets.changes_resets and not worker_class.can_take_options:
            what = "reset_options" if resets.tasks is None else "tasks"
            raise UsageError(f"{worker_class.__name__} takes no {what}")
        if agent_update is None and env_update is None:
            return {}
        session = self._session
        env_update = on_environments(env_update, session.updates, session.engine)
        updates = pickled_updates(agent_update, env_update, session.updates, held=self._holds_agent)
        if "agent" in updates:
            environments = facts_in(updates["env"]) if "env" in updates else session.updates.about("env")
            refuse_rows_alone(facts_in(updates["agent"]), environments, worker_class)
        if "env" in updates:
            check_side_by_side(updates["env"], "env_update", self._setup.factory)
        if makes_environment(env_update):
            self._session.scheduler.renew_checks()
        return updates

    # ------------------------------------------------------------------ the end

    def _begin_stream(self, plan: GatherPlan, updates: dict[Kind, Any], resets: Resets | None) -> Call:
        self._streaming = self._begin(plan, updates, self.stats, resets)
        return self._streaming

    def _check_streaming(self, call: Call) -> None:
        self._check_usable()
        if self._streaming is not call:
            raise SamplerError("this stream was ended by a later call on the same sampler")

    def _end_stream(self, only: Call | None = None) -> None:
        """Stop the stream that is open, if one is, and account for what its consumer never saw.

        Args:
            only: The call whose stream is stopped, if that is the open one; None for any.
        """
        call = self._streaming
        if call is not None and only in (None, call):
            self._streaming = None
            with self._guarded():
                call.count_the_rest()
                call.accounts.close_unseen()
                call.batches.warn_of_actions()
                self._returned += call.returned
                if not self._session.suspect:
                    call.end()

    def close(self) -> None:
        """End the workers and give everything back; may be called twice.

        Raises:
            RolloutError: Closing an environment raised; everything is given back all the same.
        """
        if self._closed and not self._finalizer.alive:
            return
        self._closed = True
        if os.getpid() != self._owner:
            self._finalizer.detach()
            return
        if self._lock.acquire(blocking=False):  # or another thread is in the stream, and ends it
            try:
                self._end_stream()
            finally:
                self._lock.release()
        last_answers = _end(self._session, self._lock)
        # Only now: a call in another thread has answers that it is about to count.
        failures = self._count_last_answers([*self._session.arrivals.pop_uncounted(), *last_answers])
        self._count_the_rest()
        self._finalizer.detach()
        if failures:
            raise failures[0]

    def _count_the_rest(self) -> None:
        """Count as abandoned the timesteps that workers had shown when they ended, and reported in no answer."""
        self._ran_before += self._session.take_ran_timesteps()
        self.stats.abandoned_timesteps += max(0, self._ran_before - self.stats.ran_timesteps)

    def _count_last_answers(self, last_answers: Sequence[Event]) -> list[SamplerError]:
        """Count the last answers of workers that were ended; return the failures to close their environments."""
        failures = []
        for said in last_answers:
            match said:
                case Logged(worker=worker, records=records):
                    handle_records(worker, records)
                case Answered(worker=worker, answer=Report() as report):
                    self.stats.take_report(worker, report)
                    self.stats.stale_trajectories += report.n_trajectories
                    self.stats.stale_timesteps += report.n_timesteps
                case Answered(worker=worker, answer=Failure(phase=Phase.CLOSE) as failure):
                    failures.append(failure_error(worker, failure, said.contents))
        return failures

    def shutdown_worker(self) -> None:
        """Do what `close` does."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except SamplerError:
            # What is already on its way matters more than what closing found.
            if kind is None:
                raise


def _end(session: Session, lock: Lock) -> list[Answered | Logged]:
    """Close the engine; another thread's call ends before, so that nothing is taken away from under it."""
    ours = lock.acquire(blocking=False)
    if not ours:
        session.cancel()
        # If it does not end in time it is stuck in code that nothing can end, or this is a callback of its own.
        ours = lock.acquire(timeout=_CANCEL_SECONDS)
    try:
        return session.close()
    finally:
        if ours:
            lock.release()


def _end_quietly(session: Session, lock: Lock, owner: int) -> None:
    if os.getpid() != owner:
        return
    # A second Ctrl-C has killed the workers then; at the end of the program nothing would catch it.
    with contextlib.suppress(KeyboardInterrupt):
        for said in _end(session, lock):
            if isinstance(said, Logged):
                handle_records(said.worker, said.records)
