"""Which indices a queue hands out next."""

import itertools

import pytest

from streamsampler.errors import UsageError
from streamsampler.protocol.plans import IndexQueue, Layout


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_lost_tickets_are_handed_out_again_by_index_and_before_anything_new(order):
    """The result waits for the first index that is missing."""
    queue = IndexQueue(range(100))
    tickets = [queue.take_new(4, 100) for _ in range(4)]
    for number in order:
        queue.put_back(tickets[number])
    assert [queue.take_returned(4) for _ in range(3)] == tickets[:3]
    assert queue.first_returned() is None
    assert queue.take_new(4, 100) == range(16, 20)


@pytest.mark.parametrize("layout", [(0, 1), (1, 0), (-1, 8)])
def test_a_layout_of_nothing_is_refused(layout):
    with pytest.raises(UsageError):
        Layout(*layout)


def test_tickets_are_whole_blocks():
    queue = IndexQueue(range(30), 8)
    taken = [queue.take_new(size, 30) for size in (1, 9, 100)]
    assert taken == [range(8), range(8, 24), range(24, 30)]
    queue.put_back(taken[1])
    assert queue.blocks_of(taken[1]) == [range(8, 16), range(16, 24)]
    assert [queue.take_returned(size) for size in (3, 9)] == [range(8, 16), range(16, 24)]
