"""Parts of a run: ranges of indices, and putting them in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.errors import UsageError
from streamsampler.protocol.plans import Part, checked_part, in_order, part_of, part_of_facts

WHOLE = "a.npz", "b.npz", "c.npz"


@given(of=st.integers(1, 40), more=st.integers(0, 200), block=st.integers(1, 9), last=st.integers(1, 9))
def test_parts_follow_each_other_and_are_of_about_one_size(of, more, block, last):
    n = (of + more - 1) * block + min(last, block)
    parts = [part_of((number, of), n, block) for number in range(1, of + 1)]
    assert [index for part in parts for index in range(part.first_trajectory, part.stop)] == list(range(n))
    assert all(part.first_trajectory % block == 0 for part in parts)
    blocks = [-(-part.trajectories // block) for part in parts]
    assert max(blocks) - min(blocks) <= 1
    assert min(blocks) >= 1
    assert [part_of_facts(part.facts()) for part in parts] == parts
    names = {f"{part.number}": part for part in sorted(parts, key=lambda part: part.number * 7 % 11)}
    assert in_order(names) == [str(number) for number in range(1, of + 1)]


@pytest.mark.parametrize("part", [(0, 2), (3, 2), (1.0, 2), (1, True), (1,), (1, 2, 3), "12", 3, (1, 0), (-1, 2)])
def test_what_is_no_part(part):
    with pytest.raises(UsageError, match=r"its number from 1 on and how many parts there are, such as \(2, 7\)"):
        checked_part(part)


def test_no_part_is_empty():
    assert part_of([3, 3], 3) == Part(3, 3, 2, 1, 3)
    with pytest.raises(UsageError, match="3 trajectories cannot be cut into 4 parts: there are 3 at most"):
        part_of((1, 4), 3)
    with pytest.raises(
        UsageError, match=r"in blocks of 8, which are run together, cannot be cut into 4 parts: .* 3 at"
    ):
        part_of((4, 4), 20, 8)


def parts_of(*numbers, of=3, n=10, block=1):
    return {name: part_of((number, of), n, block) for name, number in zip(WHOLE, numbers, strict=False)}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (parts_of(1, 3), "part 2 of 3 is missing"),
        (parts_of(2), "parts 1, 3 of 3 are missing"),
        (parts_of(1, of=30, n=30), r"parts 2, 3, .*, 21, … of 30 are missing"),
        (parts_of(1, 3, 1), "part 1 of 3 is there twice: a.npz and c.npz"),
        ({**parts_of(1, 2), "d": None}, "d is no part: it holds what a whole run sampled"),
        ({"d": None, **parts_of(1, 2)}, "d is no part"),
        ({**parts_of(1, 2), "d": part_of((3, 3), 11)}, "a.npz is part 1 of 3 of 10 trajectories, and d is part 3 of 3"),
        ({**parts_of(1, 2), "d": part_of((3, 4), 10)}, "d is part 3 of 4 of 10: parts of one run agree"),
        ({**parts_of(1, 2), "d": part_of((3, 3), 10, 4)}, "d begins with trajectory 8, and the parts before it end"),
        ({}, "nothing to merge"),
    ],
)
def test_what_cannot_be_put_in_order(parts, words):
    with pytest.raises(UsageError, match=words):
        in_order(parts)


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": 4},
        {"trajectories": 0},
        {"of_trajectories": 5},
        {"of_trajectories": 2**62},
        {"first_trajectory": 0},
        {"first_trajectory": -1},
        {"number": 1},
        {"of": "3"},
        {"of": True},
        {"more": 1},
    ],
)
def test_facts_that_are_no_parts(change):
    facts = part_of((2, 3), 10).facts()
    assert part_of_facts(None) is None
    with pytest.raises(ValueError, match="part"):
        part_of_facts({**facts, **change})
    with pytest.raises(ValueError, match="part"):
        part_of_facts([facts])
