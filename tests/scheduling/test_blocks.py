"""Which indices a queue hands out next."""

import itertools

import pytest

from streamsampler.scheduling.blocks import Blocks, IndexQueue


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_lost_tickets_are_handed_out_again_by_index_and_before_anything_new(order):
    """The result waits for the first index that is missing."""
    queue = IndexQueue(range(100), Blocks())
    tickets = [queue.take_new(4, 100) for _ in range(4)]
    for number in order:
        queue.put_back(tickets[number])
    assert [queue.take_returned(4) for _ in range(3)] == tickets[:3]
    assert queue.first_returned() is None
    assert queue.take_new(4, 100) == range(16, 20)
