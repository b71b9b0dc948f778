"""What outlives an obtaining call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from time import perf_counter
from typing import Any

from streamsampler.agents.filters import Filters
from streamsampler.core.errors import ClosedError
from streamsampler.core.memory import Pool
from streamsampler.core.seeding import Indices, TrajectorySeeds
from streamsampler.core.serialization import Payload, dumps, loads, refers_to
from streamsampler.core.settings import ProcessSettings
from streamsampler.data.statistics import FoundAnomaly
from streamsampler.data.taken import TakenActions
from streamsampler.engines.base import Answered, Engine, Logged
from streamsampler.protocol.checks import PurityChecks
from streamsampler.protocol.instructions import Instruction
from streamsampler.protocol.kernels import Fingerprints
from streamsampler.protocol.messages import NEVER_AGAIN, Message, Start
from streamsampler.protocol.plans import Fragments, GatherPlan, Layout
from streamsampler.protocol.restarts import Policy
from streamsampler.protocol.result import Order
from streamsampler.protocol.scheduler import Scheduler
from streamsampler.protocol.states import CAPACITY, SamplerState
from streamsampler.protocol.ways import Structure
from streamsampler.samplers.arrivals import Arrivals, SentToWorker
from streamsampler.samplers.failures import logger
from streamsampler.samplers.fragments import FragmentLedger, order_of
from streamsampler.samplers.infos_of_files import InfosOfFiles
from streamsampler.samplers.per_worker import Kind, Snapshot, Updates
from streamsampler.samplers.traces import trace_of_environment
from streamsampler.workers.logs import levels_here
from streamsampler.workers.resets import Resets

_ENDED_FRAGMENTS = (
    "env_update ends the episodes of fragments that went on: others begin in the new environment. Where that happens "
    "again and again, only the first timesteps of episodes are ever seen"
)


_ANOMALY = (
    '{}; such data are counted in stats.anomalies, and reported this once; check="error" ends the call, check=None '
    "looks for nothing"
)
_OTHER_DEVICE = (
    "torch's default device is {} in this process, and the CPU in workers, where the agent acts: pass device= where "
    'the agent makes tensors. inference="parent" keeps the agent in this process'
)


class Session:
    """An engine, the scheduler of its workers, and the updates in force.

    Args:
        engine: Where the workers live.
        updates: The agent and the environment in force, as payloads that the engine published.
        seed: The sampler's seed.
        order: How batches are ordered.
        version: The last agent version that was used up.
        capacity: How many unanswered tickets a worker may have.
        layout: How workers run trajectories; see `Worker.layout`.
        policy: What is done about losses; None for what is done by default.
        checks: When the environment is checked; None to check nothing.
        fingerprints: How workers compute, as far as it is known; None to say nothing of it.
        infos_of_files: What is said of the infos of trajectories that go into files; None for nothing.
        record_taken: In which info environments say which action they took; None where they do not.
        clock: Seconds, from any beginning.

    Attributes:
        updates: The latest agent, parameters and environment.
        used: Those that workers are given, which are older with `staleness`.
        sampled: Those that the last call's trajectories were made with.
        scheduler: Decides what workers do.
        sent: What each worker was sent, by worker number.
        arrivals: What workers' answers brought.
        cancelled: Whether the engine is closed, or another thread is about to close it.
        suspect: Whether an interrupt may have come between two steps of the bookkeeping.
        plan: What the last call was to obtain; None before the first.
        resets: What it said of its trajectories.
        fragments: The ledger of the episodes that go on from the last call for fragments to the next; None for none.
    """

    def __init__(
        self,
        engine: Engine,
        updates: Updates[Any],
        *,
        seed: int,
        order: Order,
        version: int,
        capacity: int = CAPACITY,
        layout: Layout = Layout(),
        policy: Policy | None = None,
        checks: PurityChecks | None = None,
        fingerprints: Fingerprints | None = None,
        infos_of_files: InfosOfFiles | None = None,
        record_taken: str | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.engine = engine
        self.updates = self.used = self.sampled = updates
        self.seed = seed
        self.clock = clock
        self.scheduler = Scheduler(
            engine.n_workers, policy=policy, order=order, version=version, capacity=capacity, layout=layout,
            concurrent=engine.concurrent, can_retire=engine.can_retire,
            shortest_ticket=engine.shortest_ticket_seconds, checks=checks, fingerprints=fingerprints,
            trace=trace_of_environment(), now=clock(),
        )  # fmt: skip
        self.sent = [SentToWorker() for _ in range(engine.n_workers)]
        self.arrivals = Arrivals(engine, self.sent, self.need)
        self.pool = Pool()
        self.infos_of_files = infos_of_files or InfosOfFiles()
        self.taken_actions = TakenActions(record_taken)
        self.cancelled = False
        self.suspect = False
        self.plan: GatherPlan | None = None
        self.resets: Resets | None = None
        self.fragments: FragmentLedger | None = None
        self._agent_of_fragments: Any = None  # the payload in the last call for them
        self._resets_handle: Any = None
        self._published: dict[int, Any] = updates.payloads()
        self._ran_by_dead = 0  # timesteps
        self._has_counted = False
        self._warned_of: set[str] = set()

    @property
    def is_new(self) -> bool:
        """Whether no agent version was used up, and workers were sent nothing."""
        return self.version == 0 and self.plan is None and not self.suspect

    @property
    def version(self) -> int:
        """The last agent version that was used up."""
        return self.scheduler.version

    @property
    def sampled_version(self) -> int:
        """The agent version of the last call's trajectories."""
        return self.scheduler.sampled_version

    def continue_from(self, version: int, sampled_version: int, fragments: FragmentLedger | None) -> None:
        """Let the next call be the one after a version, as if an engine before this one had run that.

        Args:
            version: The agent version.
            sampled_version: That of its trajectories.
            fragments: What goes on from its call to the next; None for nothing.
        """
        self.scheduler.continue_from(version, sampled_version)
        self.fragments = fragments
        (self._agent_of_fragments, *_) = self.updates.of_workers("agent")

    # ------------------------------------------------------------------ calls

    def publish_filters(self, filters: Filters) -> None:
        """Put filters in force, unless they are in force or there are none."""
        if filters and filters is not self.filters:
            self.updates.put("filters", self.publish(dumps(filters, "the filters")), filters)

    @property
    def filters(self) -> Filters | None:
        """The filters of the current version; None for none."""
        return self.updates.about("filters")[0] if "filters" in self.updates else None

    def publish_settings(self) -> None:
        """Let workers in other processes have this process's settings, and make the log records that it lets through.

        Raises:
            SerializationError: A setting cannot be pickled.
        """
        if not self.engine.has_own_settings:
            return
        here = ProcessSettings.of_this_process(), levels_here()
        if "settings" not in self.updates or self.updates.about("settings")[0] != here:
            self.updates.put("settings", self.publish(dumps(here, "the settings of this process")), here)
        if here[0].torch_device != "cpu" and self.need("torch"):
            self.warn_of([("device", _OTHER_DEVICE.format(here[0].torch_device))])

    def resets_of(self, plan: GatherPlan, resets: Resets | None, updates: Collection[Kind]) -> Resets | None:
        """Return what a call says of its trajectories; where it is of fragments, whether episodes go on, too.

        Args:
            plan: What the call is to obtain.
            resets: What is said of trajectories: of fragments the options of resets.
            updates: What the call updates.

        Raises:
            SerializationError: The options cannot be pickled.
        """
        if not isinstance(plan, Fragments):
            return resets
        goes_on = "env" not in updates and self.fragments is not None and self.fragments.goes_on_in(plan)
        base_version = self.fragments.base_version if goes_on and self.fragments is not None else self.version + 1
        # A copy, because episodes are restored with them later.
        options = None if resets is None else loads(dumps(resets.options, "reset_options"))
        return Resets(options=options, fragments=order_of(plan, base_version))

    def begin_fragments(self, plan: GatherPlan, resets: Resets | None, updates: Collection[Kind]) -> None:
        """Go on with the episodes of fragments, or begin others; of whole trajectories only an `env_update` ends them.

        Args:
            plan: What the call is to obtain.
            resets: What `resets_of` returned.
            updates: What the call updates.
        """
        if self.fragments is not None and "env" in updates:
            self.warn_of([("ended fragments", _ENDED_FRAGMENTS)])
            self.fragments = None
        order = None if resets is None else resets.fragments
        if order is None or resets is None or not isinstance(plan, Fragments):
            if self.fragments is not None and not self.fragments.is_complete:
                self.fragments = None
            return
        if self.fragments is None or self.fragments.base_version != order.base_version:
            if self.fragments is not None and self.fragments.n_envs != plan.n_envs:
                logger.warning(
                    "obtain_fragments of %d environments, after %d in the last call: the episodes that went on end "
                    "there, and fresh environments begin", plan.n_envs, self.fragments.n_envs,
                )  # fmt: skip
            self.fragments = FragmentLedger(plan, order.base_version)
        assert not isinstance(resets.options, tuple)
        self.fragments.begin_call(plan, resets.options, agent_is_replaced="agent" in updates or self._has_other_agent)
        (self._agent_of_fragments, *_) = self.updates.of_workers("agent")

    @property
    def _has_other_agent(self) -> bool:
        """Whether the agent in force is not that of the last call for fragments. Refused updates are not in force."""
        return self.updates.of_workers("agent")[0] is not self._agent_of_fragments

    def going_on(self) -> FragmentLedger | None:
        """Return the ledger of the episodes that go on, for the workers of another engine; None if none goes on."""
        ledger = self.fragments
        if ledger is not None and self._has_other_agent:
            ledger.replace_agent()
        return ledger

    @property
    def ledger(self) -> FragmentLedger | None:
        """The ledger of the environments of fragments, in a call for fragments; None in other calls."""
        return self.fragments if isinstance(self.plan, Fragments) else None

    def set_call(self, plan: GatherPlan, resets: Resets | None, payload: Payload | None) -> None:
        """Set what the next call is to obtain, and what it says of its trajectories.

        Args:
            plan: What it is to obtain.
            resets: What it says.
            payload: The same, pickled.
        """
        self.plan = plan
        self.resets = resets
        self.give(payload)

    def give(self, payload: Payload | None) -> None:
        """Give workers what is said of the trajectories that they run from now on, pickled."""
        self._resets_handle = None if payload is None else self.publish(payload)

    def renew_after_tasks(self, resets: Resets | None) -> None:
        """Let workers make their environments again, unless the next call's tasks replace all that was set in the last.

        Otherwise it would depend on the workers what was left in which environment.

        Args:
            resets: What the next call says of its trajectories.
        """
        left = None if self.resets is None else self.resets.kind_of_tasks
        if left is not None and (resets is None or resets.kind_of_tasks != left):
            self.updates.repeat("env")

    def use(self, snapshot: Snapshot) -> None:
        """Give workers the updates of a snapshot from now on, whatever is put in force later."""
        self.used = Updates.of(snapshot, self.engine.n_workers)

    def structures(self) -> list[Structure]:
        """Return the structure of each queue of indices: one for all workers, or one for each."""
        return [self.used.structure(worker) for worker in range(self.engine.n_workers if self.used.differ else 1)]

    @property
    def can_prefetch(self) -> bool:
        """Whether workers can begin with anything while no call is under way."""
        return self.engine.concurrent and not (self.cancelled or self.scheduler.checks.is_exclusive)

    def seeds_of(self, version: int, indices: Indices) -> list[int]:
        """Return the seeds of trajectories of the current call."""
        return (self.resets or Resets()).seeds_of(TrajectorySeeds(self.seed, version), indices)

    def begin_call(self, plan: GatherPlan, sampled_version: int | None, *, keeps_prefetched: bool) -> list[Instruction]:
        """Begin a call; see `Scheduler.begin`."""
        instructions = self.scheduler.begin(
            plan, self.clock(), sampled_version=sampled_version, structures=self.structures(),
            base_version=0 if self.ledger is None else self.ledger.base_version, keeps_prefetched=keeps_prefetched,
        )  # fmt: skip
        self.sampled = self.used
        return instructions

    def skip_version(self) -> None:
        """Use up an agent version whose trajectories are there already."""
        self.scheduler.continue_from(self.version + 1, self.version + 1)
        self.sampled = self.used

    def check_open(self) -> None:
        """Check that no other thread has closed the sampler, and with it descriptors that are in use here.

        Raises:
            ClosedError: It has.
        """
        if self.cancelled:
            raise ClosedError("this sampler was closed while a call was under way")

    def launch(self, worker: int) -> None:
        """Start a new worker in a dead one's place."""
        self.engine.restart(worker)
        del self.arrivals.absent[worker]

    def kill(self, worker: int, *, hangs: bool) -> None:
        """Kill a worker; of one that hangs, keep the stacks."""
        if hangs:
            self.sent[worker].is_hung, self.sent[worker].stack = True, self.engine.stacks(worker)
        self.engine.kill_worker(worker)

    def send(self, worker: int, message: Message) -> None:
        """Send a worker a message of the scheduler's; a `Start` with all updates that the worker lacks."""
        if isinstance(message, Start):
            message = Start(message.version, message.tickets, check=message.check, **self._contents_for(worker))
        self.engine.send(worker, message)

    def _contents_for(self, worker: int) -> dict[str, Any]:
        """Return what a worker's `Start` carries besides tickets, and record it as sent; see `messages.Start`."""
        sent = self.sent[worker]
        contents: dict[str, Any] = dict(self.used.missing(worker, sent.serials).items())
        if self._resets_handle is not None:
            contents["resets"] = self._resets_handle
        fragments, ledger = self.fragments, self.ledger
        goes_on = sent.base_version if fragments is not None and fragments.base_version == sent.base_version else 0
        if ledger is not None and not goes_on and (order := ledger.order(worker)).standings:
            # The worker has none of its environments: it is new, or an exception left them in any state.
            contents["resets"] = self.publish(
                dumps(replace(self.resets or Resets(), fragments=order), "what goes on in environments")
            )
        sent.base_version = goes_on if ledger is None else ledger.base_version
        sent.payloads_in_use = tuple(contents.values())
        return {**contents, "goes_on": goes_on}

    def warn_of_anomaly(self, anomaly: FoundAnomaly) -> None:
        """Warn of the first anomaly in the data, and of no other."""
        self.warn_of([("anomaly", _ANOMALY.format(anomaly))])

    def warn_of(self, remarks: Iterable[tuple[str, str]]) -> None:
        """Log warnings, the first of each kind."""
        for kind, text in remarks:
            if kind not in self._warned_of:
                self._warned_of.add(kind)
                logger.warning("%s", text)

    # ------------------------------------------------------------------ payloads

    def publish(self, payload: Any) -> Any:
        """Publish a payload; `unpublish_old` frees it when it is no longer used."""
        handle = self.engine.publish(payload)
        self._published[id(handle)] = handle
        return handle

    def need(self, package: str) -> bool:
        """Whether the agents or the environments in force need a package, as far as that can be seen."""
        handles = self.updates.payloads(("agent", "parameters", "env")).values()
        return any(refers_to(self.engine.published(handle), package) for handle in handles)

    def unpublish_old(self) -> None:
        """Free the payloads that are neither in force nor in an unanswered message."""
        in_use = {id(handle) for sent in self.sent for handle in sent.payloads_in_use}
        for updates in {id(it): it for it in (self.updates, self.used, self.sampled)}.values():
            in_use |= updates.payloads().keys()
        for key in self._published.keys() - in_use:
            self.engine.unpublish(self._published.pop(key))

    def restore_updates(self, snapshot: Snapshot, accepted: Snapshot | None = None) -> None:
        """Put the updates of a snapshot back in force, because a worker refused the updates since.

        Args:
            snapshot: These updates.
            accepted: Those that agents are known to have taken, for `sampled`; None for the same.
        """
        self.updates.restore(snapshot)
        if self.used is not self.updates:
            self.use(snapshot)
            self.sampled = self.used if accepted is None else Updates.of(accepted, self.engine.n_workers)
        for worker, sent in enumerate(self.sent):
            if not self.updates.are_in_force(worker, sent.serials):
                sent.forget()

    # ------------------------------------------------------------------ the end of workers

    def replace_worker(self, worker: int) -> int:
        """Forget a dead worker; return how many timesteps the worker ran and reported in no answer."""
        ran, reported = self.engine.ran_timesteps(worker), self.sent[worker].reported_timesteps
        self.sent[worker] = SentToWorker()
        self._ran_by_dead += ran
        return max(0, ran - reported)

    def take_ran_timesteps(self) -> int:
        """Return how many timesteps all workers ran, as far as they showed them; 0 after the first time."""
        if self._has_counted:
            return 0
        self._has_counted = True
        workers = self.scheduler.workers
        alive = [known.worker for known in workers if known.side.state is not SamplerState.ABSENT]
        return self._ran_by_dead + sum(map(self.engine.ran_timesteps, alive))

    def mark_suspect(self) -> None:
        """Stop all workers, and note that the bookkeeping cannot be trusted: an exception came between two steps."""
        self.suspect = True
        self.engine.abandon_older(NEVER_AGAIN)

    def cancel(self) -> None:
        """Let the call in another thread fail at once; only `close` may be called afterwards."""
        self.cancelled = True
        self.engine.kill()

    def close(self) -> list[Answered | Logged]:
        """End the workers; return their last answers and log records."""
        self.cancelled = True
        return self.engine.close(read_answers=not self.suspect)
