"""Random numbers of many rows: each row's are its trajectory's own, and they are random."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamsampler.agents.draws import Draws

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _mixed(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _fraction(seed: int, kind: int, number: int) -> float:
    """Compute what SplitMix64 gives, in Python's integers."""
    return (_mixed(_mixed(seed + kind * _GAMMA) + (number + 1) * _GAMMA) >> 11) * 2.0**-53


def _alone(seed: int, n_calls: int, k: int = 0) -> list[NDArray[np.float64]]:
    draws = Draws.of([seed])
    return [draws.normal(k)[0] if k else draws.random()[0] for _ in range(n_calls)]


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_numbers_are_those_of_the_published_generator_and_of_box_and_muller(seed):
    assert _alone(seed, 100) == [_fraction(seed, 5, number) for number in range(100)]
    expected = []
    for number in range(0, 200, 2):
        radius = math.sqrt(-2.0 * math.log(1.0 - _fraction(seed, 6, number)))
        angle = 2.0 * math.pi * _fraction(seed, 6, number + 1)
        expected += [radius * math.cos(angle), radius * math.sin(angle)]
    np.testing.assert_allclose(np.concatenate(_alone(seed, 200, 1)), expected, rtol=1e-12, atol=1e-14)


@settings(max_examples=15)
@given(data=st.data(), n_rows=st.integers(1, 40), kind=st.integers(0, 5))
def test_a_row_draws_what_its_trajectory_draws_alone(data, n_rows, kind):
    """Whatever runs in the other rows, however long, and however many were prepared together."""
    draws = Draws(n_rows)
    seeds = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30))
    prepared = draws.prepare(seeds)
    running: dict[int, tuple[int, list[NDArray[np.float64]]]] = {}
    ended = []
    for position, seed in enumerate(seeds):
        row = data.draw(st.integers(0, n_rows - 1))
        ended.append(running.pop(row, None))
        running[row] = seed, []
        draws.begin(row, prepared, position)
        for _ in range(data.draw(st.integers(0, 70))):
            drawn = draws.normal(kind) if kind else draws.random()
            assert drawn.shape == ((n_rows, kind) if kind else (n_rows,))
            for other, (_, numbers) in running.items():
                numbers.append(drawn[other])
    for seed, numbers in filter(None, [*ended, *running.values()]):
        np.testing.assert_array_equal(numbers, _alone(seed, len(numbers), kind))


def test_how_many_are_drawn_at_a_time_does_not_matter_nor_what_else_is_drawn():
    draws, sizes = Draws.of([3, 4, 5]), (1, 3, 2, 1, 40, 7, 1, 64, 200, 1, 3_001, 2)
    parts, uniform = [], Draws.of([3, 4, 5])
    for k in sizes:
        np.testing.assert_array_equal(draws.random(), uniform.random())
        parts.append(draws.normal(k))
    np.testing.assert_array_equal(np.hstack(parts), Draws.of([3, 4, 5]).normal(sum(sizes)))


def test_a_kind_that_is_drawn_for_the_first_time_in_a_trajectory_begins_at_its_beginning():
    draws = Draws(2)
    early = draws.prepare([5, 6])
    draws.begin(0, early, 0)
    draws.random()
    draws.begin(1, early, 1)
    np.testing.assert_array_equal(draws.normal(2), Draws.of([5, 6]).normal(2))
    draws.begin(0, early, 1)
    np.testing.assert_array_equal(draws.normal(2)[0], Draws.of([6]).normal(2)[0])


def test_what_is_drawn_is_the_callers():
    draws = Draws.of([1, 2])
    draws.random()[:] = 7.0
    draws.normal(2)[:] = 7.0
    np.testing.assert_array_equal(draws.random(), [_alone(1, 2)[1], _alone(2, 2)[1]])
    np.testing.assert_array_equal(draws.normal(2)[1], _alone(2, 2, 2)[1])
