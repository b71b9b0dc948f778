"""Every interleaving of a small system completes, with the right batch, whatever is lost or cut short on the way."""

import logging

import pytest

from streamsampler.scheduling.blocks import Blocks
from streamsampler.scheduling.plans import AtLeast, Exactly, ExactlyPerWorker
from tests.protocol.model import N_WORKERS, ONE_LOSS, RAISE_AT_ONCE, explore


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("streamsampler")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


# The larger ones, which take seconds, are in the slow tier.
ONE_OR_TWO = [1, pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.parametrize("capacity", ONE_OR_TWO)
@pytest.mark.parametrize(
    "plans", [(Exactly(6), AtLeast(5)), (AtLeast(7), ExactlyPerWorker(2, N_WORKERS))], ids=["exactly", "at-least"]
)
def test_two_calls_without_faults_always_complete(capacity, plans, capsys):
    n_states, n_with_copies, endings = explore(capacity, plans)
    with capsys.disabled():
        print(f" [{n_states:,} states, {n_with_copies:,} with copies]", end="")
    assert endings == {(2, 0)}
    assert n_states > 100


@pytest.mark.parametrize("capacity", ONE_OR_TWO)
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"deaths": 1}, id="death"),
        pytest.param({"failures": 1}, id="exception", marks=pytest.mark.slow),
    ],
)
def test_what_is_made_good_changes_nothing(capacity, faults, capsys):
    """Wherever it strikes, both calls complete, with the batches of the undisturbed run."""
    n_states, n_with_copies, endings = explore(capacity, (Exactly(5), AtLeast(4)), **faults)
    with capsys.disabled():
        print(f" [{n_states:,} states, {n_with_copies:,} with copies]", end="")
    assert endings == {(2, 0)}


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1, 2])
def test_a_death_anywhere_fails_at_most_one_call(capacity, capsys):
    plans = (Exactly(5), AtLeast(4))
    n_states, n_with_copies, endings = explore(capacity, plans, deaths=1, policy=RAISE_AT_ONCE)
    with capsys.disabled():
        print(f" [{n_states:,} states, {n_with_copies:,} with copies]", end="")
    # It may come so late that no call notices, or be noticed by one.
    assert endings == {(2, 0), (1, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1, 2])
def test_an_exception_anywhere_fails_at_most_one_call(capacity, capsys):
    plans = (Exactly(5), AtLeast(4))
    n_states, n_with_copies, endings = explore(capacity, plans, failures=1, policy=RAISE_AT_ONCE)
    with capsys.disabled():
        print(f" [{n_states:,} states, {n_with_copies:,} with copies]", end="")
    assert endings == {(2, 0), (1, 1)}


# Trajectory lengths are 1 or 2: in the first call 2, 1, 2, 1, …
@pytest.mark.parametrize(
    ("capacity", "plans", "doomed", "options", "n_completed"),
    [
        (2, (Exactly(5),), [2], {}, 0),
        (1, (AtLeast(5), Exactly(1)), [3], {}, 2),
        (2, (AtLeast(6),), [2, 3], {}, 0),
        (2, (AtLeast(4),), [3], {"slowness": 4.0}, 1),
        (2, (AtLeast(4),), [2], {"slowness": 4.0}, 0),
        (2, (AtLeast(4),), [3, 4], {"deaths": 1, "policy": ONE_LOSS}, 1),
        (2, (Exactly(4),), [2], {"unsendable": True}, 0),
        (2, (AtLeast(3),), [2], {"unsendable": True}, 1),
        (2, (AtLeast(7),), [5], {"blocks": Blocks(2, 2)}, 1),
        (2, (AtLeast(7),), [4], {"blocks": Blocks(2, 2)}, 0),
        pytest.param(2, (Exactly(5), AtLeast(4)), [3], {}, 1, marks=pytest.mark.slow),
        pytest.param(2, (AtLeast(4), AtLeast(4)), [1, 4], {"deaths": 1, "policy": ONE_LOSS}, 1, marks=pytest.mark.slow),
        pytest.param(1, (AtLeast(9), AtLeast(3)), [6], {"blocks": Blocks(2, 2)}, 2, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_failure_counts_only_where_it_is_needed(capacity, plans, doomed, options, n_completed, capsys):
    """Trajectories that fail whenever they are run: each call ends as one process sampling alone would end it."""
    doomed = [(1, index) for index in doomed]
    n_states, n_with_copies, endings = explore(capacity, plans, doomed=doomed, **{"policy": RAISE_AT_ONCE, **options})
    with capsys.disabled():
        print(f" [{n_states:,} states, {n_with_copies:,} with copies]", end="")
    assert endings == {(n_completed, len(plans) - n_completed)}


@pytest.mark.parametrize(
    ("capacity", "plans"),
    [
        pytest.param(1, (Exactly(3), AtLeast(4)), id="exactly", marks=pytest.mark.slow),
        pytest.param(2, (AtLeast(3), ExactlyPerWorker(1, N_WORKERS)), id="at-least"),
    ],
)
def test_copies_of_what_a_slow_worker_holds_change_nothing(capacity, plans, capsys):
    n_states, n_with_copies, endings = explore(capacity, plans, slowness=4.0)
    with capsys.disabled():
        print(f" [{n_states:,} states, {n_with_copies:,} with copies]", end="")
    assert endings == {(2, 0)}
    assert n_with_copies > 100


@pytest.mark.parametrize(("n_trajectories", "deaths"), [(1, 2), (3, 1)])
def test_the_death_of_either_holder_or_of_both_loses_nothing(n_trajectories, deaths, capsys):
    plans = (Exactly(n_trajectories),)
    n_states, n_with_copies, endings = explore(2, plans, deaths=deaths, slowness=4.0)
    with capsys.disabled():
        print(f" [{n_states:,} states, {n_with_copies:,} with copies]", end="")
    assert endings == {(1, 0)}
    assert n_with_copies > 10


@pytest.mark.parametrize(
    ("capacity", "plans", "faults"),
    [
        (1, (AtLeast(5), AtLeast(2)), {}),
        (2, (AtLeast(7), AtLeast(4)), {}),
        (2, (AtLeast(7),), {"deaths": 1}),
        pytest.param(1, (AtLeast(7),), {"deaths": 2}, marks=pytest.mark.slow),
        (2, (AtLeast(5),), {"slowness": 4.0, "deaths": 1}),
        pytest.param(2, (AtLeast(9), AtLeast(5)), {"deaths": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_blocks_that_are_cut_short_lose_nothing(capacity, plans, faults, capsys):
    n_states, n_with_copies, endings = explore(capacity, plans, blocks=Blocks(2, 2), **faults)
    with capsys.disabled():
        print(f" [{n_states:,} states, {n_with_copies:,} with copies]", end="")
    assert endings == {(len(plans), 0)}
