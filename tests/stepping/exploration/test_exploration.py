"""Random walks through calls, work, failures and deaths in small systems, with the manager's and workers' own code.

Whatever happens, in whatever order: each result follows from the one before it, no call waits for ever, what is not
allowed is refused and changes nothing, and in the end all environments can be stepped.
"""

import contextlib
import functools
import logging
import random
from typing import Any

import numpy as np
import pytest

from streamsampler.errors import UsageError, WorkerError
from streamsampler.stepping import generators, processes, recovery, worker_main
from streamsampler.stepping.episodes import EpisodeSeeds
from streamsampler.stepping.ledger import EnvState
from tests.stepping.conftest import MODES
from tests.stepping.exploration.model import HOWS, LENGTH, Clock, ModelManager

READY, STEPPING, FAILED = EnvState.READY, EnvState.STEPPING, EnvState.FAILED


class World:
    """A manager, its workers, and how much may still happen.

    Args:
        system: What `ModelManager` takes.
        steps: How often each environment is stepped.
        faults: How many failures there are.
        calls: How often the caller resets an environment, calls a method, sets an attribute, or asks for accounts.
    """

    def __init__(self, *system, steps, faults, calls):
        Clock.now = 0
        self.manager = ModelManager(*system)
        self.on_failure, self.faults = system[1], self.manager.faults
        n_envs = self.manager.n_envs
        self.steps, self.n_faults, self.used, self.calls = [steps] * n_envs, faults, 0, calls
        seeds = EpisodeSeeds(0, n_envs)
        self.seeds = [[seeds.next(env_id) for _ in range(32)] for env_id in range(n_envs)]
        self.before: list[Any] = [None] * n_envs  # episode and timestep of each environment, and whether it ended
        self.actions = [0] * n_envs
        self.may_fail = self.died_idle = False
        self.take(self.manager.reset)

    # ------------------------------------------------------------------ moves

    @property
    def processes(self):
        return [link.process for link in self.manager.model._pool if not link.ended]

    def moves_by_name(self):
        """Return what may happen next."""
        ways: Any = HOWS if self.n_faults else ()
        moves: dict[str, list[Any]] = {}
        for env_id, state in enumerate(self.manager.states):
            for name, subject in self.moves_of(env_id, state, ways):
                moves.setdefault(name, []).append(subject)
        for process in self.processes:
            for name, subject in self.moves_in(process, ways):
                moves.setdefault(name, []).append(subject)
        due, ledger = self.times_to_wait(), self.manager._ledger
        if ledger.n_open and (ledger.arrived or self.has_news() or 0 in due):
            moves["receive"] = [None]
        if any(due):
            moves["pass_time"] = [None]
        return moves

    def moves_of(self, env_id, state, ways):
        """What the caller may do with an environment."""
        if state is READY and self.steps[env_id]:
            yield "send", env_id
        if state is FAILED or (state is EnvState.NEEDS_RESET and self.steps[env_id]):
            yield "reset", env_id
        if self.calls and state in (READY, STEPPING):
            yield "reset_early", env_id
        if self.calls and env_id not in self.manager._ledger.waiting:
            yield from (("set", env_id), ("stats", None))
            yield from (("call", (env_id, how)) for how in (None, *ways))

    def moves_in(self, process, ways):
        """What may happen to a worker."""
        number = process.number
        if process.can_work:
            yield "work", (process, None)
            methods = process.next_methods() if ways else ()
            yield from (("fail", (process, (*method, how))) for method in methods for how in ways)
        if self.faults.gone.get(number):
            yield "time_out", number
        if ways and number not in self.faults.gone:
            yield "die", number

    def has_news(self):
        return any(process.said or self.faults.gone.get(process.number) is False for process in self.processes)

    def times_to_wait(self):
        """Return the time that is left until each thing that waits."""
        later = [at for at, _ in self.manager._inbox._recovery._later]
        starts = [link.start_at for link in self.manager.model._pool if link.held is not None]
        return [max(0, at - Clock.now) for at in (*later, *starts)]

    def pass_time(self, _):
        Clock.now += 1

    def send(self, env_id):
        self.steps[env_id] -= 1
        self.actions[env_id] = 1 + self.steps[env_id]
        self.guarded(lambda: self.manager.send([self.actions[env_id]], [env_id]))

    def reset(self, env_id):
        self.guarded(lambda: self.manager.async_reset([env_id]))

    def reset_early(self, env_id):
        self.calls -= 1
        self.reset(env_id)

    def call(self, subject):
        env_id, how = subject
        self.calls -= 1
        self.faults.armed = None if how is None else (env_id, "call", how)
        with pytest.raises(RuntimeError, match="gearbox") if how == "raise" else contextlib.nullcontext():
            self.guarded(lambda: self.manager.call("poke", env_ids=[env_id]), is_call=True)
        self.note_fault(how, "call")

    def set(self, env_id):
        self.calls -= 1
        self.guarded(lambda: self.manager.set_attr("pokes", 5, [env_id]), is_call=True)

    def stats(self, _):
        self.calls -= 1
        assert self.manager.stats.failures <= self.used

    def receive(self, _):
        self.take(lambda: self.manager.recv(timeout=0))

    def work(self, subject):
        process, fault = subject
        self.faults.armed = fault
        process.work()
        self.note_fault(fault, fault and fault[1])

    fail = work

    def note_fault(self, fault, method):
        """Count a failure, if the method was called that was to fail."""
        if fault is not None and self.faults.armed is None:
            # What cannot be made is an error at once.
            self.count_fault(method == "make")
        self.faults.armed = None

    def count_fault(self, may_fail):
        self.n_faults -= 1
        self.used += 1
        self.may_fail |= may_fail or self.used > 1  # what failed twice may have failed in the same request

    def die(self, number):
        self.died_idle = True
        self.faults.end(number)
        self.count_fault(False)

    def time_out(self, number):
        self.manager.time_out(number)

    # ------------------------------------------------------------------ what must be true

    def guarded(self, call, *, is_call=False):
        """Call the manager, which may raise that an environment failed; a method has no result of one that did."""
        try:
            return call()
        except WorkerError as error:
            if not (self.on_failure == "raise" or self.may_fail or (is_call and self.on_failure == "reset")):
                raise
            if "waiting for work" in str(error) and not self.died_idle:
                raise AssertionError(error) from error
        return None

    def take(self, receive):
        """Receive results, and check that each follows from the one before it."""
        if (steps := self.guarded(receive)) is not None:
            for row, env_id in enumerate(steps.env_ids.tolist()):
                self.check(env_id, steps.select([row]))

    def check(self, env_id, step):
        episode, timestep = int(step.episodes[0]), int(step.timesteps[0])
        before, seeds = self.before[env_id], self.seeds[env_id]
        if timestep:
            assert before == (episode, timestep - 1, False), (env_id, episode, timestep, before)
        else:
            assert before is None or before[0] == episode - 1, (env_id, episode, before)
        failed, ended = bool(step.failed[0]), bool(step.ended[0])
        observation, last = step.observations[0].tolist(), step.last_observations[0].tolist()
        if failed:
            assert self.on_failure != "restore" or self.may_fail
            assert ended
        else:
            assert (last if ended else observation) == [seeds[episode], timestep]
            assert step.rewards[0] == (self.actions[env_id] if timestep else 0)
            assert ended == (timestep == LENGTH)
        self.before[env_id] = (episode, timestep, ended)
        if ended and self.manager.autoreset == "same_step":
            assert observation == [seeds[episode + 1], 0]
            self.before[env_id] = (episode + 1, 0, False)

    def check_refusals(self):
        """What is not allowed in this state is an error, and changes nothing."""
        ledger = self.manager._ledger
        opened = set(ledger.of(EnvState.RESETTING, STEPPING))
        assert opened == ledger.waiting | ledger.arrived.keys(), "each open request waits for its answer, or has it"
        assert not ledger.waiting & ledger.arrived.keys()
        for env_id, state in enumerate(self.manager.states):
            if state is not READY:
                with pytest.raises(UsageError, match=f"environment {env_id} awaits no action, it is {state.name}"):
                    self.manager.send([1], [env_id])
        if not ledger.n_open:
            with pytest.raises(UsageError, match="there is nothing to receive"):
                self.manager.recv()

    def end(self):
        """Let everything come to its end, and see that all environments can be stepped."""
        for _ in range(4):
            self._settle()
            self.actions = [3] * len(self.actions)
            self.take(lambda: self.manager.step(np.array(self.actions)))
        self._settle()

    def _settle(self):
        while set(self.manager.states) != {READY}:
            if self.manager._ledger.n_open:
                self.take(self.manager.recv)
            to_reset = [e for e, state in enumerate(self.manager.states) if state in (FAILED, EnvState.NEEDS_RESET)]
            self.take(functools.partial(self.manager.reset, to_reset))


GOING_ON = {"send", "receive", "work", "time_out", "reset", "pass_time"}
"""The moves after which a world is not at its end."""


def walk(rng, *system, **amounts):
    """Take moves at random until there is nothing left to do; return how many faults there were."""
    path = []
    try:
        world = World(*system, **amounts)
        while GOING_ON.intersection(moves := world.moves_by_name()):
            world.check_refusals()
            name = rng.choice(sorted(moves))  # first: most of all moves are failures
            path.append((name, rng.choice(moves[name])))
            getattr(world, name)(path[-1][1])
        world.end()
    except BaseException as error:
        error.add_note(f"after {path}")
        raise
    return world.used


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Time is the world's, results are sent one by one, and nothing is logged."""
    for module in (processes, recovery):
        monkeypatch.setattr(module, "time", Clock)
    monkeypatch.setattr(worker_main, "_TOGETHER_SECONDS", -1.0)
    monkeypatch.setattr(processes, "_REPORT_SECONDS", 1)
    monkeypatch.setattr(generators, "generator_states", tuple)  # or what others draw would seem to be theirs
    monkeypatch.setattr(logging.getLogger("streamsampler"), "disabled", True)


SYSTEMS: list[Any] = [[[0], [1]], [[0, 1]], [[0, 1], [2]]]


@pytest.mark.parametrize("n", [12, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("on_failure", ["restore", "reset", "raise"])
def test_every_walk_goes_on(on_failure, autoreset, n):
    n_faults = 0
    for seed in range(n):
        rng = random.Random(seed)
        for wait in (0, 2):
            system = rng.choice(SYSTEMS), on_failure, autoreset, wait
            faults, calls = rng.choice([(2, 0), (1, 3)])
            n_faults += walk(rng, *system, steps=rng.randint(1, 4), faults=faults, calls=calls)
    assert n_faults > n
