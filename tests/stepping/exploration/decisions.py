"""The scheduler of environments itself, between a caller and workers that are a few values each: no process, no rows.

What a manager's own code and its workers' own code do around it is in `model` and `world`. Here an environment is the
number of its episode and its timestep, so that more may happen: three workers, three losses, environments that are not
what they were.
"""

import pickle
from dataclasses import dataclass, field
from typing import Any

from streamsampler.errors import RolloutError, WorkerDiedError
from streamsampler.protocol.losses import Losses, Policy
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.env_messages import (
    CountUnrestored,
    EnvsFailed,
    MakeOrders,
    OrdersMade,
    RaiseFailure,
    ReleaseEnvs,
    RequestResets,
    RequestsDone,
    RequestSteps,
    Restored,
    RestoreEnvs,
    StartEpisodes,
)  # fmt: skip
from streamsampler.stepping.env_scheduler import EnvScheduler
from streamsampler.stepping.env_states import EnvState

LENGTH = 2
READY, RESETTING, FAILED, NEEDS_RESET = EnvState.READY, EnvState.RESETTING, EnvState.FAILED, EnvState.NEEDS_RESET


@dataclass
class Worker:
    """A process: what its environments are at, what it was told and has not done, and what it has said."""

    envs: list[int]
    at: dict[int, Any] = field(default_factory=dict)  # episode and timestep; none between two episodes
    ignores: set[int] = field(default_factory=set)
    inbox: list[Any] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    culprit: int | None = None
    is_dead: bool = False
    is_told: bool = False


class Decisions:
    """A scheduler, its caller and its workers, and how much may still happen; see `world.World`."""

    def __init__(self, envs_of, on_failure, autoreset, *, steps, faults, resets=0, hows=("raise", "die", "die after")):
        self.n_envs = sum(map(len, envs_of))
        self.on_failure, self.autoreset, self.hows = on_failure, autoreset, hows
        unlimited = Losses(Policy(max_restarts=None, max_lifetime_restarts=None))
        self.scheduler = EnvScheduler(self.n_envs, on_failure, autoreset, losses=unlimited)
        self.workers = [Worker(envs) for envs in envs_of]
        self.worker_of = [number for number, envs in enumerate(envs_of) for _ in envs]
        self.rows: list[Any] = [None] * self.n_envs  # episode, timestep and whether that has ended
        self.orders: dict[int, Any] = {}
        self.numbers, self.timesteps = [-1] * self.n_envs, [0] * self.n_envs
        self.steps, self.faults, self.resets, self.used = [steps] * self.n_envs, faults, resets, 0
        self.may_fail = False
        self.carry_out(self.scheduler.reset(range(self.n_envs)))
        for worker in self.workers:
            while worker.inbox:
                self.work(worker)
        self.receive()

    # What the scheduler says.

    def carry_out(self, instructions):
        for it in instructions:
            match it:
                case RequestSteps():
                    self.post("step", it.env_ids)
                case RequestResets() | StartEpisodes():
                    self.post("reset", it.env_ids)
                case ReleaseEnvs():
                    self.post("release", it.env_ids)
                case RestoreEnvs():
                    self.post("restore", [env_id for env_id in it.env_ids if env_id in self.orders])
                case MakeOrders():
                    self.carry_out(self.scheduler.handle([self.make_orders(it)], 0.0))
                case RaiseFailure() | CountUnrestored():
                    assert self.may_fail or (self.on_failure == "raise" and isinstance(it, RaiseFailure)), it

    def make_orders(self, it):
        self.orders |= {env_id: self.order(env_id) for env_id in it.to_restore} | dict.fromkeys(it.to_remake)
        return OrdersMade(it.number, {}, [env_id for env_id in it.to_restore if self.orders[env_id] is not None])

    def order(self, env_id):
        """Return the episode and the timestep that an environment is to be at; None for no episode."""
        scheduler, now = self.scheduler, (self.numbers[env_id], self.timesteps[env_id])
        if env_id not in scheduler.arrived:
            return None if env_id in scheduler.over | scheduler.lost else now
        is_failed = env_id in scheduler.failed
        has_ended = is_failed or self.rows[env_id][2]
        begins = scheduler.states[env_id] is RESETTING or env_id in scheduler.over
        if (has_ended and self.autoreset == "same_step") or (begins and not is_failed):
            return now[0] + 1, 0
        return None if has_ended or env_id in scheduler.lost else (now[0], now[1] + 1)

    def post(self, what, env_ids):
        for env_id in env_ids:
            number = self.worker_of[env_id]
            if self.workers[number].is_dead and self.workers[number].is_told:
                self.workers[number] = Worker(self.workers[number].envs)
            self.workers[number].inbox.append((what, env_id, self.orders.pop(env_id, None)))

    # What may happen.

    def moves(self):
        for env_id, state in enumerate(self.scheduler.states):
            if state is READY and self.steps[env_id]:
                yield "send", env_id
            if state is FAILED or (state is NEEDS_RESET and self.steps[env_id]):
                yield "reset", env_id
            elif self.resets and state is not RESETTING:
                yield "reset_early", env_id
        if self.scheduler.arrived or any(it.said or (it.is_dead and not it.is_told) for it in self.workers):
            yield "receive", None
        for number, worker in enumerate(self.workers):
            if not worker.is_dead:
                yield from self.moves_in(number, worker)

    def moves_in(self, number, worker):
        if self.faults:
            yield "die", number
        if not worker.inbox:
            return
        yield "work", (number, None)
        what, env_id, _ = worker.inbox[0]
        if self.faults and what != "release" and env_id not in worker.ignores:
            yield from (("work", (number, how)) for how in self.hows)
            if what == "restore":
                yield "work", (number, "differ")

    def go(self, name, subject):
        match name:
            case "send":
                self.send(subject)
            case "reset" | "reset_early":
                self.resets -= name == "reset_early"
                self.carry_out(self.scheduler.reset([subject]))
            case "receive":
                self.receive()
            case "die":
                self.count_fault()
                self.workers[subject].is_dead = True
            case "work":
                self.work(self.workers[subject[0]], subject[1])

    def count_fault(self):
        self.faults -= 1
        self.used += 1
        self.may_fail |= self.used > 1

    def send(self, env_id):
        self.steps[env_id] -= 1
        self.carry_out(self.scheduler.send([env_id]))

    def work(self, worker, how=None):
        """Let a worker do what it was told first."""
        what, env_id, order = worker.inbox[0] if how == "die" else worker.inbox.pop(0)
        if how is not None:
            self.count_fault()
        if how == "die":
            worker.is_dead, worker.culprit = True, env_id
        elif how == "raise" and (what != "restore" or order is not None):
            phase = "step" if what == "step" and env_id in worker.at else "reset"
            worker.at.pop(env_id, None)
            if what == "restore":
                worker.ignores.add(env_id)
            error = RolloutError("it raised", worker_number=0, phase=phase, trajectory=None)
            worker.said.append(EnvsFailed([env_id], error, 0, env_id))
        else:
            said = self.done(worker, what, env_id, order, differs=how in ("differ", "raise"))
            if how == "die after":
                worker.is_dead, worker.culprit = True, env_id
            else:
                worker.said += said

    def done(self, worker, what, env_id, order, *, differs):
        """Do something; return what the worker says of it."""
        if what == "release":
            worker.ignores.discard(env_id)
            return []
        if what == "restore":
            return [self.restored(worker, env_id, order, "it is another one" if differs else "")]
        if what == "step" and env_id in worker.ignores:
            return []
        worker.ignores.discard(env_id)
        first = self.numbers[env_id] + 1, 0
        if what == "reset" or env_id not in worker.at:
            worker.at[env_id] = first
            self.rows[env_id] = (*first, False)
            return [RequestsDone([env_id], {})]
        episode, timestep = worker.at[env_id]
        self.rows[env_id] = episode, timestep + 1, timestep + 1 == LENGTH
        worker.at[env_id] = episode, timestep + 1
        if self.rows[env_id][2]:
            del worker.at[env_id]
            if self.autoreset == "same_step":
                worker.at[env_id] = first
        return [RequestsDone([env_id], {})]

    def restored(self, worker, env_id, order, why_not):
        worker.at.pop(env_id, None)
        if order is None:
            return Restored(env_id, None, why_not)
        if why_not:
            self.may_fail = True
            worker.ignores.add(env_id)
        else:
            worker.at[env_id] = order
            worker.ignores.discard(env_id)
        return Restored(env_id, order[1], why_not)

    def receive(self):
        """Receive what has arrived, and check that each result follows from the one before."""
        events = [event for worker in self.workers for event in self.said_by(worker)]
        scheduler = self.scheduler
        self.carry_out(scheduler.handle(events, 0.0))
        env_ids = list(scheduler.arrived)
        if not env_ids:
            return
        failed = scheduler.failed.intersection(env_ids)
        scheduler.failed -= failed
        begun = scheduler.start_episodes(env_ids)
        ended = [env_id for env_id in env_ids if env_id in failed or self.rows[env_id][2]]
        for env_id in env_ids:
            self.numbers[env_id] += env_id in begun
            self.timesteps[env_id] = 0 if env_id in begun else self.timesteps[env_id] + 1
            now = self.numbers[env_id], self.timesteps[env_id]
            if env_id not in failed:
                assert self.rows[env_id][:2] == now, f"environment {env_id} returned {self.rows[env_id]} at {now}"
            else:
                assert self.on_failure != "restore" or self.may_fail
        for env_id in scheduler.receive(env_ids, ended, ()):
            self.numbers[env_id] += 1
            self.timesteps[env_id] = 0

    @staticmethod
    def said_by(worker):
        """Return what a worker has said, and that it died."""
        said, worker.said = worker.said, []
        if worker.is_dead and not worker.is_told:
            worker.is_told = True
            phase = Phase.STEP if worker.culprit in worker.at else Phase.RESET
            error = WorkerDiedError("it died", exitcode=-9, worker_number=0, phase=phase, trajectory=None)
            said.append(EnvsFailed(worker.envs, error, 0, worker.culprit, is_new=True))
        return said

    def check(self):
        """Each open request waits for its answer, or has arrived."""
        scheduler = self.scheduler
        opened = set(scheduler.in_states(RESETTING, EnvState.STEPPING))
        assert opened == scheduler.waiting | scheduler.arrived.keys()
        assert not scheduler.waiting & scheduler.arrived.keys()

    def end(self):
        """Let all environments be stepped a few times more."""
        self.faults = 0
        for _ in range(4):
            self.settle()
            for env_id in range(self.n_envs):
                self.carry_out(self.scheduler.send([env_id]))
        self.settle()

    def settle(self):
        for _ in range(20):
            for worker in self.workers:
                while worker.inbox and not worker.is_dead:
                    self.work(worker)
            self.receive()
            self.carry_out(self.scheduler.reset(self.scheduler.in_states(FAILED, NEEDS_RESET)))
            if self.scheduler.states == [READY] * self.n_envs:
                return
        raise AssertionError(f"deadlock: {self.scheduler.states}")

    def key(self):
        """Return what is equal for those with the same future."""
        scheduler = self.scheduler
        decided = (
            [state.name for state in scheduler.states], list(scheduler.arrived), scheduler.waiting, scheduler.over,
            scheduler.failed, scheduler.lost, scheduler.restoring, scheduler._attempts, scheduler._to_reset,
        )  # fmt: skip
        workers = [
            (it.at, it.ignores, it.inbox, [str(event) for event in it.said], it.culprit, it.is_dead, it.is_told)
            for it in self.workers
        ]
        counts = self.numbers, self.timesteps, self.steps, self.faults, self.resets, self.may_fail, self.rows
        return repr((decided, workers, counts))


def explore_decisions(*args, **options):
    """Take every move in every state; return how many states there are."""
    first = Decisions(*args, **options)
    seen = {first.key()}
    todo: list[tuple[bytes, tuple[Any, ...]]] = [(pickle.dumps(first, 5), ())]
    while todo:
        data, path = todo.pop()
        world = pickle.loads(data)
        try:
            world.check()
            moves = list(world.moves())
            for move in moves:
                following = pickle.loads(data)
                following.go(*move)
                if (key := following.key()) not in seen:
                    seen.add(key)
                    todo.append((pickle.dumps(following, 5), (*path, move)))
            if not any(name not in ("reset_early", "die") for name, _ in moves):
                world.end()
        except BaseException as error:
            error.add_note(f"after {path}")
            raise
    return len(seen)
