"""What outlives an obtaining call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal, TypeAlias

from streamsampler.agents.filters import Filters
from streamsampler.core.errors import CheckMode
from streamsampler.core.fingerprints import Fingerprint, agree, disagreement
from streamsampler.core.memory import Pool
from streamsampler.core.seeding import Indices, TrajectorySeeds
from streamsampler.core.serialization import Payload, dumps, loads, refers_to
from streamsampler.core.settings import ProcessSettings
from streamsampler.data.statistics import FoundAnomaly
from streamsampler.data.taken import TakenActions
from streamsampler.engines.base import Answered, Engine, Logged
from streamsampler.protocol.messages import NEVER_AGAIN, Start
from streamsampler.protocol.plans import Fragments, GatherPlan, Layout
from streamsampler.protocol.restarts import Policy
from streamsampler.protocol.result import Order
from streamsampler.protocol.states import CAPACITY, Happened, SamplerSide, SamplerState
from streamsampler.protocol.throughput import Throughput
from streamsampler.samplers.fragments import FragmentLedger, order_of
from streamsampler.samplers.infos_of_files import InfosOfFiles
from streamsampler.samplers.per_worker import Kind, Snapshot, Updates
from streamsampler.samplers.supervisor import Supervisor, WorkerRecord, logger
from streamsampler.workers.logs import levels_here
from streamsampler.workers.resets import Resets

# ----------------------------------------------------------------------
# Decide when a worker checks that trajectories depend on their seeds alone. Pure.


_CHECKS = 0
"""The worker that checks: it has a ticket in every call, if any worker has."""


class PurityChecks:
    """Whether worker 0 is to check its environment, which it does before the first ticket of its next `Start`.

    It checks at the first call and after an update that makes another environment. With "error" no other worker has
    any work until that ticket is answered, so that whether a call raises never depends on timing.

    Args:
        mode: The sampler's argument `check`.
    """

    def __init__(self, mode: CheckMode) -> None:
        self._mode = mode
        self._due = mode is not None
        self._reported: set[str] = set()

    def renew(self) -> None:
        """Check again: the environment may be another one."""
        self._due = self._mode is not None

    @property
    def is_exclusive(self) -> bool:
        """Whether only the worker that checks may have work for now."""
        return self._due and self._mode == "error"

    def may_work(self, record: WorkerRecord) -> bool:
        """Whether a worker may have work for now."""
        return record.worker == _CHECKS or not self.is_exclusive

    def is_due_in(self, record: WorkerRecord) -> bool:
        """Return whether a worker that is sent a `Start` is to check; it owes an answer if it is."""
        record.is_checking = self._due and record.worker == _CHECKS
        return record.is_checking

    def take_answer(self, record: WorkerRecord) -> None:
        """Note that a worker ran a ticket of the current version: it has checked before, if it was to."""
        if record.is_checking:
            record.is_checking = self._due = False

    def worker_died(self, record: WorkerRecord) -> None:
        """Check no more if the worker died while it checked, since the next might do so, too."""
        if record.is_checking and self._mode == "warn":
            self._due = False

    def shared_files(self, record: WorkerRecord, records: Sequence[WorkerRecord], files: tuple[str, ...]) -> list[str]:
        """Record where wrappers of a worker's environments write files; return what to warn of."""
        worker = record.worker
        warnings: list[str] = []
        for number, place in enumerate(files):
            owner = next((other.worker for other in records if other is not record and place in other.files), worker)
            if owner != worker or place in files[:number]:
                both = sorted((owner, worker))
                whose = f"workers {both[0]} and {both[1]}" if owner != worker else f"environments of worker {worker}"
                warnings.append(
                    f"{whose} write to the same files, {place}, and overwrite each other's. Give each worker a place "
                    "of its own: a function that makes the environment is given the worker's number if it has a "
                    "parameter `worker_number`"
                )
        record.files += files
        new = [text for text in dict.fromkeys(warnings) if text not in self._reported]
        self._reported.update(new)
        return new


# ----------------------------------------------------------------------
# Compare the fingerprints that a sampler's workers tell, and decide what is said about those that differ. Pure.


_ELSEWHERE = (
    "{} was begun where NumPy or torch compute with other kernels ({} there, {} here), so what is sampled now may not "
    "be what would have been sampled there. Continue on a machine of that kind: see "
    'streamsampler/docs/guarantees.md, "Other processors"'
)


class Fingerprints:
    """What is known of how a sampler's workers compute.

    Args:
        mode: The sampler's argument `fingerprint`.
    """

    def __init__(self, mode: CheckMode) -> None:
        self._mode = mode
        self._told: dict[int, Fingerprint] = {}
        self._of_dead: dict[int, Fingerprint] = {}  # until the workers in their places tell theirs
        self._reported: set[str] = set()
        self._pending = ""

    def record(self, worker: int, found: Fingerprint) -> str:
        """Record the fingerprint of a worker; return what the call ends with, or ""."""
        before = self._of_dead.pop(worker, None)
        self._told[worker] = found
        text = disagreement(self._told.items())
        if not text and before is not None:
            # The batch may have trajectories of this worker, and of the one on another machine that it replaced.
            text = disagreement([*self._told.items(), (worker, before)])
        self._pending = text or self._pending
        return text if self._mode == "error" else ""

    def worker_died(self, worker: int) -> None:
        """Forget the fingerprint of a worker that died, once that of the worker in its place is known."""
        if (found := self._told.pop(worker, None)) is not None:
            self._of_dead[worker] = found

    def bits_of(self, worker: int) -> str:
        """Return the bits of a worker's fingerprint; "" before the worker has told it."""
        found = self._told.get(worker)
        return "" if found is None else found.bits

    @property
    def bits(self) -> list[str]:
        """The bits of all fingerprints that are known, each once."""
        return sorted({found.bits for found in self._told.values()})

    def refusal(self) -> str:
        """Return what the next call ends with at once, or "": the living workers are known to differ."""
        return disagreement(self._told.items()) if self._mode == "error" else ""

    def warning(self, n_expected: int = 0) -> str:
        """Return what to warn of, once; or "".

        Args:
            n_expected: Return nothing yet while fewer workers have told their fingerprints: one warning names them all.
        """
        if len(self._told) < n_expected:
            return ""
        text, self._pending = self._pending, ""
        if self._mode != "warn" or text in self._reported:
            return ""
        self._reported.add(text)
        return text


def sampled_elsewhere(place: str, there: Collection[str], here: Iterable[str]) -> str:
    """Describe which fingerprints are new to a folder; "" if each agrees with one of the folder's.

    Args:
        place: The folder.
        there: The fingerprints of those who sampled what it holds; none if it holds nothing.
        here: Those of who samples what comes next.
    """
    strangers = [bits for bits in sorted(here) if there and not any(agree(bits, other) for other in there)]
    return _ELSEWHERE.format(place, " and ".join(sorted(there)), " and ".join(strangers)) if strangers else ""


# ----------------------------------------------------------------------

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


Way: TypeAlias = Literal["lanes", "blocks", "longer blocks"]
"""How workers run trajectories."""


class Session:
    """An engine, a record of each of its workers, and what is in force.

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
        fingerprints: What is known of how workers compute; None to say nothing of it.
        infos_of_files: What is said of the infos of trajectories that go into files; None for nothing.
        record_taken: In which info environments say which action they took; None where they do not.
        clock: Seconds, from any beginning.

    Attributes:
        updates: The latest agent, parameters and environment.
        used: Those that workers are given, which are older with `staleness`.
        sampled: Those that the last call's trajectories were made with.
        sampled_version: Their agent version.
        ticket_version: The version that tickets carry; see `Ticket`.
        capacity: How many unanswered tickets a worker may have.
        records: What is known of each worker, by worker number.
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
        self.order: Order = order
        self.version = self.ticket_version = self.sampled_version = version
        self.layout = layout
        self.throughput = Throughput()
        self.clock = clock
        self.pool = Pool()
        self.capacity = capacity
        self.records = [self._new_record(worker) for worker in range(engine.n_workers)]
        for record in self.records:
            record.side.apply(Happened.LAUNCHED)
        self.supervisor = Supervisor(engine, self.records, policy or Policy(), clock)
        self.checks = checks or PurityChecks(None)
        self.fingerprints = fingerprints or Fingerprints(None)
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
        # By queue, how its workers run trajectories, and with which structure they do.
        self._ways: dict[int, tuple[Way, tuple[int, ...]]] = {}
        self._ran_by_dead = 0  # timesteps
        self._has_counted = False
        self._warned_of: set[str] = set()

    def _new_record(self, worker: int) -> WorkerRecord:
        return WorkerRecord(SamplerSide(worker, self.ticket_version, self.capacity))

    @property
    def is_new(self) -> bool:
        """Whether no agent version was used up, and workers were sent nothing."""
        return self.version == 0 and self.plan is None and not self.suspect

    def continue_from(self, version: int, sampled_version: int, fragments: FragmentLedger | None) -> None:
        """Let the next call be the one after a version, as if an engine before this one had run that.

        Args:
            version: The agent version.
            sampled_version: That of its trajectories.
            fragments: What goes on from its call to the next; None for nothing.
        """
        self.version, self.sampled_version = version, sampled_version
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

    def layout_of(self, plan: GatherPlan) -> Layout:
        """Return how workers run what a plan asks for."""
        return plan.layout if isinstance(plan, Fragments) else self.layout

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

    def begin_version(self, of_trajectories: int | None = None, *, goes_on: bool = False) -> int:
        """Begin the next agent version, and let workers abandon older rollouts.

        Args:
            of_trajectories: The agent version of the trajectories that workers run now; None for the one that begins.
            goes_on: Whether workers run some of them already.

        Returns:
            The agent version of these trajectories.
        """
        self.version += 1
        self.sampled, self.sampled_version = self.used, of_trajectories or self.version
        if not goes_on:
            self.begin_tickets()
        return self.sampled_version

    def begin_tickets(self) -> None:
        """Let workers abandon all that runs; what they are given from now on does not mix with it."""
        self.ticket_version = max(self.ticket_version + 1, self.version)
        # The word first: older rollouts are surplus from now on.
        self.engine.abandon_older(self.ticket_version)
        for record in self.records:
            record.side.begin_version(self.ticket_version)

    def record_way(self, worker: int, way: Way) -> None:
        """Record how a worker runs trajectories with the agent and the environment in force."""
        self._ways[worker if self.used.differ else 0] = way, self.used.structure(worker)

    def ways(self) -> list[tuple[int, Way]]:
        """Return a worker of each queue of which it is known how its workers run trajectories, with that."""
        known = self._ways if self.used.differ else self._ways.keys() & {0}
        ways = [(worker, *self._ways[worker]) for worker in known]
        return [(worker, way) for worker, way, structure in ways if structure == self.used.structure(worker)]

    def shown_timesteps(self, worker: int) -> int:
        """Return the timesteps that a worker has shown of its unanswered tickets of this version."""
        shown = self.engine.progress(worker)
        return shown.timesteps if shown.version == self.ticket_version else 0

    def is_checking(self, worker: int) -> bool:
        """Whether a worker owes the answer after its check: a call that copies complete without it would not warn."""
        return self.records[worker].is_checking

    def seeds_of(self, version: int, indices: Indices) -> list[int]:
        """Return the seeds of trajectories of the current call."""
        return (self.resets or Resets()).seeds_of(TrajectorySeeds(self.seed, version), indices)

    def hand_out(self, record: WorkerRecord, indices: range, block: int) -> None:
        """Send a worker, which is there, a ticket."""
        if not record.side.unanswered:
            record.stillness.reset()
        message = record.side.assign(indices, block)
        if isinstance(message, Start):
            message = Start(message.version, message.tickets, **self.start_contents(record))
        self.engine.send(record.worker, message)

    def start_contents(self, record: WorkerRecord) -> dict[str, Any]:
        """Return what a worker's `Start` carries besides tickets, and record it as sent; see `messages.Start`."""
        contents: dict[str, Any] = dict(self.used.missing(record.worker, record.sent).items())
        if self._resets_handle is not None:
            contents["resets"] = self._resets_handle
        fragments, ledger = self.fragments, self.ledger
        goes_on = record.goes_on if fragments is not None and fragments.base_version == record.goes_on else 0
        if ledger is not None and not goes_on and (order := ledger.order(record.worker)).standings:
            # The worker has none of its environments: it is new, or an exception left them in any state.
            contents["resets"] = self.publish(
                dumps(replace(self.resets or Resets(), fragments=order), "what goes on in environments")
            )
        record.goes_on = goes_on if ledger is None else ledger.base_version
        record.payloads_in_use = tuple(contents.values())
        return {**contents, "check": self.checks.is_due_in(record), "goes_on": goes_on}

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
        in_use = {id(handle) for record in self.records for handle in record.payloads_in_use}
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
        for record in self.records:
            if not self.updates.are_in_force(record.worker, record.sent):
                record.forget()

    # ------------------------------------------------------------------ the end of workers

    def replace_record(self, record: WorkerRecord) -> int:
        """Replace the record of a dead worker; return how many timesteps the worker ran and reported in no answer."""
        worker = record.worker
        record.side.apply(Happened.DIED)
        self.checks.worker_died(record)
        self.fingerprints.worker_died(worker)
        self.throughput.forget(worker)
        self.records[worker] = self._new_record(worker)
        ran = self.engine.ran_timesteps(worker)
        self._ran_by_dead += ran
        return max(0, ran - record.reported_timesteps)

    def take_ran_timesteps(self) -> int:
        """Return how many timesteps all workers ran, as far as they showed them; 0 after the first time."""
        if self._has_counted:
            return 0
        self._has_counted = True
        alive = [record.worker for record in self.records if record.side.state is not SamplerState.ABSENT]
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
