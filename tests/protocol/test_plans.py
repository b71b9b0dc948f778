"""Which indices a queue hands out next, and parts of a run: ranges of indices, and putting them in order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.errors import UsageError
from streamsampler.protocol.evaluation_parts import Part, checked_part, in_order, part_of, part_of_facts
from streamsampler.protocol.index_queue import IndexQueue, block_at
from streamsampler.protocol.plans import AtLeast, Exactly, Layout, expected_rows


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_lost_tickets_are_handed_out_again_by_index_and_before_anything_new(order):
    """The result waits for the first index that is missing."""
    queue = IndexQueue(range(100))
    tickets = [queue.take_new(4, 100) for _ in range(4)]
    for number in order:
        queue.put_back(tickets[number])
    assert queue.take_returned(4, tickets[0][0] - 1) == range(0), "it comes after the end"
    assert [queue.take_returned(4, 100) for _ in range(3)] == tickets[:3]
    assert queue.take_returned(4, 100) == range(0)
    assert queue.take_new(4, 100) == range(16, 20)


def test_tickets_are_whole_blocks():
    queue = IndexQueue(range(30), 8)
    taken = [queue.take_new(size, 30) for size in (1, 9, 100)]
    assert taken == [range(8), range(8, 24), range(24, 30)]
    queue.put_back(taken[1])
    assert queue.blocks_of(taken[1]) == [range(8, 16), range(16, 24)]
    assert [queue.take_returned(size, 30) for size in (3, 9)] == [range(8, 16), range(16, 24)]
    for nothing in ((0, 1), (1, 0), (-1, 8)):
        with pytest.raises(UsageError):
            Layout(*nothing)


@pytest.mark.usefixtures("few_first_blocks")
def test_blocks_that_get_longer():
    sizes = [len(block_at(position, 5)) for position in range(400)]
    assert sizes == [5] * 30 + [10] * 30 + [20] * 60 + [40] * 120 + [80] * 160
    for position in range(3_000):
        block = block_at(position, 5)
        assert position in block
        assert {block_at(other, 5) for other in block} == {block}
        assert len(block) <= max(5, block.start // 3)
    queue = IndexQueue(range(7, 407), 5, lengthens=True)
    assert queue.take_new(100, 500) == range(7, 37)
    assert not queue.take_new(100, 500), "before it is known whether they do"
    queue.is_certain = True
    assert [queue.take_new(25, 500) for _ in range(3)] == [range(37, 67), range(67, 107), range(107, 127)]
    assert queue.blocks_of(range(67, 107)) == [range(67, 87), range(87, 107)]
    queue.put_back(range(67, 107))
    assert [queue.take_returned(1, 500) for _ in range(2)] == [range(67, 87), range(87, 107)]


def test_a_result_is_expected_to_be_a_little_larger_than_asked_for():
    assert expected_rows(AtLeast(100), 10.0) == (110, 11)
    assert expected_rows(Exactly(7), None) == (8, 7)


@given(of=st.integers(1, 40), more=st.integers(0, 200), block=st.integers(1, 9), last=st.integers(1, 9))
def test_parts_follow_each_other_and_are_of_about_one_size(of, more, block, last):
    n = (of + more - 1) * block + min(last, block)
    parts = [part_of((number, of), n, block) for number in range(1, of + 1)]
    assert [index for part in parts for index in range(part.first_trajectory, part.stop)] == list(range(n))
    assert all(part.first_trajectory % block == 0 for part in parts)
    blocks = [-(-part.trajectories // block) for part in parts]
    assert 1 <= min(blocks) >= max(blocks) - 1
    assert [part_of_facts(part.facts()) for part in parts] == parts
    names = {f"{part.number}": part for part in sorted(parts, key=lambda part: part.number * 7 % 11)}
    assert in_order(names) == [str(number) for number in range(1, of + 1)]


def test_what_is_no_part_is_refused():
    for wrong in [(0, 2), (3, 2), (1.0, 2), (1, True), (1,), (1, 2, 3), "12", 3, (1, 0), (-1, 2)]:
        with pytest.raises(UsageError, match=r"its number \(from 1 on\) and the number of parts, such as \(2, 7\)"):
            checked_part(wrong)
    assert part_of([3, 3], 3) == Part(3, 3, 2, 1, 3)
    with pytest.raises(UsageError, match="3 trajectories cannot be split into 4 parts: use at most 3"):
        part_of((1, 4), 3)
    with pytest.raises(UsageError, match=r"in blocks of 8, .* cannot be split into 4 parts: use at most 3"):
        part_of((4, 4), 20, 8)


def parts_of(*numbers, of=3, n=10, **others):
    parts = {name: part_of((number, of), n) for name, number in zip(["a.npz", "b.npz", "c.npz"], numbers, strict=False)}
    return {**parts, **others}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (parts_of(1, 3), "part 2 of 3 is missing"),
        (parts_of(2), "parts 1, 3 of 3 are missing"),
        (parts_of(1, of=30, n=30), r"parts 2, 3, .*, 21, … of 30 are missing"),
        (parts_of(1, 3, 1), "part 1 of 3 was given twice: a.npz and c.npz"),
        (parts_of(1, 2, d=None), "d is no part: it holds all trajectories of a run"),
        (parts_of(1, 2, d=part_of((3, 3), 11)), "a.npz is part 1 of 3 of 10 trajectories, and d is part 3 of 3"),
        (parts_of(1, 2, d=part_of((3, 4), 10)), "d is part 3 of 4 of 10: parts of one run agree"),
        (parts_of(1, 2, d=part_of((3, 3), 10, 4)), "d begins with trajectory 8, but the parts before it end"),
        ({}, "no parts to merge"),
    ],
)
def test_what_cannot_be_put_in_order_is_refused(parts, words):
    with pytest.raises(UsageError, match=words):
        in_order(parts)


def test_facts_that_are_no_parts_are_refused():
    facts = part_of((2, 3), 10).facts()
    assert part_of_facts(None) is None
    wrong = [("number", 0, 1, 4), ("trajectories", 0), ("of_trajectories", 5, 2**62), ("first_trajectory", 0, -1)]
    changes = [{name: value} for name, *values in [*wrong, ("of", "3", True), ("more", 1)] for value in values]
    for given_ in [[facts], *({**facts, **change} for change in changes)]:
        with pytest.raises(ValueError, match="part"):
            part_of_facts(given_)


@pytest.mark.parametrize(("block", "n_first"), [(1, 1536), (16, 96), (100, 14), (256, 6), (1024, 6)])
def test_blocks_get_longer_after_so_many_that_every_worker_has_begun_one(block, n_first):
    """As long as it is not known how workers run blocks, only the first ones are handed out."""
    queue, n_blocks = IndexQueue(range(10**9), block, lengthens=True), 0
    while taken := queue.take_new(block, 10**9):
        assert len(taken) == block
        n_blocks += 1
    assert n_blocks == n_first
    assert len(block_at(n_first * block, block)) == 2 * block
