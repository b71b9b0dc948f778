"""Every interleaving of a small system: the scheduler, and the workers' state machine, between queues of messages.

Events go into the scheduler, and its instructions are carried out as they are: nothing stands in between that could be
wrong as well. Only processes and channels are modelled (see `processes`): queues that hold messages until one is taken
out, a word that everybody sees at once, and processes that die at any point, leaving what they had sent.
"""

import hashlib
import pickle
import random
from collections import Counter

from streamsampler.protocol.events import FailureReceived, LaunchPossible, ProgressSeen, ReportReceived, WorkerDied
from streamsampler.protocol.facts import FaultEndsCall
from streamsampler.protocol.faults import Hang
from streamsampler.protocol.instructions import (
    AbandonOlder,
    AccountFailure,
    Discard,
    Forget,
    Keep,
    Kill,
    Launch,
    Raise,
    ReadProgress,
    Reason,
    Retire,
    Send,
    Warn,
)
from streamsampler.protocol.losses import Policy
from streamsampler.protocol.messages import Continue, Exit, Failure, Phase, Report, Start
from streamsampler.protocol.plans import Layout
from streamsampler.protocol.run_twice_checks import RunTwiceChecks
from streamsampler.protocol.scheduler import Scheduler
from streamsampler.protocol.states import SamplerState, WorkerState
from tests.protocol.canonical import key_of
from tests.protocol.processes import Process, length_of, seconds_of


def outcome_of(plan, version, doomed, block):
    """What one process sampling alone would come to: how many trajectories there are, or the one that fails."""
    n, total, first = 0, 0, getattr(plan, "first", 0)
    while total < plan.timesteps if plan.timesteps is not None else n < plan.limit:
        if n % block == 0:
            for index in range(first + n, first + min(n + block, plan.limit or n + block)):
                if (version, index) in doomed:
                    return "failed", index
        total += length_of(version, first + n)
        n += 1
    return "complete", n


RAISE_AT_ONCE = Policy(max_restarts=0)
ONE_LOSS = Policy(max_restarts=1)
RESTART = Policy(restart_on=(OSError,))


class World:
    """One state of the system, and what can happen in it.

    Args:
        capacity: How many tickets a worker may have.
        plans: The plans of the calls.
        n_workers: How many workers there are.
        deaths, hangs, failures, refusals: How many of each there may be, at any places.
        without_room: How many deaths leave a place in which no worker can be started until later.
        others: How many calls may not be those that workers have begun in advance.
        slowness: How many times as long as the others the first worker takes.
        policy: How many losses are replaced.
        layout: How tickets are cut.
        order: How batches are ordered.
        lanes: Whether workers run lanes, and say so when they answer.
        check: What checks of environments do; None for none.
        unsound: Whether the first check fails.
        lag: Whether workers begin with the next call when one is complete.
        doomed: Version and index of trajectories that fail whenever they are run.
        unsendable: Whether they fail when they are sent, so that it is not known which trajectory of a ticket failed.
        eager: Whether workers do at once what nobody but themselves can see: they read messages that add tickets, and
            begin tickets where nobody can be lost any more. What is left out are only other orders of the same steps.
    """

    def __init__(
        self, capacity, plans, *, n_workers=2, deaths=0, hangs=0, failures=0, refusals=0, without_room=0, others=0,
        slowness=1.0, policy=RESTART, layout=Layout(), order="index", lanes=False, check=None, unsound=False,
        lag=False, doomed=(), unsendable=False, eager=False,
    ):  # fmt: skip
        self.is_eager = eager
        self.doomed, self.unsendable, self.lag, self.order = frozenset(doomed), unsendable, lag, order
        self.made_with = capacity, slowness, lanes
        self.block = 1 if lanes else layout.block  # how many fail together
        self.checks = RunTwiceChecks(check)
        self.scheduler = Scheduler(
            n_workers, policy=policy, order=order, capacity=capacity, layout=layout, checks=self.checks,
        )  # fmt: skip
        if slowness > 1:
            for number in range(n_workers):
                self.scheduler.throughput.measure([1, 2], seconds_of(number, 3, slowness), number)
        self.plans = list(plans)
        self.deaths_left, self.hangs_left, self.failures_left, self.refusals_left = deaths, hangs, failures, refusals
        self.last_left, self.others_left, self.is_unsound = without_room, others, unsound
        self.processes = [Process(number, *self.made_with) for number in range(n_workers)]
        self.owed = [[] for _ in self.processes]  # the tickets without an answer
        self.absent = {}  # workers whose deaths were noticed, and whether new ones can be started
        self.unaccounted = []  # those of them that the scheduler has not forgotten yet
        self.oldest = self.in_force = self.sampled = 0  # agent versions: of the word, of workers, of the call
        self.n_events = 0
        self.open = {}  # answers of which nothing became yet, by number
        self.kept = {}  # of the call's reports: agent version, trajectories and their lengths
        self.completed = self.failed = self.checked = 0
        self.happened = Counter()  # instructions, and what the learner did
        self.must_check = check == "error"
        self.is_open, self.first = False, None
        self.begin_call()

    # ------------------------------------------------------------------ what can happen

    def actions(self):
        for process in self.processes:
            if process.is_alive:
                yield from self.actions_of(process)
        if not self.is_open and self.plans:
            yield self.begin_call, None  # the learner has learnt
            if self.others_left:
                yield self.begin_another, None
        # Between calls nobody looks at what comes, unless workers are to get tickets when they have answered.
        if self.is_open or not self.plans or self.scheduler.awaits_answers:
            yield from self.arrivals()

    def arrivals(self):
        for worker, process in enumerate(self.processes):
            if process.answers:
                yield self.receive, worker
            elif not process.is_alive and worker not in self.absent and self.plans_remain:
                yield self.notice_death, worker
            elif not self.absent.get(worker, True) and self.plans_remain:
                yield self.make_room, worker

    def silent_actions(self):
        """What makes no difference to anybody whether it happens now or later; see `is_eager`."""
        may_be_lost = self.deaths_left or self.hangs_left  # then it matters what a worker was last seen doing
        for process in self.processes:
            if not process.is_alive or process.in_hand is not None:
                continue
            message = process.commands[0][0] if process.commands else None
            is_start = isinstance(message, Start) and not may_be_lost and not self.refusals_left
            if is_start or (isinstance(message, Continue) and not process.side._failed):
                yield self.hear, process
            elif not (may_be_lost or message) and (ticket := process.first_ticket) and self.oldest <= ticket.version:
                yield self.begin, process

    @property
    def plans_remain(self):
        return self.is_open or bool(self.plans)

    def actions_of(self, process):
        if process.in_hand is not None:
            yield from self.ends_of(process)
        else:
            if process.commands:
                yield self.hear, process
                if self.refusals_left and isinstance(process.commands[0][0], Start):
                    yield self.refuse, process
            if process.first_ticket is not None:
                yield self.begin, process
        if self.deaths_left:
            yield self.die, process
            if self.last_left:
                yield self.die_without_room, process
        if self.hangs_left and self.is_open and self.can_hang(process):
            yield self.kill_as_hung, process

    def can_hang(self, process):
        side = self.side(process.number)
        return side.unanswered and side.state is not SamplerState.CONDEMNED

    def ends_of(self, process):
        """What may become of a ticket in hand."""
        ticket = process.in_hand
        failing, is_found_out = self.failing(process, ticket), self.is_unsound and process.is_to_check
        if self.oldest > ticket.version or (failing is None and not is_found_out):
            yield self.run, process
        if is_found_out:
            yield self.fail_check, process
        elif failing is not None:
            yield self.fail_as_doomed, process
        elif self.failures_left:
            yield self.fail, (process, ticket.indices[0])
            if ticket.block == 1 and len(ticket.indices) > 1:
                yield self.fail, (process, ticket.indices[-1])

    def failing(self, process, ticket):
        """The trajectory that fails whenever this ticket is run."""
        return next((index for index in ticket.indices if (process.agent_version, index) in self.doomed), None)

    # ------------------------------------------------------------------ what workers do

    def hear(self, process):
        process.hear()

    def begin(self, process):
        process.begin(self.oldest)

    def run(self, process):
        process.run(self.oldest)

    def refuse(self, process):
        self.refusals_left -= 1
        process.hear(refuses=True)

    def fail_check(self, process):
        process.fail(None, Phase.CHECK, "NotReproducibleError")

    def fail_as_doomed(self, process):
        if self.unsendable:
            process.fail(None, Phase.SENDING, "SerializationError")
        else:
            process.fail(self.failing(process, process.in_hand))

    def fail(self, process_and_index):
        self.failures_left -= 1
        process, index = process_and_index
        process.fail(index)

    def die(self, process):
        self.deaths_left -= 1
        process.die()

    def die_without_room(self, process):
        self.last_left -= 1
        process.is_last = True
        self.die(process)

    # ------------------------------------------------------------------ what the sampler does

    def begin_call(self):
        """Begin a call; with a lag the one that workers have begun, as `samplers.off_by_one` does."""
        plan, sampled = self.plans.pop(0), None
        if self.first is not None:
            plan, sampled = plan.starting_at(self.first), self.scheduler.version
            self.happened["call of a lag"] += 1
        self._begin(plan, sampled, keeps_prefetched=self.first is not None)

    def begin_another(self):
        """Begin a call that is not what workers have begun: its environment is another one."""
        self.others_left -= 1
        self.happened["another call"] += 1
        self._begin(self.plans.pop(0), None, keeps_prefetched=False)

    def _begin(self, plan, sampled, *, keeps_prefetched):
        self.kept.clear()
        self.checked, self.first, self.is_open = 0, None, True
        self.in_force = self.sampled = sampled or self.scheduler.version + 1
        options = {"sampled_version": sampled, "keeps_prefetched": keeps_prefetched}
        self.carry_out(self.scheduler.begin(plan, 0.0, **options))
        self.handle()

    def end_call(self, *, is_complete):
        if is_complete:
            self.completed += 1
            self.carry_out(self.scheduler.stop(0.0))
        self.failed += not is_complete
        gathering = self.scheduler.gathering
        self.is_open = False
        self.carry_out(self.scheduler.end(0.0))
        assert self.oldest > self.scheduler.ticket_version, "trajectories go on that are not needed any more"
        assert not any(known.side.state is SamplerState.WORKING for known in self.scheduler.workers), (
            "it is not stopped"
        )
        if is_complete and self.lag and self.plans:
            self.first = gathering.result.next if self.sampled == self.scheduler.version else 0
            self.in_force = self.scheduler.version
            self.carry_out(self.scheduler.prefetch(gathering.plan.starting_at(self.first), 0.0))
        elif self.plans:
            self.begin_call()

    def handle(self, *events):
        """Let the scheduler handle events, and the progress that it asks for; then the call may be over."""
        ending = self.carry_out(self.scheduler.handle(events, 0.0))
        while isinstance(ending, ReadProgress):
            seen = ProgressSeen({worker: self.processes[worker].progress for worker in ending.workers})
            ending = self.carry_out(self.scheduler.handle([seen], 0.0))
        if not self.is_open:
            return
        assert not self.open, "answers of which nothing became"
        if isinstance(ending, Raise):
            self.check_error(ending.fact)
            self.end_call(is_complete=False)
        else:
            self.check_books()
            self.check_result()
            self.happened["copy"] += self.n_copies() > 0
            if self.scheduler.gathering.result.complete:
                self.end_call(is_complete=True)

    def carry_out(self, instructions):  # noqa: C901 (a table)
        """Carry out instructions; return the last one if it is a question or an error."""
        for instruction in instructions:
            self.happened[type(instruction).__name__] += 1
            match instruction:
                case Send(worker=worker, message=message):
                    self.send(worker, message)
                case Keep(number=number):
                    self.keep(number)
                case Discard(number=number, reason=reason):
                    self.discard(number, reason)
                case AccountFailure(number=number):
                    self.count_failure(number)
                case AbandonOlder(version=version):
                    assert version >= self.oldest, "the word never goes back"
                    self.oldest = version
                case Launch(worker=worker):
                    assert self.absent.pop(worker), "a worker is started in a place that there is not"
                    self.processes[worker] = Process(worker, *self.made_with)
                case Retire(worker=worker):
                    assert not self.owed[worker], "a worker ends with tickets"
                    self.processes[worker].send(Exit(), 0)
                case Kill(worker=worker):
                    self.processes[worker].die()
                case Forget(worker=worker):
                    self.unaccounted.remove(worker)
                    self.owed[worker] = []
                case ReadProgress() | Raise():
                    assert instruction is instructions[-1], "something follows an error or a question"
                    return instruction
                case _:
                    assert isinstance(instruction, Warn), "there is no time limit"
        return None

    def send(self, worker, message):
        assert worker not in self.absent, "a message to a worker that is known to be dead"
        owed = self.owed[worker]
        if isinstance(message, Start | Continue):
            assert not (owed and isinstance(message, Start)), "a start for a worker with tickets"
            assert {ticket.version for ticket in message.tickets} == {self.scheduler.ticket_version}
            owed.extend(message.tickets)
            assert len(owed) <= self.made_with[0], "more tickets than a worker may have"
            assert worker == 0 or not self.must_check, "a worker has work while another one checks for all"
        else:
            assert owed, "a worker without tickets stops"
        self.processes[worker].send(message, self.in_force)

    def keep(self, number):
        report, (made_under, lengths) = self.open.pop(number)
        assert made_under == self.sampled, "no stale data"
        known = {index for _, indices, _ in self.kept.values() for index in indices}
        assert known.isdisjoint(report.ticket.indices), "a trajectory that is there"
        self.kept[number] = made_under, report.ticket.indices, lengths
        if report.checked is not None:
            self.must_check = False
            self.happened["check"] += 1

    def count_failure(self, number):
        failure, _ = self.open.pop(number)
        assert isinstance(failure, Failure)
        if failure.phase in (Phase.STEP, Phase.SENDING):
            self.must_check = False  # the worker has checked before

    def discard(self, number, reason):
        answer, _ = self.open.pop(number)
        self.happened[reason.name] += 1
        is_stale = answer.ticket.version < self.scheduler.ticket_version or getattr(answer, "abandoned", False)
        assert is_stale == (reason is Reason.STALE)
        known = {index for _, indices, _ in self.kept.values() for index in indices}
        assert is_stale or known.intersection(answer.ticket.indices), "surplus, and no copy is there"

    def kill_as_hung(self, process):
        self.hangs_left -= 1
        known = self.scheduler.workers[process.number]
        known.hang = Hang(process.progress, 1.0)
        self.scheduler._supervision._kill(known, hangs=True)
        self.carry_out(self.scheduler.pop_instructions())

    def receive(self, worker):
        answer, contents = self.processes[worker].answers.pop(0)
        assert answer.ticket in self.owed[worker], "an answer to a ticket that was not sent"
        self.owed[worker].remove(answer.ticket)
        if not self.plans_remain:
            self.side(worker).record_answer(answer)
            return
        number = self.n_events = self.n_events + 1
        self.open[number] = answer, contents
        if isinstance(answer, Report):
            self.handle(ReportReceived(worker, number, answer, contents and contents[1]))
        else:
            self.handle(FailureReceived(worker, number, answer))

    def notice_death(self, worker):
        self.absent[worker] = can_launch = not self.processes[worker].is_last
        self.unaccounted.append(worker)
        self.handle(WorkerDied(worker, self.processes[worker].progress, -9, can_launch=can_launch))

    def make_room(self, worker):
        self.absent[worker] = True
        self.handle(LaunchPossible(worker))

    # ------------------------------------------------------------------ what must hold

    def check_error(self, fact):
        if not isinstance(fact, FaultEndsCall):
            assert self.is_unsound
            return
        fault, result = fact.fault, self.scheduler.gathering.result
        trajectory = fault.incident.trajectory if fault.failure is None else fault.failure.trajectory
        assert trajectory is None or trajectory not in {n for _, indices, _ in self.kept.values() for n in indices}
        if trajectory is not None and self.block == 1 and self.order == "index":
            assert trajectory == result.next, "raised before it was its turn"
        if self.doomed:
            expected = outcome_of(self.scheduler.gathering.plan, self.sampled, self.doomed, self.block)
            assert ("failed", trajectory) == expected, "another failure than the first one that is needed"

    def check_result(self):
        """What is new in the result is right; and all of it, when it is complete."""
        gathering, version = self.scheduler.gathering, self.sampled
        result, plan, spans = gathering.result, gathering.plan, gathering.result.spans()
        n = sum(len(span.indices) for span in spans)
        if n > self.checked:
            indices, lengths = [], []
            for number, start, stop, part in spans:
                _, own, own_lengths = self.kept[number]
                assert own[start:stop] == part
                indices += list(part)
                lengths += own_lengths[start:stop]
            if self.order == "index":
                assert indices == list(range(plan.first, plan.first + n))
            assert len(set(indices)) == n
            assert lengths == [length_of(version, index) for index in indices]
            assert plan.timesteps is None or plan.timesteps > sum(lengths[:-1]), "the shortest prefix"
            assert result.n_timesteps == sum(lengths)
            self.checked = n
        if result.complete and self.order == "index":
            assert outcome_of(plan, version, self.doomed, self.block) == ("complete", n)
        elif result.complete:
            assert n == plan.limit if plan.timesteps is None else result.n_timesteps >= plan.timesteps

    def check_books(self):
        """What the scheduler takes to be under way is what workers have."""
        for worker, queue in enumerate(self.scheduler.gathering._in_flight.queues):
            assert self.side(worker).unanswered == self.owed[worker], "a lost ticket"
            assert list(queue) == self.side(worker).current_tickets()
        assert not self.unaccounted

    def check_end(self):
        """Nothing can happen any more: then everything has, and nothing waits for an answer that never comes."""
        assert not self.plans_remain, "deadlock"
        for process in self.processes:
            if process.is_alive:
                assert process.side.state in (WorkerState.NEW, WorkerState.IDLE)
                assert not self.side(process.number).unanswered, "a lost ticket"

    def side(self, worker):
        return self.scheduler.workers[worker].side

    def n_copies(self):
        """How many trajectories of the call two workers have."""
        version = self.scheduler.ticket_version
        held = [n for owed in self.owed for ticket in owed if ticket.version == version for n in ticket.indices]
        return len(held) - len(set(held))


def act(world, choice):
    """Let one of the things happen that can."""
    action, subject = choice
    action() if subject is None else action(subject)
    if world.is_eager:
        while (silent := next(world.silent_actions(), None)) is not None:
            silent[0](silent[1])


def explore(capacity, plans, **options):
    """Visit every reachable state once; see `World`.

    Returns:
        How many there are, how many of them with a copy under way, and the numbers of completed and failed calls seen.
    """
    first = World(capacity, plans, **options)
    seen = {digest_of(first)}
    frontier = [pickle.dumps(first)]
    endings = set()
    n_with_copies = 0
    while frontier:
        state = frontier.pop()
        world = pickle.loads(state)
        n_with_copies += world.n_copies() > 0
        n_actions = sum(1 for _ in world.actions())
        if n_actions == 0:
            world.check_end()
            endings.add((world.completed, world.failed))
        for choice in range(n_actions):
            world = pickle.loads(state) if choice else world
            act(world, list(world.actions())[choice])
            digest = digest_of(world)
            if digest not in seen:
                seen.add(digest)
                frontier.append(pickle.dumps(world))
    return len(seen), n_with_copies, endings


def digest_of(world):
    return hashlib.blake2b(key_of(world), digest_size=16).digest()


def walk(seed, capacity, plans, **options):
    """Let anything happen that can, at random, until nothing can any more; return the world then."""
    world, choose = World(capacity, plans, **options), random.Random(seed).choice
    while choices := list(world.actions()):
        act(world, choose(choices))
    world.check_end()
    return world
