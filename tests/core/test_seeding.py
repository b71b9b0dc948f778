"""Trajectory seeds are fixed for ever, distinct and well mixed; the global generators are seeded, and given back."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.core.seeding import (
    SEED_BITS,
    Stream,
    TrajectorySeeds,
    check_seed,
    derived_seed,
    derived_seeds,
    fresh_seed,
)
from streamsampler.errors import UsageError

LIMIT = 2**31

PINNED_0_0 = [275087494, 251268250, 1612738416, 1678041448]
PINNED_0_1 = [2069922172, 964721298, 2114999754, 799852035]
PINNED_BIG = [2094086596, 1093231476, 405622882, 455359190]
PINNED_DERIVED = [285786412, 439840370, 256715742, 378210111, 1088516974]


def bits(numbers):
    """The lowest 31 bits of each number, as rows."""
    return (np.asarray(numbers, dtype=np.uint64)[:, None] >> np.arange(31, dtype=np.uint64)) & np.uint64(1)


class TestCheckSeed:
    @pytest.mark.parametrize("seed", [0, 1, 2**31, 2**200, np.int64(5), np.uint8(7), np.array(3)])
    def test_takes_integers_of_any_kind_and_size(self, seed):
        checked = check_seed(seed)
        assert type(checked) is int
        assert checked == seed

    def test_none_is_a_fresh_seed(self):
        assert check_seed(None) != check_seed(None)

    @pytest.mark.parametrize("seed", [True, False, np.True_, 1.0, "1", [1], b"1", np.float64(2)])
    def test_refuses_what_is_no_integer(self, seed):
        with pytest.raises(UsageError, match=r"seed must be a non-negative integer or None, not .*\("):
            check_seed(seed)

    def test_refuses_negative_integers(self):
        with pytest.raises(UsageError, match="is -3"):
            check_seed(-3)

    def test_fresh_seeds_have_128_bits(self):
        seeds = [fresh_seed() for _ in range(50)]
        assert len(set(seeds)) == 50
        assert all(0 <= seed < 2**128 for seed in seeds)
        assert max(seeds) > 2**120


class TestTrajectorySeeds:
    def test_values_are_fixed_for_ever(self):
        assert TrajectorySeeds(0, 0).of(range(4)) == PINNED_0_0
        assert TrajectorySeeds(0, 1).of(range(4)) == PINNED_0_1
        assert TrajectorySeeds(2**127 + 1, 3).of([0, 1, 10**9, LIMIT - 1]) == PINNED_BIG

    def test_seeds_are_plain_integers_of_31_bits(self):
        for seeds in (TrajectorySeeds(1, 1).of(range(5)), TrajectorySeeds(1, 1).of(range(5000))):
            assert {type(seed) for seed in seeds} == {int}
            assert min(seeds) >= 0
            assert max(seeds) < LIMIT

    @given(st.integers(0, 2**128), st.integers(0, 2**20), st.integers(0, LIMIT - 200), st.integers(0, 100))
    def test_vectorised_and_plain_agree(self, seed, version, start, length):
        seeds = TrajectorySeeds(seed, version)
        indices = range(start, start + length)
        assert seeds.of(indices) == [seeds[index] for index in indices] == seeds.of(list(indices))
        assert seeds.of(np.array(indices, dtype=np.int64)) == seeds.of(indices)

    @pytest.mark.parametrize(
        "indices",
        [range(5, 900, 7), range(900, 5, -7), list(range(100))[::-1], [3] * 50, range(0), [], np.arange(60), range(3)],
        ids=str,
    )
    def test_any_sequence_of_indices(self, indices):
        seeds = TrajectorySeeds(9, 2)
        assert seeds.of(indices) == [seeds[int(index)] for index in indices]

    def test_the_last_indices_work_in_both_ways(self):
        seeds = TrajectorySeeds(9, 2)
        assert seeds.of(range(LIMIT - 50, LIMIT)) == [seeds[index] for index in range(LIMIT - 50, LIMIT)]

    @pytest.mark.parametrize(
        "indices", [[LIMIT], [-1], range(LIMIT - 40, LIMIT + 1), range(-1, 60), [0] * 40 + [LIMIT]]
    )
    def test_other_indices_are_refused(self, indices):
        with pytest.raises(UsageError, match=r"trajectory index (-1|2147483648) is not between 0 and 2147483647"):
            TrajectorySeeds(0, 0).of(indices)

    @pytest.mark.parametrize("start", [0, 10**6, LIMIT - 200_000])
    def test_no_two_trajectories_of_a_version_share_a_seed(self, start):
        assert len(set(TrajectorySeeds(4, 5).of(range(start, start + 200_000)))) == 200_000

    def test_it_is_a_permutation(self):
        # Undoing the steps one by one, from the seed back to the index, proves what a sample can only suggest.
        seeds = TrajectorySeeds(12345, 6)
        indices = [0, 1, 2, 77, 123456789, LIMIT - 1]
        for index in indices:
            x = undo_xorshift(seeds[index], 14)
            for key, shift, multiplier in reversed(seeds._rounds):
                x = undo_xorshift(x * pow(multiplier, -1, LIMIT) % LIMIT, shift)
                x = (x - key) % LIMIT
            assert x == index

    @pytest.mark.parametrize("base", [0, 10**9])
    def test_avalanche(self, base):
        # Of each flipped bit of the index, each bit of the seed flips in half of the cases.
        indices = list(range(base, base + 4096))
        seeds = TrajectorySeeds(8, 1)
        before = bits(seeds.of(indices))
        flips = np.stack([(before ^ bits(seeds.of([i ^ (1 << bit) for i in indices]))).mean(0) for bit in range(31)])
        assert abs(flips.mean() - 0.5) < 0.01
        # A fair coin tossed 4096 times is off by 0.008; the mixer's own bias is not above 0.02.
        assert flips.min() > 0.45
        assert flips.max() < 0.55

    @pytest.mark.parametrize("other", [TrajectorySeeds(8, 2), TrajectorySeeds(9, 1)])
    def test_versions_and_seeds_are_unrelated(self, other):
        n = 100_000
        ours, theirs = TrajectorySeeds(8, 1).of(range(n)), other.of(range(n))
        # Independent uniform numbers: correlation 0 ± 1/sqrt(n); of n**2 pairs, n**2 / 2**31 = 4.7 are equal.
        assert abs(np.corrcoef(ours, theirs)[0, 1]) < 5 / np.sqrt(n)
        assert abs((bits(ours) ^ bits(theirs)).mean() - 0.5) < 0.005
        assert len(set(ours) & set(theirs)) < 30

    def test_consecutive_seeds_are_uniform_and_uncorrelated(self):
        n = 100_000
        seeds = np.array(TrajectorySeeds(0, 1).of(range(n))) / LIMIT
        assert abs(np.corrcoef(seeds[1:], seeds[:-1])[0, 1]) < 5 / np.sqrt(n)
        counts, _ = np.histogram(seeds, bins=100, range=(0, 1))
        # Chi squared with 99 degrees of freedom: 99 ± 14.
        assert ((counts - n / 100) ** 2 / (n / 100)).sum() < 170

    def test_keeps_what_it_was_made_of(self):
        seeds = pickle.loads(pickle.dumps(TrajectorySeeds(3, 4)))
        assert (seeds.seed, seeds.agent_version) == (3, 4)
        assert seeds[5] == TrajectorySeeds(3, 4)[5]
        assert repr(seeds) == "TrajectorySeeds(seed=3, agent_version=4)"


def undo_xorshift(x, shift):
    undone = x
    for _ in range(31 // shift + 1):
        undone = x ^ (undone >> shift)
    return undone


class TestDerivedSeeds:
    def test_values_are_fixed_for_ever(self):
        assert [derived_seed(12345, stream) for stream in Stream] == PINNED_DERIVED

    @pytest.mark.parametrize("n", [0, 1, 19, 20, 333])
    def test_many_at_once_are_the_same(self, n):
        seeds = [(1 << 31) - 1 - 6_453_211 * number for number in range(n)]
        for stream in Stream:
            assert derived_seeds(seeds, stream) == [derived_seed(seed, stream) for seed in seeds]

    def test_streams_differ_from_each_other_and_from_the_trajectory_seed(self):
        for trajectory_seed in TrajectorySeeds(0, 0).of(range(1000)):
            derived = {derived_seed(trajectory_seed, stream) for stream in Stream}
            assert len(derived | {trajectory_seed}) == len(Stream) + 1
            assert all(type(seed) is int and 0 <= seed < 2**SEED_BITS for seed in derived)

    def test_an_agent_does_not_draw_the_noise_of_its_environment(self):
        n = 2000
        ours = [np.random.default_rng(derived_seed(seed, Stream.AGENT)).normal() for seed in range(n)]
        theirs = [np.random.default_rng(seed).normal() for seed in range(n)]
        assert abs(np.corrcoef(ours, theirs)[0, 1]) < 5 / np.sqrt(n)

    def test_avalanche(self):
        for stream in Stream:
            before = bits([derived_seed(seed, stream) for seed in range(2048)])
            for bit in range(31):
                after = bits([derived_seed(seed ^ (1 << bit), stream) for seed in range(2048)])
                assert abs((before ^ after).mean() - 0.5) < 0.02
