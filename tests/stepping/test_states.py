"""The table of an environment's states, and every interleaving of a small system of two workers, three environments."""

import pickle
from typing import Any

import pytest

from streamsampler.errors import ProtocolError, UsageError
from streamsampler.stepping import ledger as ledger_module
from streamsampler.stepping import ledger as states
from streamsampler.stepping.ledger import EnvEvent, EnvState, Ledger, next_state
from tests.stepping.following import check_ledger

WORKER_OF = (0, 0, 1)


@pytest.mark.parametrize("state", EnvState)
def test_what_the_table_lacks_raises(state):
    allowed = states._TRANSITIONS[state]
    for event in EnvEvent:
        if event in allowed:
            assert next_state(state, event) is allowed[event]
        else:
            with pytest.raises(ProtocolError, match=f"{event.name} is not allowed in state {state.name}"):
                next_state(state, event)


def test_errors_name_the_environment_and_say_what_to_do():
    ledger = Ledger(3)
    with pytest.raises(UsageError, match=r"environment 1 awaits no action, it is VOID: call reset\(\)"):
        ledger.refuse_busy([1])
    ledger.request([1], EnvEvent.RESET)
    with pytest.raises(UsageError, match=r"environment 1 .* RESETTING: call recv\(\)"):
        ledger.refuse_busy([1])
    with pytest.raises(ProtocolError, match=r"environments \[2\] answered"):
        ledger.answer([1, 2])
    with pytest.raises(ProtocolError, match="environment 1 has no result"):
        ledger.hand_out(1, EnvEvent.BEGAN)
    ledger.answer([1])
    with pytest.raises(ProtocolError, match="STEPPED is not allowed in state RESETTING"):
        ledger.hand_out(1, EnvEvent.STEPPED)
    assert list(ledger.arrived) == [1]


def test_a_refused_request_changes_nothing():
    ledger = Ledger(3)
    ledger.request([0], EnvEvent.RESET)
    before = pickle.dumps(vars(ledger))
    with pytest.raises(ProtocolError):
        ledger.request([1, 0], EnvEvent.RESET)
    assert pickle.dumps(vars(ledger)) == before


class World:
    """The parent's ledger, and workers of which each answers its requests in order.

    Attributes:
        queues: For each worker the requests on their way, `(environment, kind)`; None where it is dead.
        timesteps: Timesteps of each environment's episode, as the parent has handed them out.
    """

    def __init__(self, length, limit, deaths=0, timeouts=0, discards=0):
        self.length, self.limit = length, limit  # timesteps of an episode; episodes that each environment runs
        self.ledger = Ledger(3)
        self.queues: list[Any] = [[], []]
        self.answers = [[], []]
        self.timesteps = [0, 0, 0]
        self.episodes = [0, 0, 0]
        self.deaths, self.timeouts, self.discards = deaths, timeouts, discards

    def key(self):
        ledger = self.ledger
        return pickle.dumps(
            (
                *(state.value for state in ledger.states), *ledger.arrived, None, *sorted(ledger.waiting), None,
                self.queues, self.answers, self.timesteps, self.episodes, self.deaths, self.timeouts, self.discards,
            )
        )  # fmt: skip

    def moves(self):
        for env_id in range(3):
            if self.queues[WORKER_OF[env_id]] is not None:
                yield from self.moves_of(env_id, self.ledger.states[env_id])
        for worker, queue in enumerate(self.queues):
            yield from ((name, worker) for name in self.moves_with(worker, queue))

    def moves_with(self, worker, queue):
        if queue is None:
            yield "restart"
            return
        if queue:
            yield "work"
        if self.answers[worker]:
            yield "take_in"
        if self.deaths:
            yield "die"
        if queue and self.timeouts:
            yield "time_out"

    def moves_of(self, env_id, state):
        if state is EnvState.READY:
            yield "send", env_id
        if state in (EnvState.VOID, EnvState.NEEDS_RESET, EnvState.FAILED):
            yield "reset", env_id
        if env_id in self.ledger.arrived:
            yield "receive", env_id
            if self.discards:
                yield "discard", env_id

    def send(self, env_id):
        self.ledger.refuse_busy([env_id])
        self.ledger.request([env_id], EnvEvent.SENT)
        self.queues[WORKER_OF[env_id]].append(env_id)

    def reset(self, env_id):
        self.episodes[env_id] %= self.limit  # one that failed after its last episode runs as many again
        self.ledger.request([env_id], EnvEvent.RESET)
        self.queues[WORKER_OF[env_id]].append(env_id)

    def work(self, worker):
        self.answers[worker].append(self.queues[worker].pop(0))

    def take_in(self, worker):
        self.ledger.answer([self.answers[worker].pop(0)])

    def receive(self, env_id):
        if self.ledger.states[env_id] is EnvState.RESETTING:
            self.timesteps[env_id] = 0
            self.ledger.hand_out(env_id, EnvEvent.BEGAN)
            return
        self.timesteps[env_id] += 1
        if self.timesteps[env_id] < self.length:
            self.ledger.hand_out(env_id, EnvEvent.STEPPED)
            return
        self.episodes[env_id] += 1
        limited = self.episodes[env_id] == self.limit
        self.ledger.hand_out(env_id, EnvEvent.REACHED_LIMIT if limited else EnvEvent.ENDED)

    def discard(self, env_id):
        self.discards -= 1
        self.ledger.hand_out(env_id, EnvEvent.DISCARDED)

    def die(self, worker):
        self.deaths -= 1
        self._lose(worker)

    def time_out(self, worker):
        self.timeouts -= 1
        self._lose(worker)

    def _lose(self, worker):
        # What it had answered before arrives: the parent reads it out first.
        self.ledger.answer(self.answers[worker])
        self.answers[worker] = []
        self.queues[worker] = None
        kept = self.ledger.arrived
        self.ledger.fail([env for env in range(3) if WORKER_OF[env] == worker and env not in kept])

    def restart(self, worker):
        self.queues[worker] = []


def explore(monkeypatch, *arguments, **faults):
    """Take every move in every state; return how many states there are, and which transitions were never taken."""
    taken = set()
    table = states._TRANSITIONS

    def recorded(state, event):
        taken.add((state, event))
        return table[state][event]

    monkeypatch.setattr(ledger_module, "next_state", recorded)
    first = World(*arguments, **faults)
    seen, todo, n_endings = {first.key()}, [first], 0
    while todo:
        world = todo.pop()
        moves = list(world.moves())
        if not moves:
            assert world.ledger.states == [EnvState.FINISHED] * 3, "deadlock"
            assert world.ledger.n_open == 0
            n_endings += 1
        before = pickle.dumps(world)
        for name, subject in moves:
            following = pickle.loads(before)
            getattr(following, name)(subject)
            check_ledger(following.ledger)
            if (key := following.key()) not in seen:
                seen.add(key)
                todo.append(following)
    assert n_endings
    return len(seen), {(state, event) for state in table for event in table[state]} - taken


OF_LIFECYCLE = {(state, event) for state in EnvState for event in (EnvEvent.CLOSED, EnvEvent.LAUNCHED)}
# A caller who resets what is in the middle of an episode, or finished, does nothing that others notice.
# An idle worker dies in the larger explorations, which take seconds.
NEVER = {(EnvState.NEEDS_RESET, EnvEvent.BROKE)}
OF_CALLERS = {(EnvState.READY, EnvEvent.RESET), (EnvState.FINISHED, EnvEvent.RESET)}


@pytest.mark.parametrize(
    ("length", "limit", "faults"),
    [
        (1, 1, {}),
        pytest.param(2, 1, {"discards": 1}, marks=pytest.mark.slow),
        pytest.param(2, 2, {}, marks=pytest.mark.slow),
        pytest.param(1, 1, {"deaths": 2}, marks=pytest.mark.slow),
        pytest.param(1, 2, {"deaths": 1, "timeouts": 1, "discards": 1}, marks=pytest.mark.slow),
    ],
)
def test_every_interleaving_ends_with_all_episodes(monkeypatch, length, limit, faults):
    n_states, _ = explore(monkeypatch, length, limit, **faults)
    assert n_states > 300


@pytest.mark.slow
def test_every_transition_of_steps_and_faults_is_taken(monkeypatch):
    """So the table has none too many; and without one of them the exploration would raise."""
    missed = {(state, event) for state, table in states._TRANSITIONS.items() for event in table}
    for length, limit, faults in ((1, 1, {"timeouts": 1}), (1, 1, {"discards": 1}), (1, 2, {}), (2, 1, {})):
        missed &= explore(monkeypatch, length, limit, **faults)[1]
    assert missed == {key for key in OF_LIFECYCLE | OF_CALLERS if key[1] in states._TRANSITIONS[key[0]]} | NEVER
