"""An engine, the scheduler of its workers, and all state that outlives an obtaining call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter
from typing import Any

from streamsampler.core.errors import ClosedError
from streamsampler.core.memory import Pool
from streamsampler.core.seeding import Indices, TrajectorySeeds
from streamsampler.core.serialization import Payload, dumps
from streamsampler.data.taken_actions import TakenActions
from streamsampler.engines.base import Answered, Engine, Logged
from streamsampler.protocol.losses import Policy
from streamsampler.protocol.messages import Answer, Message, Report, Start, Ticket
from streamsampler.protocol.plans import Fragments, GatherPlan, Layout
from streamsampler.protocol.result import Order
from streamsampler.protocol.run_twice_checks import RunTwiceChecks
from streamsampler.protocol.scheduler import Scheduler
from streamsampler.protocol.states import CAPACITY, SamplerState
from streamsampler.protocol.task_sections import TaskName
from streamsampler.protocol.worker_kernels import Fingerprints
from streamsampler.samplers.arrivals import Arrivals, LaunchedWorker
from streamsampler.samplers.failures import logger
from streamsampler.samplers.file_infos import FileInfos
from streamsampler.samplers.fragments import FragmentLedger
from streamsampler.samplers.open_episodes import OpenEpisodes
from streamsampler.samplers.traces import trace_of_environment
from streamsampler.samplers.update_store import UpdateStore
from streamsampler.samplers.updates import Snapshot, Updates
from streamsampler.workers.resets import Resets


class Session:
    """The state of a sampler between calls; replaced with its engine after an interrupt."""

    def __init__(
        self, engine: Engine, updates: Updates[Any], *, seed: int, order: Order, version: int,
        capacity: int = CAPACITY, layout: Layout = Layout(), policy: Policy | None = None,
        checks: RunTwiceChecks | None = None, fingerprints: Fingerprints | None = None,
        file_infos: FileInfos | None = None, record_taken: str | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.seed = seed
        self.clock = clock
        self.scheduler = Scheduler(
            engine.n_workers, policy=policy, order=order, version=version, capacity=capacity, layout=layout,
            concurrent=engine.concurrent, can_retire=engine.can_retire,
            shortest_ticket=engine.shortest_ticket_seconds, checks=checks, fingerprints=fingerprints,
            trace=trace_of_environment(), now=clock(),
        )  # fmt: skip
        self.store = UpdateStore(engine, updates)
        self.arrivals = Arrivals(engine, self._needs)
        self.episodes = OpenEpisodes(engine.n_workers, self.store.agent_of_first_worker)
        self.pool = Pool()
        self.file_infos = file_infos or FileInfos()
        self.taken_actions = TakenActions(record_taken)
        self.cancelled = False  # whether the engine is closed, or another thread is about to close it
        self.suspect = False  # whether an interrupt may have split two steps of bookkeeping
        self.plan: GatherPlan | None = None  # of the last call
        self.resets: Resets | None = None
        self._resets_handle: Any = None
        self._ran_by_dead = 0  # timesteps
        self._has_counted = False
        self._warned_of: set[tuple[str, TaskName | None]] = set()

    @property
    def is_new(self) -> bool:
        """Whether no agent version is used up, and workers have received nothing."""
        return self.scheduler.version == 0 and self.plan is None and not self.suspect

    def continue_from(self, version: int, sampled_version: int, fragments: FragmentLedger | None) -> None:
        self.scheduler.continue_from(version, sampled_version)
        self.episodes.continue_from(fragments)

    @property
    def ledger(self) -> FragmentLedger | None:
        """The ledger of fragments' environments, during a call for fragments; otherwise None."""
        return self.episodes.ledger if isinstance(self.plan, Fragments) else None

    def set_call(self, plan: GatherPlan, resets: Resets | None, payload: Payload | None) -> None:
        self.plan, self.resets = plan, resets
        self._resets_handle = None if payload is None else self.store.publish(payload)

    @property
    def can_prefetch(self) -> bool:
        return self.engine.concurrent and not (self.cancelled or self.scheduler.checks.is_exclusive)

    def seeds_of(self, version: int, indices: Indices) -> list[int]:
        return (self.resets or Resets()).seeds_of(TrajectorySeeds(self.seed, version), indices)

    def _needs(self, package: str, ticket: Ticket) -> bool:
        """Whether a ticket's trajectories need a package, as far as visible in pickles."""
        section = None if self.plan is None else self.plan.section_of(ticket.indices)
        return self.store.need(package) if section is None else self.store.task_needs(section.task.number, package)

    def check_open(self) -> None:
        if self.cancelled:
            raise ClosedError("this sampler was closed while a call was under way")

    def launch(self, worker: int) -> None:
        self.engine.restart(worker)
        del self.arrivals.absent[worker]

    def kill(self, worker: int, *, hangs: bool) -> None:
        if hangs:
            known = self.arrivals.workers[worker]
            known.is_hung, known.stack = True, self.engine.stacks(worker)
        self.engine.kill_worker(worker)

    def send(self, worker: int, message: Message) -> None:
        """Send a worker a message from the scheduler; a `Start` with all updates that the worker lacks."""
        if isinstance(message, Start):
            message = Start(message.version, message.tickets, check=message.check, **self._contents_for(worker))
        self.engine.send(worker, message)

    def _contents_for(self, worker: int) -> dict[str, Any]:
        """Return a `Start`'s payloads for a worker, and record them as sent; see `messages.Start`."""
        continued_version, handle = 0, self._resets_handle
        if self.episodes.ledger is not None:
            assert self.plan is not None
            continued_version, order = self.episodes.order_for(worker, self.plan)
            if order is not None:
                resets = dumps(replace(self.resets or Resets(), fragments=order), "the state of open episodes")
                handle = self.store.publish(resets)
        return {**self.store.contents_for(worker, handle), "continued_version": continued_version}

    def record_answer(self, worker: int, answer: Answer) -> None:
        self.arrivals.workers[worker].reported_timesteps += answer.ran_timesteps
        self.store.record_answer(worker, is_failure=not isinstance(answer, Report))
        if not isinstance(answer, Report) or answer.ended_fragments:
            self.episodes.forget(worker)

    def task_of(self, ticket: Ticket) -> TaskName | None:
        if self.plan is None or ticket.version != self.scheduler.ticket_version:
            return None
        section = self.plan.section_of(ticket.indices)
        return None if section is None else section.task

    def warn_of(self, remarks: Iterable[tuple[str, str]], task: TaskName | None = None) -> None:
        for kind, text in remarks:
            if (kind, task) not in self._warned_of:
                self._warned_of.add((kind, task))
                logger.warning("%s%s", "" if task is None else f"{task}: ", text)

    def restore_updates(self, snapshot: Snapshot, accepted: Snapshot | None = None) -> None:
        for worker in self.store.restore(snapshot, accepted):
            self.episodes.forget(worker)

    def forget_worker(self, worker: int) -> int:
        ran, reported = self.engine.ran_timesteps(worker), self.arrivals.workers[worker].reported_timesteps
        self.arrivals.workers[worker] = LaunchedWorker()
        self.store.forget(worker)
        self.episodes.forget(worker)
        self._ran_by_dead += ran
        return max(0, ran - reported)

    def pop_ran_timesteps(self) -> int:
        """Return the timesteps run by all workers according to their progress words; 0 after the first call."""
        if self._has_counted:
            return 0
        self._has_counted = True
        workers = self.scheduler.workers
        alive = [known.worker for known in workers if known.side.state is not SamplerState.ABSENT]
        return self._ran_by_dead + sum(map(self.engine.ran_timesteps, alive))

    def mark_suspect(self) -> None:
        """Let all workers end: an exception between two steps of bookkeeping left it in doubt."""
        self.suspect = True
        self.engine.start_ending()

    def cancel(self) -> None:
        """Let the call in another thread fail at once; only `close` may follow."""
        self.cancelled = True
        self.engine.kill()

    def close(self) -> list[Answered | Logged]:
        self.cancelled = True
        return self.engine.close(read_answers=not self.suspect)
