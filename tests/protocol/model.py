"""Every interleaving of a small system: the sampler's real bookkeeping against the workers' real state machine.

Only the channels are modelled: queues that hold messages until one is taken out, a word that everybody sees at once,
and processes that die at any point, leaving what they had sent.
"""

import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from streamsampler.data.statistics import Stats
from streamsampler.engines.base import Answered, Died, Engine
from streamsampler.errors import RolloutError, WorkerDiedError
from streamsampler.protocol.messages import Exit, Failure, Phase, Report, Stop, Times
from streamsampler.protocol.states import SamplerState, WorkerSide, WorkerState
from streamsampler.samplers.call import Call
from streamsampler.samplers.session import Session
from streamsampler.samplers.updates import Updates
from streamsampler.scheduling.restarts import Policy

N_WORKERS = 2
NOTHING_LARGE = np.empty(0, np.float32)


def length_of(version, index):
    return 1 + (version + index) % 2


def n_sufficient(lengths, enough):
    """How many of the first trajectories have as many timesteps as suffice."""
    reached = [n for n in range(1, len(lengths) + 1) if 0 < enough <= sum(lengths[:n])]
    return reached[0] if reached else len(lengths)


def outcome_of(plan, version, doomed):
    """What one process sampling alone would come to: how many trajectories there are, or the one that fails."""
    n, total = 0, 0
    while total < plan.timesteps if plan.timesteps is not None else n < plan.limit:
        if (version, n) in doomed:
            return "failed", n
        total += length_of(version, n)
        n += 1
    return "complete", n


def ignore():
    pass


def no_time():
    """A clock that stands still: whatever is under way has all of its time before it."""
    return 0.0


def seconds_of(worker, n_timesteps, slowness):
    # So long that the shortest ticket is of one trajectory.
    return 0.005 * n_timesteps * (slowness if worker == 0 else 1.0)


@dataclass
class ModelWorker:
    side: WorkerSide = field(default_factory=WorkerSide)
    in_hand: object = None
    commands: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    alive: bool = True
    died_in: int | None = None
    told: tuple = (None, None)  # the agent and the environment it has


class ModelEngine(Engine):
    n_workers = N_WORKERS

    def __init__(self, capacity):
        self.capacity = capacity
        self.workers = [ModelWorker() for _ in range(N_WORKERS)]
        self.wanted = 0
        self.events = []

    def publish(self, payload):
        return payload

    def published(self, handle):
        return handle

    def unpublish(self, handle):
        pass

    def abandon_older(self, version):
        assert version >= self.wanted, "the word never goes back"
        self.wanted = version

    def send(self, worker, message):
        model = self.workers[worker]
        if model.alive:
            model.commands.append(message)
            # The bound that lets a send never wait.
            assert sum(not isinstance(sent, (Stop, Exit)) for sent in model.commands) <= self.capacity
            assert sum(isinstance(sent, Stop) for sent in model.commands) <= 2
            assert sum(isinstance(sent, Exit) for sent in model.commands) <= 1

    def wait(self, timeout):
        events, self.events = self.events, []
        return events

    def progress(self, worker):
        model = self.workers[worker]
        return SimpleNamespace(trajectory=model.died_in, phase=Phase.STEP, version=model.side.version, timesteps=0)

    def request_progress(self, worker):
        raise AssertionError("there is no time limit")

    stacks = kill_worker = request_progress

    def ran_timesteps(self, worker):
        return 0

    def memory_bytes(self, worker):
        return 0

    def retire(self, worker):
        self.send(worker, Exit())
        return True

    def restart(self, worker):
        assert not self.workers[worker].alive
        self.workers[worker] = ModelWorker()

    def kill(self):
        raise AssertionError("nobody closes")

    def close(self):  # type: ignore[override]
        return []


class World:
    """One state of the system, and what can happen in it."""

    def __init__(self, capacity, plans, deaths, failures, slowness, policy, blocks, doomed, unsendable):
        self.slowness = slowness
        self.doomed, self.unsendable = doomed, unsendable
        self.engine = ModelEngine(capacity)
        updates = Updates(N_WORKERS)
        updates.put("agent", ("agent", 0))
        updates.put("env", "env")
        self.session = Session(
            self.engine, updates, seed=0, order="index", version=0, capacity=capacity, policy=policy, clock=no_time,
            blocks=blocks,
        )  # fmt: skip
        if slowness > 1:
            for number in range(N_WORKERS):
                self.session.throughput.add([1, 2], seconds_of(number, 3, slowness), number)
        self.plans = list(plans)
        self.deaths_left = deaths
        self.failures_left = failures
        self.call = None
        self.completed = 0
        self.failed = 0
        self.begin_call()

    def begin_call(self):
        if not self.plans:
            self.call = None
            return
        snapshot = self.session.updates.snapshot()
        self.session.updates.put("agent", ("agent", self.session.version + 1))
        self.call = Call(self.session, self.plans.pop(0), snapshot, Stats.of(N_WORKERS))

    def actions_of_worker(self, number):
        worker = self.engine.workers[number]
        if worker.in_hand is not None:
            for act in self.ends_of(worker.in_hand):
                yield act, number
        else:
            if worker.commands:
                yield self.hear, number
            if worker.side.state is WorkerState.STREAMING:
                yield self.take, number
        if self.deaths_left:
            yield self.die, number

    def ends_of(self, ticket):
        """What may become of a ticket in hand."""
        failing = self.failing(ticket)
        if self.engine.wanted > ticket.version or failing is None:
            yield self.finish
        if failing is not None:
            yield self.fail_as_doomed
        elif self.failures_left:
            yield self.fail_first
            if ticket.block == 1 and len(ticket.indices) > 1:
                yield self.fail_last

    def actions(self):
        for number, worker in enumerate(self.engine.workers):
            if worker.alive:
                yield from self.actions_of_worker(number)
            if worker.answers:
                yield self.receive, number
            elif not worker.alive and self.side(number).state is not SamplerState.ABSENT and self.call is not None:
                yield self.notice_death, number

    # ------------------------------------------------------------------ what workers do

    def answer(self, worker, answer, contents=None):
        worker.answers.append((answer, contents))
        assert len(worker.answers) <= self.engine.capacity, "the way back is bounded"

    def hear(self, number):
        worker = self.engine.workers[number]
        message = worker.commands.pop(0)
        given_up = worker.side.receive(message)
        agent, env = getattr(message, "agent", None), getattr(message, "env", None)
        worker.told = (agent or worker.told[0], env or worker.told[1])
        if isinstance(message, Exit):
            worker.alive = False
            return
        for ticket in given_up:
            self.answer(worker, Report(ticket, given_up=True))

    def take(self, number):
        worker = self.engine.workers[number]
        ticket = worker.side.next_ticket()
        if self.engine.wanted > ticket.version:
            worker.side.before_answer()
            self.answer(worker, Report(ticket, given_up=True))
        else:
            worker.in_hand = ticket

    def finish(self, number):
        worker = self.engine.workers[number]
        ticket, worker.in_hand = worker.in_hand, None
        worker.side.before_answer()
        if self.engine.wanted > ticket.version:
            self.answer(worker, Report(ticket, given_up=True, n_abandoned=1))
            return
        assert worker.told == (("agent", ticket.version), "env"), "on policy, whatever it missed in between"
        lengths = [length_of(ticket.version, index) for index in ticket.indices]
        lengths = lengths[: n_sufficient(lengths, ticket.enough)]
        rollouts = SimpleNamespace(
            observations=NOTHING_LARGE,
            actions=NOTHING_LARGE,
            lengths=np.array(lengths),
            n_trajectories=len(lengths),
            anomalies=(),
            n_timesteps=sum(lengths),
            made_under=worker.told[0][1],
        )
        seconds = Times(step=seconds_of(number, sum(lengths), self.slowness))
        report = Report(ticket, n_trajectories=len(lengths), n_timesteps=sum(lengths), seconds=seconds)
        self.answer(worker, report, (rollouts, None))

    def failing(self, ticket):
        """The trajectory that fails whenever this ticket is run, and the timesteps of those before it in its block."""
        reached = 0
        for first in range(0, len(ticket.indices), ticket.block):
            done = 0
            for index in ticket.indices[first : first + ticket.block]:
                if (ticket.version, index) in self.doomed:
                    return index, done
                done += length_of(ticket.version, index)
                if 0 < ticket.enough <= reached + done:
                    return None
            reached += done
        return None

    def fail_as_doomed(self, number):
        index, done = self.failing(self.engine.workers[number].in_hand)
        self.fail(number, None if self.unsendable else index, done)

    def fail_first(self, number):
        self.failures_left -= 1
        self.fail(number, self.engine.workers[number].in_hand.indices[0])

    def fail_last(self, number):
        self.failures_left -= 1
        self.fail(number, self.engine.workers[number].in_hand.indices[-1])

    def fail(self, number, index, done=0):
        worker = self.engine.workers[number]
        ticket, worker.in_hand = worker.in_hand, None
        worker.told = (None, None)  # it may be half of something
        others = worker.side.fail()
        phase = Phase.SENDING if index is None else Phase.STEP
        self.answer(worker, Failure(ticket, phase, index, "boom", "traceback", None, ("builtins.OSError",), done))
        for given_up in others:
            self.answer(worker, Report(given_up, given_up=True))

    def die(self, number):
        self.deaths_left -= 1
        worker = self.engine.workers[number]
        worker.alive = False
        worker.commands.clear()
        worker.died_in = worker.in_hand and worker.in_hand.indices[-1]
        worker.in_hand = None

    # ------------------------------------------------------------------ what the sampler does

    def receive(self, number):
        answer, contents = self.engine.workers[number].answers.pop(0)
        self.pump(Answered(number, answer, contents, ignore))

    def notice_death(self, number):
        self.pump(Died(number, -9))

    def pump(self, event):
        if self.call is None:
            self.session.records[event.worker].record_answer(event.answer)
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
            if self.call.gathering.complete:
                self.check_result()
                self.completed += 1
                self.call.end()
                self.begin_call()

    def check_error(self, error):
        if error.trajectory is not None and self.call.gathering._queues[0].next_size == 1:
            assert error.trajectory == self.call.gathering.result.next, "raised before it was its turn"
        if self.doomed:
            expected = outcome_of(self.call.gathering.plan, self.call.version, self.doomed)
            assert ("failed", error.trajectory) == expected, "another failure than the first one that is needed"

    def check_result(self):
        version, gathering = self.call.version, self.call.gathering
        indices, lengths = [], []
        for delivery, start, stop, segment in gathering.result.segments():
            assert delivery.rollouts.made_under == version, "no stale data"
            indices += list(segment)
            lengths += delivery.rollouts.lengths[start:stop].tolist()
        assert indices == list(range(len(indices)))
        assert outcome_of(gathering.plan, version, self.doomed) == ("complete", len(indices))
        assert lengths == [length_of(version, index) for index in indices]
        if gathering.plan.timesteps is not None:
            assert sum(lengths) >= gathering.plan.timesteps > sum(lengths[:-1]), "the shortest prefix"
        else:
            assert len(indices) == gathering.plan.limit

    def check_end(self):
        """Nothing can happen any more: then everything has, and nobody waits for an answer that never comes."""
        assert self.call is None, "deadlock"
        for number, worker in enumerate(self.engine.workers):
            if worker.alive:
                assert worker.side.state in (WorkerState.NEW, WorkerState.IDLE)
                assert not self.side(number).unanswered, "a lost ticket"

    def side(self, number):
        return self.session.records[number].side

    def n_copies(self):
        """How many tickets two workers owe."""
        return len(set(self.side(0).unanswered) & set(self.side(1).unanswered))

    def check_books(self):
        """What gathering takes to be under way is what the workers owe."""
        for number, queue in enumerate(self.call.gathering._in_flight._queues if self.call else ()):
            assert queue == self.side(number).current_tickets()

    def key(self):
        supervisor, call = self.session.supervisor, self.call
        sides = [record.side for record in self.session.records]
        gathering = call and call.gathering
        return pickle.dumps(
            (
                [
                    (
                        (w.side.state.value, w.side.version, list(w.side._tickets), w.side._failed),
                        (w.in_hand, w.commands, [answer for answer, _ in w.answers], w.alive, w.died_in, w.told),
                    )
                    for w in self.engine.workers
                ],
                self.engine.wanted,
                [(side.state.value, list(side.unanswered), side.room, side.is_to_be_replaced) for side in sides],
                self.session.version,
                [sorted(record.sent.items()) for record in self.session.records],
                supervisor.losses._n,
                len(self.plans),
                self.deaths_left,
                self.failures_left,
                call and len(call._decisions._outside),
                gathering
                and (
                    [queue._cursor for queue in gathering._queues],
                    [queue._returned for queue in gathering._queues],
                    (gathering._early_stops.partial, sorted(gathering._early_stops._short.items())),
                    sorted(gathering._early_stops._enough.items(), key=str),
                    sorted(gathering._early_stops._expected.items(), key=str),
                    sorted(gathering.result._pending),
                    [(held.indices, held.turn, held.final, held.done) for held in gathering.result.held_failures()],
                    sorted(gathering._retried, key=str),
                    gathering.n_trajectories,
                    gathering._handed_out,
                    gathering.arrived_trajectories,
                    gathering.throughput.timesteps,
                    round(gathering.throughput.spread, 9),
                    gathering._in_flight._queues,
                    sorted(gathering._in_flight._holders.items(), key=str),
                    sorted(gathering._in_flight._done, key=str),
                ),
            )
        )


RAISE_AT_ONCE = Policy(max_restarts=0)
ONE_LOSS = Policy(max_restarts=1)
MAKE_GOOD = Policy(restart_on=(OSError,))


def explore(
    capacity, plans, deaths=0, failures=0, slowness=1.0, policy=MAKE_GOOD, blocks=None, doomed=(), unsendable=False
):
    """Visit every reachable state once.

    Args:
        doomed: Version and index of trajectories that fail whenever they are run.
        unsendable: Whether nobody can tell which trajectory of a ticket it was.

    Returns:
        How many there are, how many of them with a copy under way, and the numbers of completed and failed calls seen.
    """
    doomed = frozenset(doomed)
    first = pickle.dumps(World(capacity, plans, deaths, failures, slowness, policy, blocks, doomed, unsendable))
    seen = {pickle.loads(first).key()}
    frontier = [first]
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
            act, number = list(world.actions())[choice]
            act(number)
            key = world.key()
            if key not in seen:
                seen.add(key)
                frontier.append(pickle.dumps(world))
    return len(seen), n_with_copies, endings
