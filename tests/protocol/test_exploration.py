"""Every interleaving of a small system completes, with the right batch, whatever dies or is cut short on the way."""

import gc
import logging
import pickle
from typing import Any

import pytest

from streamsampler.protocol import states
from streamsampler.protocol.messages import Exit, Failure
from streamsampler.protocol.plans import AtLeast, Exactly, ExactlyPerWorker, Layout
from streamsampler.protocol.states import CAPACITY, Happened, SamplerState, WorkerState
from tests.protocol.canonical import key_of, names_of, unknown
from tests.protocol.model import ONE_LOSS, RAISE_AT_ONCE, RESTART, explore, start
from tests.protocol.processes import N_WORKERS

# The larger worlds, which take seconds to minutes, mostly with as many tickets for each worker as samplers hand out.
slow = pytest.mark.slow
BLOCKS = Layout(2, 2)


@pytest.fixture(autouse=True, scope="module")
def few_to_collect():
    """A world is garbage after each step: what lives on anyway is not looked at each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("streamsampler")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def visit(capsys):
    """Explores a world, and shows how large it is."""

    def visit(capacity, plans, **options):
        n_states, n_with_copies, endings = explore(capacity, plans, **options)
        with capsys.disabled():
            print(f" [{n_states:,} states, {n_with_copies:,} with copies]", end="")
        return n_states, n_with_copies, endings

    return visit


@pytest.mark.parametrize(
    ("capacity", "plans"),
    [
        (1, (Exactly(4), AtLeast(3))),
        pytest.param(2, (AtLeast(3), ExactlyPerWorker(1, N_WORKERS)), marks=slow),
        pytest.param(1, (Exactly(6), AtLeast(5)), marks=slow),
        pytest.param(2, (Exactly(6), AtLeast(5)), marks=slow),
        pytest.param(2, (AtLeast(7), ExactlyPerWorker(2, N_WORKERS)), marks=slow),
    ],
    ids=str,
)
def test_two_calls_without_faults_always_complete(visit, capacity, plans):
    n_states, _, endings = visit(capacity, plans)
    assert endings == {(2, 0)}
    assert n_states > 100


@pytest.mark.parametrize(
    ("capacity", "plans", "faults"),
    [
        pytest.param(2, (Exactly(3),), {"deaths": 1}, marks=slow),
        (1, (Exactly(1), AtLeast(2)), {"refusals": 1}),
        *(
            pytest.param(CAPACITY, (Exactly(4), AtLeast(3)), {fault: 1}, marks=slow)
            for fault in ("deaths", "hangs", "failures", "refusals")
        ),
        pytest.param(2, (Exactly(3),), {"deaths": 1, "failures": 1}, marks=slow),
    ],
    ids=str,
)
def test_what_is_run_again_changes_nothing(visit, capacity, plans, faults):
    """Wherever it happens, all calls complete, with the batches of the undisturbed run."""
    _, _, endings = visit(capacity, plans, **faults)
    assert endings == {(len(plans), 0)}


@pytest.mark.parametrize(
    ("capacity", "plans", "faults"),
    [
        pytest.param(1, (Exactly(1), AtLeast(2)), {"deaths": 1}, marks=slow),
        (2, (Exactly(1), AtLeast(2)), {"deaths": 1}),
        *((capacity, (Exactly(1), AtLeast(2)), {"refusals": 1}) for capacity in (1, 2)),
        *(
            pytest.param(CAPACITY, (Exactly(4), AtLeast(3)), {fault: 1}, marks=slow)
            for fault in ("deaths", "failures", "refusals")
        ),
    ],
    ids=str,
)
def test_a_fault_anywhere_fails_at_most_one_call(visit, capacity, plans, faults):
    _, _, endings = visit(capacity, plans, policy=RAISE_AT_ONCE, **faults)
    # It may come so late that no call notices, or be noticed by one.
    assert endings == {(2, 0), (1, 1)}


# Trajectory lengths are 1 or 2: in the first call 2, 1, 2, 1, …
@pytest.mark.parametrize(
    ("capacity", "plans", "doomed", "options", "n_completed"),
    [
        pytest.param(2, (Exactly(4),), [2], {}, 0, marks=slow),
        (1, (AtLeast(3), Exactly(1)), [2], {}, 2),
        pytest.param(2, (AtLeast(4),), [3], {"slowness": 4.0}, 1, marks=slow),
        (2, (AtLeast(4),), [2], {"slowness": 4.0}, 0),
        pytest.param(2, (Exactly(4),), [2], {"unsendable": True}, 0, marks=slow),
        (2, (AtLeast(3),), [2], {"unsendable": True}, 1),
        (2, (AtLeast(7),), [6], {"layout": BLOCKS}, 1),
        pytest.param(2, (AtLeast(7),), [5], {"layout": BLOCKS}, 0, marks=slow),
        pytest.param(2, (AtLeast(4),), [3, 4], {"deaths": 1, "policy": ONE_LOSS}, 1, marks=slow),
        pytest.param(1, (AtLeast(5), Exactly(1)), [3], {}, 2, marks=slow),
        pytest.param(2, (AtLeast(6),), [2, 3], {}, 0, marks=slow),
        pytest.param(2, (Exactly(5), AtLeast(4)), [3], {}, 1, marks=slow),
        pytest.param(2, (AtLeast(4), AtLeast(4)), [1, 4], {"deaths": 1, "policy": ONE_LOSS}, 1, marks=slow),
        pytest.param(1, (AtLeast(9), AtLeast(3)), [6], {"layout": BLOCKS}, 2, marks=slow),
    ],
    ids=str,
)
def test_a_failure_counts_only_where_it_is_needed(visit, capacity, plans, doomed, options, n_completed):
    """Trajectories that fail whenever they are run: each call ends as one process sampling alone would end it."""
    doomed = [(1, index) for index in doomed]
    _, _, endings = visit(capacity, plans, doomed=doomed, **{"policy": RAISE_AT_ONCE, **options})
    assert endings == {(n_completed, len(plans) - n_completed)}


@pytest.mark.parametrize(
    ("capacity", "plans", "faults"),
    [
        pytest.param(2, (AtLeast(3), ExactlyPerWorker(1, N_WORKERS)), {}, marks=slow),
        pytest.param(2, (Exactly(1),), {"deaths": 2}, marks=slow),
        (1, (Exactly(2),), {"deaths": 1}),
        pytest.param(2, (Exactly(2),), {"deaths": 1}, marks=slow),
        pytest.param(2, (Exactly(1),), {"failures": 3}, marks=slow),
        pytest.param(2, (Exactly(3),), {"deaths": 1}, marks=slow),
        pytest.param(1, (Exactly(3), AtLeast(4)), {}, marks=slow),
        pytest.param(2, (Exactly(2), AtLeast(2)), {"hangs": 1}, marks=slow),
    ],
    ids=str,
)
def test_copies_of_what_a_slow_worker_has_change_nothing(visit, capacity, plans, faults):
    """Whoever dies, the holder of the ticket, that of its copy, or both."""
    _, n_with_copies, endings = visit(capacity, plans, slowness=4.0, **faults)
    assert endings == {(len(plans), 0)}
    assert n_with_copies > 10


@pytest.mark.parametrize(
    ("capacity", "plans", "faults"),
    [
        (1, (AtLeast(5), AtLeast(2)), {}),
        (2, (AtLeast(7), AtLeast(4)), {}),
        pytest.param(2, (AtLeast(6),), {"deaths": 1}, marks=slow),
        pytest.param(2, (AtLeast(4),), {"slowness": 4.0, "deaths": 1}, marks=slow),
        pytest.param(2, (AtLeast(5),), {"slowness": 4.0, "deaths": 1}, marks=slow),
        pytest.param(2, (AtLeast(7),), {"deaths": 1}, marks=slow),
        pytest.param(1, (AtLeast(7),), {"deaths": 2}, marks=slow),
        pytest.param(2, (AtLeast(9), AtLeast(5)), {"deaths": 1}, marks=slow),
    ],
    ids=str,
)
def test_blocks_lose_nothing(visit, capacity, plans, faults):
    _, _, endings = visit(capacity, plans, layout=BLOCKS, **faults)
    assert endings == {(len(plans), 0)}


@pytest.mark.parametrize(
    ("capacity", "plans", "faults", "n_completed"),
    [
        (2, (AtLeast(5), AtLeast(4)), {}, 2),
        (2, (AtLeast(4),), {"deaths": 1}, 1),
        pytest.param(2, (AtLeast(5),), {"deaths": 1}, 1, marks=slow),
        (2, (AtLeast(4),), {"slowness": 4.0}, 1),
        (2, (AtLeast(4),), {"doomed": [(1, 3)]}, 1),
        (2, (AtLeast(4),), {"doomed": [(1, 2)]}, 0),
        pytest.param(2, (AtLeast(4),), {"doomed": [(1, 3)], "unsendable": True}, 1, marks=slow),
        pytest.param(2, (AtLeast(7), AtLeast(4)), {"deaths": 1}, 2, marks=slow),
    ],
    ids=str,
)
def test_lanes_lose_nothing_and_each_trajectory_fails_by_itself(visit, capacity, plans, faults, n_completed):
    """Although the first tickets are whole blocks: workers say only when they answer that they run lanes."""
    policy = RAISE_AT_ONCE if "doomed" in faults else RESTART
    _, _, endings = visit(capacity, plans, layout=BLOCKS, lanes=True, policy=policy, **faults)
    assert endings == {(n_completed, len(plans) - n_completed)}


# ---------------------------------------------------------------------- the key


def moved(world, *choices):
    for choice in choices:
        act, subject = list(world.actions())[choice]
        act() if subject is None else act(subject)
    return world


def test_the_key_is_that_of_the_contents():
    worlds = [moved(start(2, (Exactly(4),), failures=1), *[0] * 5) for _ in range(2)]
    worlds += [pickle.loads(pickle.dumps(worlds[0]))]
    assert len({key_of(world) for world in worlds}) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.session.throughput.add([7], 0.5, 0),
        lambda world: world.session.records[0].sent.clear(),
        lambda world: world.session.records[1].side.mark_for_replacement(),
        lambda world: world.engine.processes[1].commands.clear(),
        lambda world: world.engine.processes[0].side._tickets.clear(),
        lambda world: world.call.gathering._considered.clear(),
        lambda world: world.session._published.clear(),
        lambda world: setattr(world, "deaths_left", 1),
    ],
)
def test_the_key_is_that_of_the_whole_world(change):
    world = moved(start(2, (Exactly(4),)), 0)
    before = key_of(world)
    change(world)
    assert key_of(world) != before


def test_what_does_not_count_is_still_there():
    """Otherwise a field that was renamed would count again, and one that took an old name would not."""
    names, seen = set(), set()
    world = start(2, (Exactly(4),), failures=1)
    names_of(world, names, seen)
    for _ in range(12):
        choices = [act.__name__ for act, _ in world.actions()]
        moved(world, choices.index("fail_first") if "fail_first" in choices else -1)
        names_of(world, names, seen)
        seen.clear()
    assert unknown(names) == set()


# ---------------------------------------------------------------------- what the exploration reaches

NEVER = {
    (WorkerState.NEW, Exit),  # a worker that has done nothing is not replaced
    (WorkerState.STREAMING, Exit),  # a worker is replaced when it has answered all
    (SamplerState.RETIRING, Happened.KILLED),  # the clock stands still
    (SamplerState.WAITING, Exit),  # no worker has too much memory
    (SamplerState.CONDEMNED, Failure),  # one fault at a time
    (SamplerState.WORKING, Happened.NEW_VERSION),  # a call that ends stops its workers
}


class Recorded(dict):
    taken: set[Any]

    def __getitem__(self, event):
        following = super().__getitem__(event)
        self.taken.add(event)
        return following


@slow
def test_every_transition_of_both_tables_is_taken(monkeypatch, visit):
    """So the table has none too many; and without one of them the exploration would raise."""
    tables = {state: Recorded(table) for state, table in states._TRANSITIONS.items()}
    for table in tables.values():
        table.taken = set()
    monkeypatch.setattr(states, "_TRANSITIONS", tables)
    visit(2, (Exactly(5),))
    for fault in ("deaths", "hangs", "failures"):
        _, _, endings = visit(1, (AtLeast(2), Exactly(1)), **{fault: 1})
        assert endings == {(2, 0)}
    missed = {(state, event) for state, table in tables.items() for event in table.keys() - table.taken}
    assert missed == NEVER
