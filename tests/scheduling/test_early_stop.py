"""Tickets that are cut short: what is missing is run again only where it is needed, and nothing is taken twice."""

from itertools import pairwise

import pytest

from streamsampler.errors import ProtocolError, UsageError
from streamsampler.scheduling.blocks import Blocks
from streamsampler.scheduling.gathering import Gathering
from streamsampler.scheduling.plans import AtLeast, Exactly, ExactlyPerWorker
from streamsampler.scheduling.throughput import Throughput
from tests.scheduling.simulation import assigned, take


def known(length, n=100, seconds=1.0, spread=0):
    throughput = Throughput()
    throughput.add([length - spread, length + spread] * (n // 2), seconds)
    return throughput


def indices_of(gathering):
    return [index for segment in gathering.result.segments() for index in segment.indices]


def test_blocks_grow():
    blocks = Blocks(3, 3)
    starts = [0]
    while len(starts) < 13:
        starts.append(blocks.at(starts[-1]).stop)
    sizes = [after - before for before, after in pairwise(starts)]
    assert sizes == [3] * 4 + [6] * 4 + [9] * 4
    assert all(blocks.at(position) == blocks.at(blocks.at(position)[0]) for position in range(100))
    assert blocks.span(0) == (3, 12)
    assert blocks.span(20) == (6, 36)
    assert [Blocks().at(position) for position in (0, 5)] == [range(1), range(5, 6)]
    with pytest.raises(UsageError):
        Blocks(0)


def test_tickets_are_of_blocks_of_one_size():
    gathering = Gathering(Exactly(100), n_workers=1, throughput=known(1, 10_000), blocks=Blocks(3, 3))
    taken = []
    while (indices := take(gathering, 0)) is not None:
        taken.append(indices)
        gathering.add(0, indices, [1] * len(indices), None)
    assert [(ticket.start, ticket.stop) for ticket in taken][:2] == [(0, 12), (12, 36)]
    assert [index for ticket in taken for index in ticket] == list(range(100))


def test_a_worker_alone_is_told_what_is_missing():
    gathering = Gathering(AtLeast(50), n_workers=1, throughput=known(10), blocks=Blocks(8))
    assert gathering.take(0) == (range(8), 8, 50)
    gathering.add(0, range(8), [20, 5, 30], "part")
    assert gathering.complete
    assert indices_of(gathering) == [0, 1, 2]
    assert gathering.surplus() == (0, 0)


def test_the_second_worker_is_told_what_the_first_one_leaves():
    gathering = Gathering(AtLeast(120), n_workers=2, throughput=known(10), blocks=Blocks(8))
    assert gathering.take(0) == (range(8), 8, 120)
    assert gathering.take(1) == (range(8, 16), 8, 44), "40, and five percent of the 80 before"
    assert take(gathering, 0) is None, "nothing behind what is cut short"


def test_lengths_that_vary_are_allowed_for():
    gathering = Gathering(AtLeast(120), n_workers=2, throughput=known(10, spread=5), blocks=Blocks(8))
    take(gathering, 0)
    _, _, enough = assigned(gathering, 1)
    assert 44 + 2 * 5 * 8**0.5 <= enough <= 46 + 2 * 5 * 8**0.5


def test_a_block_that_was_cut_too_short_is_run_again():
    gathering = Gathering(AtLeast(120), n_workers=2, throughput=known(10), blocks=Blocks(8))
    first, second = take(gathering, 0), take(gathering, 1)
    gathering.add(1, second, [10, 10, 10, 14], "short")
    gathering.add(0, first, [5] * 8, "first")
    assert not gathering.complete
    again, *terms = assigned(gathering, 0)
    assert again == second
    assert terms == [8, 80], "those of the four that are there, and 36 more"
    assert take(gathering, 1) is None
    gathering.add(0, again, [10, 10, 10, 14, 10, 10, 10, 6], "again")
    assert gathering.complete
    assert indices_of(gathering) == list(range(16))
    assert [segment[:3] for segment in gathering.result.segments()] == [
        ("first", 0, 8), ("short", 0, 4), ("again", 4, 8),
    ]  # fmt: skip
    assert gathering.surplus() == (4, 44), "run twice, returned once"


def test_a_ticket_of_several_blocks_is_run_again_from_the_block_that_was_cut():
    gathering = Gathering(AtLeast(200), n_workers=1, throughput=known(10, seconds=1e-3), blocks=Blocks(4))
    indices = take(gathering, 0)
    assert indices == range(20)
    gathering.add(0, indices, [33] * 6, "part")
    assert not gathering.complete
    again, *terms = assigned(gathering, 0)
    assert again.start == 4, "two of its four are there"
    assert terms == [4, 66 + 2]
    gathering.add(0, again, [33, 33, 33], "again")
    assert indices_of(gathering) == list(range(7))


def test_a_copy_of_a_ticket_that_was_cut_short_changes_nothing():
    throughput = known(10, seconds=0.1)
    throughput.add([10] * 50, 10.0, worker=0)
    throughput.add([10] * 50, 0.05, worker=1)
    gathering = Gathering(AtLeast(50), n_workers=2, throughput=throughput, blocks=Blocks(8))
    indices = take(gathering, 0)
    assert take(gathering, 1) == indices, "a copy, for the fast one"
    gathering.add(1, indices, [10, 10, 10], "short")  # as if it had been told of 30
    assert take(gathering, 1) is None, "two of the same could not be told apart"
    assert not gathering.add(0, indices, [10, 10, 10], "copy")
    assert take(gathering, 1) == indices
    gathering.add(1, indices, [10] * 5, "again")
    assert indices_of(gathering) == list(range(5))


def test_a_lost_ticket_is_asked_for_what_is_missing_to_the_prefix():
    gathering = Gathering(AtLeast(120), n_workers=2, throughput=known(10), blocks=Blocks(8))
    first, second = take(gathering, 0), take(gathering, 1)
    gathering.put_back(0, first)
    gathering.add(1, second, [10] * 5, "second")
    assert gathering.take(0) == (first, 8, 120)
    gathering.add(0, first, [10] * 8, "first")
    assert gathering.complete


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        (Exactly(6), {}),
        (ExactlyPerWorker(3, 2), {}),
        (AtLeast(50), {"own_queues": True}),
        (AtLeast(50), {"blocks": None}),
    ],
    ids=["exactly", "per worker", "own queues", "no blocks"],
)
def test_where_all_are_wanted_nothing_is_cut(plan, options):
    gathering = Gathering(plan, n_workers=2, **{"blocks": Blocks(4), **options})
    indices, _, enough = assigned(gathering, 0)
    assert enough == 0
    if len(indices) > 1:
        with pytest.raises(ProtocolError, match="came with"):
            gathering.add(0, indices, [10] * (len(indices) - 1), None)


def test_less_than_was_there_before_is_refused():
    gathering = Gathering(AtLeast(50), n_workers=1, throughput=known(10), blocks=Blocks(8))
    indices = take(gathering, 0)
    gathering.add(0, indices, [10] * 3, None)
    assert take(gathering, 0) == indices
    with pytest.raises(ProtocolError, match="3 of them arrived before"):
        gathering.add(0, indices, [10] * 3, None)
