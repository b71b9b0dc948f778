"""Every interleaving of sends, receipts, work, failures and deaths in a small system, through the manager's own code.

The environments are real ones, and so is what steps and restores them; what lies between them and the manager is queues
that the exploration empties in every order.
"""

import copy
import functools
import pickle
from typing import Any

import numpy as np
import pytest

from streamsampler.environments.updates import as_env_update
from streamsampler.errors import RolloutError, WorkerDiedError, WorkerError
from streamsampler.stepping.manager import BaseEnvManager
from streamsampler.stepping.options import ManagerOptions, is_abnormal
from streamsampler.stepping.rows import Rows
from streamsampler.stepping.seeds import EpisodeSeeds
from streamsampler.stepping.states import EnvState
from streamsampler.stepping.stepper import Stepper
from streamsampler.stepping.transport import Broken, Done, Restored, Transport
from streamsampler.workers.board import StatusBoard, board_bytes
from tests.stepping.environments import Counting

ENVS_OF = ([0, 1], [2])
WORKER_OF = [0, 0, 1]
LENGTH = 2
READY: Any = EnvState.READY


class Worker:
    """A worker process, as its parent sees it: it carries out what is in its queue, in this order."""

    def __init__(self, number, rows, autoreset):
        self.number, self.rows = number, rows
        row = StatusBoard(memoryview(bytearray(board_bytes(1)))).row(0)
        make = as_env_update(functools.partial(Counting, LENGTH))
        self.stepper = Stepper(dict.fromkeys(ENVS_OF[number], make), number, row, autoreset)
        self.stepper.fresh = dict.fromkeys(ENVS_OF[number], make).__getitem__
        self.stepper.make()
        if rows is not None:
            self.stepper.rows = rows
        self.queue: list[Any] = []
        self.answers: list[Any] = []
        self.is_dead = False

    def work(self, raises=False):
        """Carry out what was asked for first, of one environment."""
        kind, subjects = self.queue.pop(0)
        first, *others = subjects
        if others:
            self.queue.insert(0, (kind, others))
        if kind == "restore":
            n_timesteps = None if first.rewards is None else len(first.rewards)
            self.answers.append(Restored(first.env_id, n_timesteps, self.stepper.restore(first)))
        elif kind == "give_up":
            self.stepper.not_restored.discard(first)
        elif kind == "reset" or first not in self.stepper.not_restored:
            getattr(self.stepper, kind)(first)
            self.answers.append(Done([first]))
            if raises:
                error = RolloutError("", worker_number=self.number, phase=kind, trajectory=None)
                self.stepper.end_episodes([first])
                self.answers[-1] = Broken([first], error, self.number, first)

    def key(self):
        stepper, queue = self.stepper, [(kind, repr(subjects)) for kind, subjects in self.queue]
        made: dict[int, Any] = {**stepper.envs}
        envs = {e: (env._t, env._buffer.tolist()) for e, env in made.items()}
        return queue, repr(self.answers), self.is_dead, envs, stepper._is_over, sorted(stepper.not_restored)


class Queues(Transport):
    """Workers, and the events that have arrived from them."""

    def __init__(self, autoreset):
        self.autoreset = autoreset
        self.workers = [Worker(number, None, autoreset) for number in range(2)]
        self.events: list[Any] = []

    def start(self):
        self.rows = Rows(Counting.observation_space, Counting.action_space, 3, np.zeros)
        for worker in self.workers:
            worker.stepper.rows = self.rows

    def _post(self, kind, subjects, env_ids):
        for number in range(2):
            chosen = [it for it, env_id in zip(subjects, env_ids, strict=True) if WORKER_OF[env_id] == number]
            if chosen:
                self.workers[number].queue.append((kind, chosen))

    def step(self, env_ids):
        self._post("step", env_ids, env_ids)

    def reset(self, env_ids, options):
        self._post("reset", env_ids, env_ids)

    def restore(self, orders):
        self._post("restore", orders, [order.env_id for order in orders])

    def give_up(self, env_ids):
        self._post("give_up", env_ids, env_ids)

    def deliver(self, number):
        """Let what a worker has answered arrive; then its death, if it is dead."""
        worker = self.workers[number]
        self.events += worker.answers
        worker.answers = []
        if worker.is_dead:
            error = WorkerDiedError("", worker_number=number, phase="step", trajectory=None, exitcode=-9)
            self.events.append(Broken(ENVS_OF[number], error, number, ENVS_OF[number][0], is_new=True))
            self.workers[number] = Worker(number, self.rows, self.autoreset)

    def collect(self, timeout):
        while timeout is None and not self.events:
            todo = [worker for worker in self.workers if worker.queue or worker.answers or worker.is_dead]
            assert todo, "deadlock"
            for worker in todo:
                if worker.queue and not worker.is_dead:
                    worker.work()
                self.deliver(worker.number)
        self.in_hand = True
        events, self.events = self.events, []
        return events

    def forget_options(self, env_ids):
        raise NotImplementedError

    request: Any = forget_options
    reports = interrupted = request

    def close(self):
        pass


class Managed(BaseEnvManager):
    def _new_transport(self):
        return Queues(self.autoreset)

    def _send_parameters(self, transport, env_ids):
        pass


_SEEDS = EpisodeSeeds(0, 3)
SEEDS = [[_SEEDS.next(env_id) for _ in range(12)] for env_id in range(3)]


class World:
    """A manager, and what may still happen to it."""

    def __init__(self, on_failure, autoreset, sends, **faults):
        options = ManagerOptions(3, autoreset, None, 1, None, on_failure, is_abnormal)
        self.manager = Managed({}, options, 0)
        self.on_failure = on_failure
        self.before: list[Any] = [None] * 3  # the episode and timestep of each environment, and whether it has ended
        self.actions = [0] * 3
        self.sends, self.faults = sends, faults
        self.take(self.manager.reset)

    @property
    def workers(self):
        return self.manager._transport.workers

    def key(self):
        manager = self.manager
        episodes, ledger, rows = manager._episodes, manager._ledger, manager._transport.rows
        arrays = (rows.observations, rows.rewards, rows.terminated, rows.slots, rows.seeds, rows.actions)
        return pickle.dumps((
            [state.value for state in ledger.states], list(ledger.arrived), sorted(ledger.waiting),
            episodes._numbers.tolist(), episodes._timesteps.tolist(), episodes._is_over.tolist(),
            sorted(episodes._failed), sorted(episodes._lost), [worker.key() for worker in self.workers],
            [array.tobytes() for array in arrays], self.sends, self.faults, self.actions,
            list(manager._inbox._due),
        ))  # fmt: skip

    def moves(self):
        states = self.manager.states
        if self.sends:
            yield from (("send", env_id) for env_id in range(3) if states[env_id] is READY)
        if self.faults.get("resets"):
            yield from (("reset", env_id) for env_id in range(3) if states[env_id] in (READY, EnvState.STEPPING))
        yield from (("recover", env_id) for env_id in range(3) if states[env_id] is EnvState.FAILED)
        if self.manager._ledger.arrived:
            yield "receive", None
        for worker in self.workers:
            if worker.queue and not worker.is_dead:
                yield "work", worker.number
                yield from ((name, worker.number) for name in ("raises", "dies_unsent") if self.faults.get(name))
            if worker.answers or worker.is_dead:
                yield "deliver", worker.number
            if self.faults.get("dies") and not worker.is_dead:
                yield "dies", worker.number

    def send(self, env_id):
        self.sends -= 1
        self.actions[env_id] = 1 + self.sends % 8
        self.manager.send(np.array([self.actions[env_id]]), [env_id])

    def reset(self, env_id):
        self.faults["resets"] -= 1
        self.recover(env_id)

    def recover(self, env_id):
        self.manager.async_reset([env_id])

    def receive(self, _):
        self.take(lambda: self.manager.recv(timeout=0))

    def work(self, number):
        self.workers[number].work()

    def raises(self, number):
        if self.workers[number].queue[0][0] in ("step", "reset"):
            self.faults["raises"] -= 1
        self.workers[number].work(raises=True)

    def dies(self, number):
        self.faults["dies"] -= 1
        self.workers[number].is_dead = True

    def dies_unsent(self, number):
        """It has written a result to its rows, and dies before it says so."""
        self.faults["dies_unsent"] -= 1
        self.workers[number].work()
        if self.workers[number].answers:
            self.workers[number].answers.pop()
        self.workers[number].is_dead = True

    def deliver(self, number):
        self.manager._transport.deliver(number)
        try:
            self.manager._inbox.take_in(0)
        except WorkerError:
            assert self.on_failure == "raise"

    def take(self, receive):
        """Receive results, and check that each follows from the one before it."""
        try:
            steps = receive()
        except WorkerError:
            assert self.on_failure == "raise"
            return
        for row, env_id in enumerate(steps.env_ids.tolist()):
            episode, timestep = int(steps.episodes[row]), int(steps.timesteps[row])
            before = self.before[env_id]
            if timestep:
                assert before == (episode, timestep - 1, False), (env_id, episode, timestep)
            else:
                assert before is None or before[0] == episode - 1
            if steps.failed[row]:
                assert self.on_failure != "restore"
            elif not steps.ended[row] or self.manager.autoreset != "same_step":
                assert steps.observations[row].tolist() == [SEEDS[env_id][episode], timestep]
                assert steps.rewards[row] == (self.actions[env_id] if timestep else 0)
            ended = bool(steps.ended[row])
            if ended and self.manager.autoreset == "same_step":
                assert steps.observations[row].tolist() == [SEEDS[env_id][episode + 1], 0]
                self.before[env_id] = (episode + 1, 0, False)
            else:
                self.before[env_id] = (episode, timestep, ended)

    def end(self):
        """Let everything come to its end, and see that the environments can be stepped."""
        for _ in range(5):  # an error that is raised leaves other results to be received
            self._settle()
            self.actions = [3] * 3
            self.take(lambda: self.manager.step(np.array(self.actions)))
        self._settle()
        assert self.manager.states == (READY,) * 3
        assert self.manager._accounts.not_restored == 0

    def _settle(self):
        while set(self.manager.states) != {READY}:
            if self.manager._ledger.n_open:
                self.take(self.manager.recv)
            failed = [env_id for env_id, state in enumerate(self.manager.states) if state is EnvState.FAILED]
            self.take(functools.partial(self.manager.reset, failed))


def explore(world):
    """Take every move in every state; return how many states there are."""
    seen, todo = {world.key()}, [world]
    while todo:
        world = todo.pop()
        moves = list(world.moves())
        for name, subject in moves:
            following = copy.deepcopy(world)
            getattr(following, name)(subject)
            following.manager._ledger.check()
            if (key := following.key()) not in seen:
                seen.add(key)
                todo.append(following)
        if not moves:
            world.end()
    return len(seen)


@pytest.mark.parametrize("autoreset", ["next_step", pytest.param("same_step", marks=pytest.mark.slow)])
@pytest.mark.parametrize("on_failure", ["restore", "reset", "raise"])
@pytest.mark.parametrize(
    ("sends", "faults"),
    [
        (1, {"dies": 1}),
        (1, {"raises": 1}),
        (1, {"resets": 1}),
        pytest.param(2, {"dies_unsent": 1}, marks=pytest.mark.slow),
        pytest.param(2, {"raises": 1}, marks=pytest.mark.slow),
        pytest.param(1, {"resets": 1, "dies": 1}, marks=pytest.mark.slow),
        pytest.param(1, {"resets": 1, "raises": 1}, marks=pytest.mark.slow),
        pytest.param(1, {"dies": 2}, marks=pytest.mark.slow),
        pytest.param(1, {"raises": 1, "dies": 1}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_every_interleaving_with_failures_goes_on(on_failure, autoreset, sends, faults):
    assert explore(World(on_failure, autoreset, sends, **faults)) > 20
