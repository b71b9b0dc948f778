"""Every interleaving of a small system completes, with the right batch, whatever dies or is cut short on the way."""

import gc
import logging
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import streamsampler
from streamsampler.protocol import states
from streamsampler.protocol.messages import Exit, Failure, Phase
from streamsampler.protocol.plans import AtLeast, Exactly, ExactlyPerWorker, Layout
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.states import CAPACITY, Happened, SamplerState, WorkerState
from tests.protocol.canonical import IRRELEVANT, ORDERED, key_of
from tests.protocol.model import ONE_LOSS, RAISE_AT_ONCE, World, act, explore, walk

BLOCKS = {"layout": Layout(2, 2)}
LANES = {**BLOCKS, "lanes": True}
AT_ONCE: dict[str, Any] = {"policy": RAISE_AT_ONCE}
SLOW = {"slowness": 4.0}
N_WORKERS = 2
EACH = ExactlyPerWorker(1, N_WORKERS)
THREE: dict[str, Any] = {"n_workers": 3, "eager": True}
LAG: dict[str, Any] = {**THREE, "lag": True}
ALL_IN_ONE: dict[str, Any] = {**LAG, **SLOW, "check": "error"}


def doomed(*indices: int, **options: Any) -> dict[str, Any]:
    """Trajectories of the first call that fail whenever they are run."""
    return {"doomed": [(1, index) for index in indices], **AT_ONCE, **options}


def slow(*values: Any) -> Any:
    """A larger world, of seconds to minutes, mostly with as many tickets for each worker as samplers hand out."""
    return pytest.param(*values, marks=pytest.mark.slow)


# How many tickets a worker may have, the calls, what goes wrong, and how many calls complete.
# Trajectory lengths are 1 or 2: in the first call 2, 1, 2, 1, …
WORLDS = [
    # Without faults, and with what is run again: all calls complete, with the batches of the undisturbed run.
    slow(1, [Exactly(4), AtLeast(3)], {}, 2),
    (1, [Exactly(1), AtLeast(2)], {"refusals": 1}, 2),
    slow(2, [AtLeast(3), EACH], {}, 2),
    slow(2, [Exactly(6), AtLeast(5)], {}, 2),
    slow(2, [AtLeast(7), ExactlyPerWorker(2, N_WORKERS)], {}, 2),
    slow(2, [Exactly(3)], {"deaths": 1, "failures": 1}, 1),
    *(slow(CAPACITY, [Exactly(4), AtLeast(3)], {fault: 1}, 2) for fault in ("deaths", "hangs", "failures", "refusals")),
    # A failure counts only where it is needed: each call ends as one process sampling alone would end it.
    (1, [AtLeast(3), Exactly(1)], doomed(2), 2),
    (2, [AtLeast(4)], doomed(2, **SLOW), 0),
    (2, [AtLeast(3)], doomed(2, unsendable=True), 1),
    (2, [AtLeast(7)], doomed(6, **BLOCKS), 1),
    slow(2, [AtLeast(4)], doomed(3, **SLOW), 1),
    slow(2, [Exactly(4)], doomed(2, unsendable=True), 0),
    slow(2, [AtLeast(7)], doomed(5, **BLOCKS), 0),
    slow(2, [AtLeast(4)], doomed(3, 4, deaths=1, policy=ONE_LOSS), 1),
    slow(2, [AtLeast(4), AtLeast(4)], doomed(1, 4, deaths=1, policy=ONE_LOSS), 1),
    slow(2, [Exactly(5), AtLeast(4)], doomed(3), 1),
    slow(1, [AtLeast(9), AtLeast(3)], doomed(6, **BLOCKS), 2),
    # Copies of what a slow worker has, whichever worker dies: the holder of the ticket, that of its copy, or both.
    slow(1, [Exactly(2)], {**SLOW, "deaths": 1}, 1),
    slow(2, [AtLeast(3), EACH], SLOW, 2),
    slow(2, [Exactly(1)], {**SLOW, "deaths": 2}, 1),
    slow(2, [Exactly(1)], {**SLOW, "failures": 3}, 1),
    slow(2, [Exactly(3)], {**SLOW, "deaths": 1}, 1),
    slow(2, [Exactly(2), AtLeast(2)], {**SLOW, "hangs": 1}, 2),
    # Blocks, which fail as a whole.
    (2, [AtLeast(7), AtLeast(4)], BLOCKS, 2),
    slow(2, [AtLeast(5)], {**BLOCKS, **SLOW, "deaths": 1}, 1),
    slow(1, [AtLeast(7)], {**BLOCKS, "deaths": 2}, 1),
    slow(2, [AtLeast(9), AtLeast(5)], {**BLOCKS, "deaths": 1}, 2),
    # Lanes, although the first tickets are whole blocks: workers say only when they answer that they run lanes.
    slow(2, [AtLeast(4)], {**LANES, "deaths": 1}, 1),
    (2, [AtLeast(4)], {**LANES, **SLOW}, 1),
    (2, [AtLeast(4)], doomed(3, **LANES), 1),
    (2, [AtLeast(4)], doomed(2, **LANES), 0),
    slow(2, [AtLeast(4)], doomed(3, unsendable=True, **LANES), 1),
    slow(2, [AtLeast(7), AtLeast(4)], {**LANES, "deaths": 1}, 2),
    # Three workers: losses, a check for all, a slow worker, and a lag, up to all of them in one run.
    (1, [Exactly(2)], {**THREE, "deaths": 1}, 1),
    (2, [Exactly(3), AtLeast(3)], ALL_IN_ONE, 2),
    (1, [Exactly(1), Exactly(1)], {**LAG, "deaths": 1, "others": 1}, 2),
    (1, [Exactly(1)], {**THREE, "check": "error", "deaths": 1, "without_room": 1}, 1),
    (1, [AtLeast(2)], {**THREE, "check": "warn", "failures": 1}, 1),
    (1, [Exactly(1)], {**THREE, "order": "arrival", "failures": 1}, 1),
    slow(1, [Exactly(1), Exactly(1)], {**ALL_IN_ONE, "deaths": 1, "failures": 2}, 2),
    slow(1, [Exactly(1), Exactly(1)], {**ALL_IN_ONE, "deaths": 1, "hangs": 1, "failures": 1}, 2),
    slow(1, [Exactly(2), Exactly(2)], {**LAG, "deaths": 1, "others": 1}, 2),
    slow(1, [Exactly(3)], {**THREE, "deaths": 2}, 1),
    slow(1, [Exactly(2)], {**THREE, "deaths": 2, "without_room": 1}, 1),
    slow(1, [AtLeast(2)], {**THREE, **SLOW, "hangs": 1}, 1),
    slow(1, [Exactly(1)], {**THREE, "order": "arrival", "deaths": 1}, 1),
]


@pytest.fixture(autouse=True, scope="module")
def few_to_collect():
    """A world is garbage after each step: what lives on anyway is not looked at each time."""
    frozen_already = gc.get_freeze_count()
    gc.freeze()
    yield
    if not frozen_already:
        gc.unfreeze()


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("streamsampler")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize(("capacity", "plans", "options", "n_completed"), WORLDS)
def test_every_interleaving(capacity, plans, options, n_completed):
    n_states, n_with_copies, endings = explore(capacity, plans, **options)
    print(f"{n_states} states, {n_with_copies} with a copy under way")
    assert endings == {(n_completed, len(plans) - n_completed)}
    assert n_states > (20 if options else 100)
    assert "slowness" not in options or "lanes" in options or n_with_copies > 10


@pytest.mark.parametrize(
    ("capacity", "plans", "fault"),
    [
        (2, [Exactly(1), AtLeast(2)], "deaths"),
        (1, [Exactly(1), AtLeast(2)], "refusals"),
        *(slow(CAPACITY, [Exactly(4), AtLeast(3)], fault) for fault in ("deaths", "failures", "refusals")),
    ],
)
def test_a_fault_anywhere_fails_at_most_one_call(capacity, plans, fault):
    """It may come so late that no call notices it, or be noticed by one."""
    _, _, endings = explore(capacity, plans, **AT_ONCE, **{fault: 1})
    assert endings == {(2, 0), (1, 1)}


@pytest.mark.parametrize(
    ("plans", "options", "expected"),
    [
        ([Exactly(1), Exactly(1)], {"deaths": 2, "policy": ONE_LOSS}, {(2, 0), (1, 1)}),
        ([Exactly(1), Exactly(1)], {"check": "error", "unsound": True}, {(0, 2)}),
        ([Exactly(1), Exactly(1)], {"check": "error", "lag": True, "failures": 1, **AT_ONCE}, {(2, 0), (1, 1)}),
    ],
)
def test_a_call_fails_where_a_quota_is_spent_or_a_check_fails(plans, options, expected):
    """Deaths that no call needs spend nothing."""
    _, _, endings = explore(1, plans, **THREE, **options)
    assert endings == expected


# Too large to visit every state: three losses of each kind at any place, in calls that follow one another.
LONG: list[tuple[list[Any], dict[str, Any], set[str]]] = [
    (
        [Exactly(5), AtLeast(4), Exactly(6), AtLeast(7)],
        {**ALL_IN_ONE, "deaths": 3, "failures": 3, "hangs": 3, "refusals": 1, "without_room": 1, "others": 1},
        {
            "call of a lag",
            "another call",
            "check",
            "copy",
            "STALE",
            "SURPLUS",
            "Launch",
            "Kill",
            "Retire",
            "ReadProgress",
        },
    ),
    (
        [Exactly(5), AtLeast(9), Exactly(4)],
        {**THREE, **SLOW, "order": "arrival", "check": "warn", "deaths": 3, "failures": 3, "hangs": 3},
        {"check", "STALE", "Launch", "Kill", "Retire"},
    ),
    (
        [AtLeast(20), AtLeast(9), Exactly(8)],
        {**LAG, **BLOCKS, "deaths": 3, "failures": 3, "hangs": 3, "others": 1},
        {"call of a lag", "another call", "STALE", "Launch", "Kill", "Retire"},
    ),
    (
        [AtLeast(20), Exactly(8)],
        {**LAG, **LANES, "deaths": 3, "failures": 3},
        {"call of a lag", "STALE", "Launch", "Retire"},
    ),
]


@pytest.mark.parametrize("seeds", [range(50), slow(range(50, 2_000))])
@pytest.mark.parametrize(("plans", "options", "expected"), LONG)
def test_long_runs(plans, options, expected, seeds):
    """At random, with all invariants."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        world = walk(seed, 2, plans, **options)
        assert (world.completed, world.failed) == (len(plans), 0)
        happened += world.happened
    print(dict(happened))
    assert expected <= happened.keys()


CHANGES: list[Any] = [
    lambda world: world.scheduler.throughput.measure([7], 0.5, 0),
    lambda world: world.scheduler.workers[1].side.mark_for_replacement(),
    lambda world: world.scheduler.gathering._considered.clear(),
    lambda world: world.processes[1].commands.clear(),
    lambda world: world.processes[0].side._tickets.clear(),
    lambda world: setattr(world.processes[0], "progress", Progress(7, 0, None, Phase.WAITING)),
    lambda world: setattr(world, "deaths_left", 1),
    lambda world: setattr(world, "must_check", True),
]


def test_the_key_is_that_of_the_contents_of_the_whole_world():
    for change in CHANGES:
        worlds = [World(2, [Exactly(4)]) for _ in range(2)]
        for world in worlds:
            act(world, next(world.actions()))
        before = {key_of(world) for world in [*worlds, pickle.loads(pickle.dumps(worlds[0]))]}
        assert len(before) == 1
        change(worlds[0])
        assert key_of(worlds[0]) not in before


def test_what_does_not_count_for_the_key_is_still_there():
    """Otherwise a field that was renamed would count again, and one that took an old name would not."""
    paths = [*Path(streamsampler.__file__).parent.rglob("*.py"), Path(__file__).with_name("model.py")]
    sources = {source: set(re.findall(r"^class (\w+)", source, re.MULTILINE)) for source in map(Path.read_text, paths)}
    for name in (*IRRELEVANT, *ORDERED):
        kind, _, field = name.partition(".")
        there = [source for source, kinds in sources.items() if kind in kinds]
        assert any(re.search(rf"^    {field}: |self\.{field}\b", source, re.MULTILINE) for source in there), name


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


@pytest.mark.slow
def test_every_transition_of_both_tables_is_taken(monkeypatch):
    """So the table has none too many; and without one of them the exploration would raise."""
    tables = {state: Recorded(table) for state, table in states._TRANSITIONS.items()}
    for table in tables.values():
        table.taken = set()
    monkeypatch.setattr(states, "_TRANSITIONS", tables)
    explore(2, [Exactly(5)])
    for fault in ("deaths", "hangs", "failures"):
        _, _, endings = explore(1, [AtLeast(2), Exactly(1)], **{fault: 1})
        assert endings == {(2, 0)}
    missed = {(state, event) for state, table in tables.items() for event in table.keys() - table.taken}
    assert missed == NEVER
