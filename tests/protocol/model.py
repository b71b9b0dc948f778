"""Every interleaving of a small system: the sampler's real bookkeeping, and the workers' real loop.

Only processes and channels are modelled (see `processes`): queues that hold messages until one is taken out, a word
that everybody sees at once, and processes that die at any point, leaving what they had sent.
"""

import hashlib
import pickle
from typing import Any

from streamsampler.data.statistics import Stats
from streamsampler.engines.base import Answered, Died
from streamsampler.errors import RolloutError, WorkerDiedError
from streamsampler.protocol.faults import Hang
from streamsampler.protocol.messages import Start
from streamsampler.protocol.plans import Layout
from streamsampler.protocol.restarts import Policy
from streamsampler.protocol.states import SamplerState, WorkerState
from streamsampler.samplers.call import Call
from streamsampler.samplers.session import Session
from streamsampler.samplers.updates import Updates
from tests.protocol.canonical import key_of
from tests.protocol.processes import N_WORKERS, ModelEngine, length_of, seconds_of


def outcome_of(plan, version, doomed, block):
    """What one process sampling alone would come to: how many trajectories there are, or the one that fails."""
    n, total = 0, 0
    while total < plan.timesteps if plan.timesteps is not None else n < plan.limit:
        if n % block == 0:
            for index in range(n, min(n + block, plan.limit or n + block)):
                if (version, index) in doomed:
                    return "failed", index
        total += length_of(version, n)
        n += 1
    return "complete", n


def no_time():
    """A clock that stands still: whatever is under way has all of its time before it."""
    return 0.0


RAISE_AT_ONCE = Policy(max_restarts=0)
ONE_LOSS = Policy(max_restarts=1)
RESTART = Policy(restart_on=(OSError,))


class World:
    """One state of the system, and what can happen in it.

    Args:
        capacity: How many tickets a worker may have.
        plans: The plans of the calls.
        deaths, hangs, failures, refusals: How many of each there may be, at any places.
        slowness: How many times as long as the other the first worker takes.
        policy: How many losses are replaced.
        layout: How tickets are cut.
        lanes: Whether workers run lanes, and say so when they answer.
        doomed: Version and index of trajectories that fail whenever they are run.
        unsendable: Whether they fail when they are sent, so that it is not known which trajectory of a ticket failed.
    """

    def __init__(
        self, capacity, plans, *, deaths=0, hangs=0, failures=0, refusals=0, slowness=1.0, policy=RESTART,
        layout=Layout(), lanes=False, doomed=(), unsendable=False,
    ):  # fmt: skip
        self.doomed, self.unsendable = frozenset(doomed), unsendable
        self.engine = ModelEngine(capacity, slowness, lanes)
        self.block = 1 if lanes else layout.block  # how many fail together
        updates = Updates(N_WORKERS)
        updates.put("agent", ("agent", 0))
        updates.put("env", "env")
        self.session = Session(
            self.engine, updates, seed=0, order="index", version=0, capacity=capacity, policy=policy, clock=no_time,
            layout=layout,
        )  # fmt: skip
        if slowness > 1:
            for number in range(N_WORKERS):
                self.session.scheduler.throughput.measure([1, 2], seconds_of(number, 3, slowness), number)
        self.plans = list(plans)
        self.deaths_left, self.hangs_left, self.failures_left, self.refusals_left = deaths, hangs, failures, refusals
        self.call, self.completed, self.failed = None, 0, 0
        self.begin_call()

    def __setstate__(self, state):
        vars(self).update(state)
        store = self.session.store
        published = store._published
        store._published = {id(handle): handle for handle in published.values()}

    def begin_call(self):
        self.checked = 0
        if not self.plans:
            self.call = None
            return
        store, version = self.session.store, self.session.scheduler.version + 1
        snapshot = store.latest.snapshot()
        store.latest.put("parameters", store.publish(("parameters", version)))
        self.call = Call(self.session, self.plans.pop(0), snapshot, Stats.of(N_WORKERS))
        self.call.start()

    # ------------------------------------------------------------------ what can happen

    def actions(self):
        for number, process in enumerate(self.engine.processes):
            if process.is_alive:
                yield from self.actions_of(process)
            if process.answers:
                yield self.receive, number
            elif not process.is_alive and self.side(number).state is not SamplerState.ABSENT and self.call is not None:
                yield self.notice_death, number

    def actions_of(self, process):
        if process.in_hand is not None:
            yield from self.ends_of(process)
        else:
            if process.commands:
                yield process.hear, None
                if self.refusals_left and isinstance(process.commands[0], Start):
                    yield self.refuse, process
            if process.first_ticket is not None:
                yield process.begin, None
        if self.deaths_left:
            yield self.die, process
        if self.hangs_left and self.call is not None and self.side(process.number).unanswered:
            yield self.kill_as_hung, process

    def ends_of(self, process):
        """What may become of a ticket in hand."""
        ticket = process.in_hand
        failing = self.failing(ticket)
        if self.engine.oldest > ticket.version or failing is None:
            yield process.run, None
        if failing is not None:
            yield self.fail_as_doomed, process
        elif self.failures_left:
            yield self.fail, (process, ticket.indices[0])
            if ticket.block == 1 and len(ticket.indices) > 1:
                yield self.fail, (process, ticket.indices[-1])

    def failing(self, ticket):
        """The trajectory that fails whenever this ticket is run."""
        return next((index for index in ticket.indices if (ticket.version, index) in self.doomed), None)

    # ------------------------------------------------------------------ what workers do

    def refuse(self, process):
        self.refusals_left -= 1
        process.hear(failing=0)

    def fail_as_doomed(self, process):
        if self.unsendable:
            process.unsendable = True
        else:
            process.failing = self.failing(process.in_hand)
        process.run()

    def fail(self, process_and_index):
        self.failures_left -= 1
        process, index = process_and_index
        process.failing = index
        process.run()

    def die(self, process):
        self.deaths_left -= 1
        process.die()

    # ------------------------------------------------------------------ what the sampler does

    def kill_as_hung(self, process):
        self.hangs_left -= 1
        scheduler, number = self.session.scheduler, process.number
        known = scheduler.workers[number]
        known.hang = Hang(self.engine.progress(number), 1.0)
        scheduler._supervision._kill(known, hangs=True)
        self.call._carry_out(scheduler.pop_instructions())

    def receive(self, number):
        answer, contents = self.engine.processes[number].answers.pop(0)
        self.pump(Answered(number, answer, contents))

    def notice_death(self, number):
        self.pump(Died(number, -9))

    def pump(self, event):
        if self.call is None:
            self.side(event.worker).record_answer(event.answer)
            return
        self.engine.events.append(event)
        try:
            self.call.pump()
        except (RolloutError, WorkerDiedError) as error:
            self.check_error(error)
            self.failed += 1
            self.call.end()
            self.begin_call()
        else:
            self.check_result()
            if self.call.gathering.result.complete:
                self.completed += 1
                self.call.end()
                self.begin_call()

    # ------------------------------------------------------------------ what must hold

    def check_error(self, error):
        if error.trajectory is not None and self.block == 1:
            assert error.trajectory == self.call.gathering.result.next, "raised before it was its turn"
        if self.doomed:
            expected = outcome_of(self.call.gathering.plan, self.call.version, self.doomed, self.block)
            assert ("failed", error.trajectory) == expected, "another failure than the first one that is needed"

    def check_result(self):
        """What is new in the result is right; and all of it, when it is complete."""
        version, gathering, plan = self.call.version, self.call.gathering, self.call.gathering.plan
        spans = gathering.result.spans()
        n = sum(len(span.indices) for span in spans)
        if n > self.checked:
            indices, lengths = [], []
            for number, start, stop, part in spans:
                rollouts: Any = self.session.arrivals.deliveries[number].rollouts
                assert rollouts.made_under == version, "no stale data"
                indices += list(part)
                lengths += rollouts.lengths[start:stop].tolist()
            assert indices == list(range(n))
            assert lengths == [length_of(version, index) for index in indices]
            assert plan.timesteps is None or plan.timesteps > sum(lengths[:-1]), "the shortest prefix"
            assert gathering.result.n_timesteps == sum(lengths)
            self.checked = n
        if gathering.result.complete:
            assert outcome_of(plan, version, self.doomed, self.block) == ("complete", n)

    def check_end(self):
        """Nothing can happen any more: then everything has, and nothing waits for an answer that never comes."""
        assert self.call is None, "deadlock"
        for number, process in enumerate(self.engine.processes):
            if process.is_alive:
                assert process.side.state in (WorkerState.NEW, WorkerState.IDLE)
                assert not self.side(number).unanswered, "a lost ticket"

    def side(self, number):
        return self.session.scheduler.workers[number].side

    def n_copies(self):
        """How many tickets two workers have."""
        return len(set(self.side(0).unanswered) & set(self.side(1).unanswered))

    def check_books(self):
        """What gathering takes to be under way is what the workers have."""
        for number, queue in enumerate(self.call.gathering._in_flight._queues if self.call else ()):
            assert list(queue) == self.side(number).current_tickets()


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
        world.check_books()
        n_with_copies += world.n_copies() > 0
        n_actions = sum(1 for _ in world.actions())
        if n_actions == 0:
            world.check_end()
            endings.add((world.completed, world.failed))
        for choice in range(n_actions):
            world = pickle.loads(state) if choice else world
            act, subject = list(world.actions())[choice]
            act() if subject is None else act(subject)
            digest = digest_of(world)
            if digest not in seen:
                seen.add(digest)
                frontier.append(pickle.dumps(world))
    return len(seen), n_with_copies, endings


def digest_of(world):
    return hashlib.blake2b(key_of(world), digest_size=16).digest()
