"""Trajectory seeds are fixed for ever, distinct and well mixed; the global generators are seeded, and given back."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.core.seeding import (
    SEED_BITS,
    SeedUse,
    TrajectorySeeds,
    check_seed,
    derived_seed,
    derived_seeds,
    fresh_seed,
)
from streamsampler.errors import UsageError

LIMIT = 2**31


def bits(numbers):
    """The lowest 31 bits of each number, as rows."""
    return (np.asarray(numbers, dtype=np.uint64)[:, None] >> np.arange(31, dtype=np.uint64)) & np.uint64(1)


def test_values_are_fixed_for_ever():
    assert TrajectorySeeds(0, 0).of(range(4)) == [275087494, 251268250, 1612738416, 1678041448]
    assert TrajectorySeeds(0, 1).of(range(4)) == [2069922172, 964721298, 2114999754, 799852035]
    of_big = TrajectorySeeds(2**127 + 1, 3).of([0, 1, 10**9, LIMIT - 1])
    assert of_big == [2094086596, 1093231476, 405622882, 455359190]
    derived = [derived_seed(12345, stream) for stream in SeedUse]
    assert derived == [285786412, 439840370, 256715742, 378210111, 1088516974]


def test_a_seed_is_an_integer_of_any_kind_and_size_or_fresh():
    for seed in (0, 2**200, np.int64(5), np.uint8(7), np.array(3)):
        assert (type(check_seed(seed)), check_seed(seed)) == (int, seed)
    for wrong in (True, np.True_, 1.0, "1", [1], b"1"):
        with pytest.raises(UsageError, match=r"seed must be a non-negative integer or None, not .*\("):
            check_seed(wrong)
    with pytest.raises(UsageError, match="is -3"):
        check_seed(-3)
    assert check_seed(None) != check_seed(None)
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert 2**120 < max(seeds) < 2**128


INDICES = st.builds(
    lambda start, n, step: range(start, start + n * step, step),
    st.sampled_from([7_000, LIMIT - 7_000]),
    st.sampled_from([0, 1, 19, 60, 900]),
    st.sampled_from([1, 7, -7]),
) | st.lists(st.integers(0, LIMIT - 1), max_size=60)


@given(st.integers(0, 2**128), st.integers(0, 2**20), INDICES | st.just(range(LIMIT - 50, LIMIT)))
def test_any_sequence_of_indices_has_the_seeds_of_each(seed, version, indices):
    seeds = pickle.loads(pickle.dumps(TrajectorySeeds(seed, version)))
    assert repr(seeds) == f"TrajectorySeeds(seed={seed}, agent_version={version})"
    found = seeds.of(indices)
    assert found == [seeds[index] for index in indices] == seeds.of(np.array(indices, dtype=np.int64))
    assert all(type(each) is int and 0 <= each < LIMIT for each in found)


@pytest.mark.parametrize("indices", [[LIMIT], [-1], range(LIMIT - 40, LIMIT + 1), range(-1, 60), [0] * 40 + [LIMIT]])
def test_other_indices_are_refused(indices):
    with pytest.raises(UsageError, match=r"trajectory index (-1|2147483648) is not between 0 and 2147483647"):
        TrajectorySeeds(0, 0).of(indices)


def undo_xorshift(x, shift):
    undone = x
    for _ in range(31 // shift + 1):
        undone = x ^ (undone >> shift)
    return undone


def test_seeds_of_a_version_are_a_permutation():
    """Undoing the steps one by one, from the seed back to the index, proves what a sample can only suggest."""
    seeds = TrajectorySeeds(12345, 6)
    for index in (0, 1, 2, 77, 123456789, LIMIT - 1):
        x = undo_xorshift(seeds[index], 14)
        for key, shift, multiplier in reversed(seeds._rounds):
            x = undo_xorshift(x * pow(multiplier, -1, LIMIT) % LIMIT, shift)
            x = (x - key) % LIMIT
        assert x == index


def test_of_each_flipped_bit_of_the_index_each_bit_of_a_seed_flips_in_half_of_the_cases():
    of_streams = [(0, 0.44, partial(derived_seeds, stream=stream)) for stream in SeedUse]
    cases: list[Any] = [*((base, 0.45, TrajectorySeeds(8, 1).of) for base in (0, 10**9)), *of_streams]
    for base, least, of in cases:
        indices = range(base, base + 4096)
        before = bits(of(list(indices)))
        flips = np.stack([(before ^ bits(of([i ^ (1 << bit) for i in indices]))).mean(0) for bit in range(31)])
        assert abs(flips.mean() - 0.5) < 0.01
        # A fair coin tossed 4096 times is off by 0.008; the mixer's own bias is not above 0.02.
        assert least < flips.min() <= flips.max() < 1 - least


@pytest.mark.parametrize("other", [TrajectorySeeds(8, 2), TrajectorySeeds(9, 1)])
def test_seeds_are_uniform_and_versions_and_seeds_are_unrelated(other):
    n = 100_000
    ours, theirs = TrajectorySeeds(8, 1).of(range(n)), other.of(range(n))
    assert len(set(theirs)) == n
    # Independent uniform numbers: correlation 0 ± 1/sqrt(n); of n**2 pairs, n**2 / 2**31 = 4.7 are equal.
    for one, another in ((ours, theirs), (theirs[1:], theirs[:-1])):
        assert abs(np.corrcoef(one, another)[0, 1]) < 5 / np.sqrt(n)
    assert abs((bits(ours) ^ bits(theirs)).mean() - 0.5) < 0.005
    assert len(set(ours) & set(theirs)) < 30
    counts, _ = np.histogram(theirs, bins=100, range=(0, LIMIT))
    # Chi squared with 99 degrees of freedom: 99 ± 14.
    assert ((counts - n / 100) ** 2 / (n / 100)).sum() < 170


def test_derived_seeds_of_many_are_those_of_each_and_differ_from_all_others():
    for n in (0, 1, 19, 20, 333):
        seeds = [LIMIT - 1 - 6_453_211 * number for number in range(n)]
        for stream in SeedUse:
            assert derived_seeds(seeds, stream) == [derived_seed(seed, stream) for seed in seeds]
    for seed in TrajectorySeeds(0, 0).of(range(1000)):
        derived = {derived_seed(seed, stream) for stream in SeedUse}
        assert len(derived | {seed}) == len(SeedUse) + 1
        assert all(type(each) is int and 0 <= each < 2**SEED_BITS for each in derived)


def test_an_agent_does_not_draw_the_noise_of_its_environment():
    n = 2000
    ours = [np.random.default_rng(derived_seed(seed, SeedUse.AGENT)).normal() for seed in range(n)]
    theirs = [np.random.default_rng(seed).normal() for seed in range(n)]
    assert abs(np.corrcoef(ours, theirs)[0, 1]) < 5 / np.sqrt(n)
