"""What may happen to a manager of modelled processes, and what must be true whatever does."""

import contextlib
import copyreg
import functools
import io
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from streamsampler.errors import UsageError, WorkerError
from streamsampler.stepping.env_states import EnvState
from streamsampler.stepping.episode_seeds import EpisodeSeeds
from streamsampler.stepping.rows import EnvSpaces, Rows
from tests.stepping.exploration.model import (
    HOWS,
    Board,
    Clock,
    Faults,
    ModelManager,
    arrays_of,
    hang_of,
    new_rows,
    reduce_rows,
    share_space,
    share_spaces,
)

READY, STEPPING, FAILED = EnvState.READY, EnvState.STEPPING, EnvState.FAILED


def check_requests(requests: Any) -> None:
    """Each open request waits for its answer, or has arrived."""
    opened = set(requests.in_states(EnvState.RESETTING, EnvState.STEPPING))
    assert opened == requests.waiting | requests.arrived.keys()
    assert not requests.waiting & requests.arrived.keys()


class World:
    """A manager, its workers, and how much may still happen.

    Args:
        envs_of: The environments of each worker.
        on_failure: See `EnvManager`.
        autoreset: See `EnvManager`.
        steps: How often each environment is stepped.
        faults: How many failures there are.
        calls: How often the caller resets an environment, calls a method, sets an attribute, or asks for accounts.
        hows: How methods fail.
        wait: How much time passes between two tries.
        rounds: Whether the caller steps all environments at once where it can, as vector environments do.

    Attributes:
        now: The time.
    """

    def __init__(self, envs_of, on_failure, autoreset, *, steps, faults, calls=0, hows=HOWS, wait=0, rounds=False):
        self.rounds = rounds
        self.envs_of, self.on_failure, self.autoreset = envs_of, on_failure, autoreset
        self.n_envs = sum(map(len, envs_of))
        self.board, self.rows = Board(len(envs_of)), new_rows(self.n_envs)
        self.faults = Faults([number for number, envs in enumerate(envs_of) for _ in envs], self.board)
        self.steps, self.n_faults, self.used, self.calls = [steps] * self.n_envs, faults, 0, calls
        self.hows, self.wait, self.now = hows, wait, 0
        Clock.world = self
        self.before: list[Any] = [None] * self.n_envs  # episode and timestep of each environment, and whether it ended
        self.actions = [0] * self.n_envs
        self.may_fail = self.died_idle = False
        self.manager = ModelManager(self, on_failure)
        self.take(self.manager.reset)

    # ------------------------------------------------------------------ moves

    @property
    def processes(self):
        return [link.process for link in self.manager._transport._pool if not link.ended]

    def moves(self):
        yield from self.moves_in_round() if self.in_round else self.moves_of_caller()
        for process in self.processes:
            yield from self.moves_in(process)

    @staticmethod
    def moves_in_round():
        """What the caller may do while all environments are at a step."""
        yield "end_round", None
        yield "receive", None  # any other call opens the round

    def moves_of_caller(self):
        """What the caller may do otherwise."""
        scheduler = self.manager._scheduler
        for env_id, state in enumerate(self.manager.states):
            yield from self.moves_of(env_id, state, env_id in scheduler.waiting)
        if self.rounds and all(self.steps) and set(scheduler.states) == {READY}:
            yield "start_round", None
        due = self.times_to_wait()
        if scheduler.n_open and (scheduler.arrived or self.has_news() or 0 in due):
            yield "receive", None
        if any(due):
            yield "pass_time", None
        if self.calls:
            yield "stats", None

    def moves_of(self, env_id, state, is_waiting):
        """What the caller may do with an environment."""
        if state is READY and self.steps[env_id]:
            yield "send", env_id
        if state is FAILED or (state is EnvState.NEEDS_RESET and self.steps[env_id]):
            yield "reset", env_id
        if self.calls and state in (READY, STEPPING):
            yield "reset_early", env_id
        if self.calls and not is_waiting:
            yield "set", env_id
            yield from (("call", (env_id, how)) for how in (None, *self.ways_to_fail))

    def moves_in(self, process):
        """What may happen to a worker."""
        number = process.number
        if process.can_work:
            yield "work", (number, None)
            methods = process.next_methods() if self.n_faults else ()
            yield from (("work", (number, (*method, how))) for method in methods for how in self.ways_to_fail)
        if self.faults.gone.get(number):
            yield "time_out", number
        if self.n_faults and number not in self.faults.gone:
            yield "die", number

    @property
    def ways_to_fail(self):
        return self.hows if self.n_faults else ()

    def go(self, name, subject):
        """Take a move."""
        getattr(self, name)(subject)

    def has_news(self):
        return any(process.said or self.faults.gone.get(process.number) is False for process in self.processes)

    def times_to_wait(self):
        """Return the time that is left until each thing that waits."""
        later = [retry.at for retry in self.manager._scheduler._retries]
        starts = [link.start_at for link in self.manager._transport._pool if link.held is not None]
        return [max(0, at - self.now) for at in (*later, *starts)]

    def pass_time(self, _):
        self.now += 1

    def send(self, env_id):
        self.steps[env_id] -= 1
        self.actions[env_id] = 1 + self.steps[env_id]
        self.guarded(lambda: self.manager.send([self.actions[env_id]], [env_id]))

    @property
    def in_round(self):
        return self.manager._scheduler.in_round

    def start_round(self, _):
        self.steps = [left - 1 for left in self.steps]
        self.actions = [1 + left for left in self.steps]
        if not self.manager._start_round(np.array(self.actions)):
            self.manager.send(self.actions)

    def end_round(self, _):
        """Receive the results of a round, if all went well; whatever has not is for `receive`."""
        if (results := self.manager._end_round()) is None:
            return
        for env_id, (episode, timestep, ended) in enumerate(self.before):
            observation, reward = results.observations[env_id].tolist(), results.rewards[env_id]
            if ended:
                assert (observation, reward) == ([SEEDS[env_id][episode + 1], 0], 0)
                self.before[env_id] = (episode + 1, 0, False)
                continue
            ends = timestep + 1 == 2
            assert (reward, env_id in results.ended) == (self.actions[env_id], ends)
            self.before[env_id] = (episode, timestep + 1, ends)
            if ends and self.autoreset == "same_step":
                last = results.last_observations[results.ended.index(env_id)].tolist()
                assert (last, observation[1]) == ([SEEDS[env_id][episode], 2], 0)
                self.before[env_id] = (episode + 1, 0, False)
                episode += 1
            assert observation == [SEEDS[env_id][episode], self.before[env_id][1]]

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
        if how is not None:
            self.note_fault("call")

    def set(self, env_id):
        self.calls -= 1
        self.guarded(lambda: self.manager.set_attr("pokes", 5, [env_id]), is_call=True)

    def stats(self, _):
        self.calls -= 1
        assert self.manager.stats.failures <= self.used

    def receive(self, _):
        self.take(lambda: self.manager.recv(timeout=0))

    def work(self, subject):
        number, fault = subject
        process = next(it for it in self.processes if it.number == number)
        self.faults.armed = fault
        process.work()
        if fault is not None:
            self.note_fault(fault[1])

    def note_fault(self, method):
        """Count a failure; raise if nothing has failed, as the method was not called."""
        if self.faults.armed is not None:
            raise NothingFailedError
        self.n_faults -= 1
        self.used += 1
        # What cannot be made is an error at once; and what failed twice may have failed in the same request.
        self.may_fail |= method == "make" or self.used > 1

    def die(self, number):
        self.died_idle = True
        self.faults.end(number)
        self.n_faults -= 1
        self.used += 1
        self.may_fail |= self.used > 1

    def time_out(self, number):
        self.manager._transport._hangs[number] = hang_of(self, number)
        self.faults.gone[number] = False

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
        if (steps := self.guarded(receive)) is None:
            return
        for row, env_id in enumerate(steps.env_ids.tolist()):
            self.check(env_id, steps, row)

    def check(self, env_id, steps, row):
        episode, timestep = int(steps.episodes[row]), int(steps.timesteps[row])
        before, same_step = self.before[env_id], self.autoreset == "same_step"
        if timestep:
            assert before == (episode, timestep - 1, False), (env_id, episode, timestep, before)
        else:
            assert before is None or before[0] == episode - 1, (env_id, episode, before)
        failed, ended = bool(steps.failed[row]), bool(steps.ended[row])
        observation, last = steps.observations[row].tolist(), steps.last_observations[row].tolist()
        if failed:
            assert self.on_failure != "restore" or self.may_fail
            assert ended
        else:
            assert (last if ended else observation) == [SEEDS[env_id][episode], timestep]
            assert steps.rewards[row] == (self.actions[env_id] if timestep else 0)
            assert ended == (timestep == 2)
        if ended and same_step:
            assert observation == [SEEDS[env_id][episode + 1], 0]
            self.before[env_id] = (episode + 1, 0, False)
        else:
            self.before[env_id] = (episode, timestep, ended)

    def check_refusals(self):
        """What is not allowed in this state is an error, and changes nothing."""
        check_requests(self.manager._scheduler)
        if self.in_round:
            return  # to ask would open it
        for env_id, state in enumerate(self.manager.states):
            if state is not READY:
                with pytest.raises(
                    UsageError, match=f"environment {env_id} is {state.name} and does not wait for an action"
                ):
                    self.manager.send([1], [env_id])
        if not self.manager._scheduler.n_open:
            with pytest.raises(UsageError, match="there is nothing to receive"):
                self.manager.recv()

    def end(self):
        """Let everything come to its end, and see that all environments can be stepped."""
        for _ in range(4):
            self._settle()
            self.actions = [3] * self.n_envs
            self.take(lambda: self.manager.step(np.array(self.actions)))
        self._settle()
        assert self.manager.states == (READY,) * self.n_envs

    def _settle(self):
        while set(self.manager.states) != {READY}:
            if self.manager._scheduler.n_open:
                self.take(self.manager.recv)
            to_reset = [e for e, state in enumerate(self.manager.states) if state in (FAILED, EnvState.NEEDS_RESET)]
            self.take(functools.partial(self.manager.reset, to_reset))

    # ------------------------------------------------------------------ copies and keys

    def copied(self):
        file = io.BytesIO()
        pickler = pickle.Pickler(file, protocol=5)
        shared = {Box: share_space, Discrete: share_space, EnvSpaces: share_spaces}
        pickler.dispatch_table = {**copyreg.dispatch_table, **shared, Rows: reduce_rows}
        pickler.dump(self)
        return file.getvalue()

    def key(self):
        """Return bytes that are equal for worlds with the same future."""
        manager, transport = self.manager, self.manager._transport
        episodes, scheduler, receiver = manager._episodes, manager._scheduler, manager._receiver
        histories = episodes._histories
        if histories is not None:
            histories._settle()
        kept = () if histories is None else (
            histories._rewards.tolist(), histories._actions.tolist(), list(histories.seeds)
        )  # fmt: skip
        links = [
            (link.ended, sorted(link.waiting), sorted(link.restoring), link.is_making, link.requested, repr(link.held),
             repr(link.answer), link.error is not None, link.is_reported,
             max(0, link.start_at - self.now) if link.ended else 0)
            for link in transport._pool
        ]  # fmt: skip
        processes = [
            (
                process.inbox, process.said, process.is_made, repr(process.server._is_over),
                sorted(process.server._ended), sorted(process.server.not_restored),
                {env_id: (env.seen, env.pokes) for env_id, env in sorted(process.server.envs.items())},
            )
            for process in self.processes
        ]  # fmt: skip
        return repr((
            [state.value for state in scheduler.states], list(scheduler.arrived), sorted(scheduler.waiting),
            episodes._numbers.tolist(), episodes._timesteps.tolist(), sorted(scheduler.over),
            sorted(scheduler.failed), sorted(scheduler.lost), episodes._slots.tolist(), episodes._infos, kept,
            repr(episodes._requests._of), receiver._due, scheduler._attempts, repr(transport._pending),
            transport._hangs, links, processes, [array.tolist() for array in arrays_of(self.rows)],
            self.faults.gone, self.steps, self.n_faults, self.used, self.calls, self.before, self.actions,
            [(it.at - self.now, it.resets, it.steps, repr(receiver._orders)) for it in scheduler._retries],
            self.may_fail, self.died_idle, scheduler.in_round, [row.words[1:] for row in self.board.rows],
        ))  # fmt: skip


class NothingFailedError(Exception):
    """The method that was to fail was not called."""


GOING_ON = ("send", "start_round", "end_round", "receive", "work", "time_out", "reset", "pass_time")
"""The moves after which a world is not at its end."""


def seeds_for(n_envs):
    made = EpisodeSeeds(0, n_envs)
    return [[made.next(env_id) for _ in range(16)] for env_id in range(n_envs)]


SEEDS: list[list[int]] = []


def loaded(data):
    """Return a world, and let its time be the time."""
    Clock.world = pickle.loads(data)
    return Clock.world


def explore(*args, **options):
    """Take every move in every state; return how many states there are."""
    SEEDS[:] = seeds_for(sum(map(len, args[0])))
    first = World(*args, **options)
    seen = {first.key()}
    todo: list[tuple[bytes, tuple[Any, ...]]] = [(first.copied(), ())]
    while todo:
        data, path = todo.pop()
        world = loaded(data)
        moves = list(world.moves())
        world.check_refusals()
        for move in moves:
            following = loaded(data)
            try:
                following.go(*move)
                key = following.key()
            except NothingFailedError:
                continue
            except BaseException as error:
                error.add_note(f"after {(*path, move)}")
                raise
            if key not in seen:
                seen.add(key)
                todo.append((following.copied(), (*path, move)))
        if not any(name in GOING_ON for name, _ in moves):
            Clock.world = world
            try:
                world.end()
            except BaseException as error:
                error.add_note(f"at the end of {path}")
                raise
    return len(seen)
