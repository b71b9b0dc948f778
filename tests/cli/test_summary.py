"""Numbers as people and programs read them; tracebacks without this package in them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamsampler
from streamsampler.cli import report as summary
from streamsampler.cli.request import storable
from streamsampler.cli.tally import Spread, Tally
from streamsampler.core.errors import RemoteTraceback, StorageError
from streamsampler.core.words import count, duration
from streamsampler.workers.explain import traceback_of


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12.0, "12"), (-1234.5, "-1,234.50"), (0.012345, "0.0123"), (1.5e9 + 0.5, "1.5e+09")],
)
def test_numbers(value: float, text: str) -> None:
    assert summary.number(value) == text


@pytest.mark.parametrize(
    ("amount", "noun", "text"),
    [(1, "trajectory", "1 trajectory"), (0, "trajectory", "0 trajectories"), (1234, "timestep", "1,234 timesteps")],
)
def test_counts(amount: int, noun: str, text: str) -> None:
    assert count(amount, noun) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.004, "0.00 s"), (0.5, "0.50 s"), (12.34, "12.3 s"), (59.99, "1 min 00 s"), (3723, "1 h 02 min 03 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "none"),
        ([3.5], "3.50"),
        ([2.0, 2.0], "2 ± 0 standard error, from 2 to 2"),
        ([1.0, 2.0, 4.0], "2.33 ± 0.88 standard error, from 1 to 4"),
        ([1000.0, 5000.0], "3,000 ± 2,000 standard error, from 1,000 to 5,000"),
        ([0.001, 0.002], "0.00150 ± 0.00050 standard error, from 0.001 to 0.002"),
        ([1.0, math.inf], "not finite"),
        ([math.nan], "not finite"),
    ],
)
def test_spreads(values: list[float], text: str) -> None:
    spread = Spread.of(values)
    assert summary.spread_text({**spread.facts(), "standard_error": spread.standard_error}, len(values)) == text


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=5), max_size=5))
def test_spreads_add_up(parts: list[list[float]]) -> None:
    together = sum(map(Spread.of, parts), Spread())
    whole = Spread.of([value for part in parts for value in part])
    assert (together.n, together.minimum, together.maximum) == (whole.n, whole.minimum, whole.maximum)
    assert together.mean == pytest.approx(whole.mean, abs=1e-6)
    assert together.squares == pytest.approx(whole.squares, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("first", [True, False])
def test_a_spread_with_something_odd_is_odd(odd: float, first: bool) -> None:
    parts = [Spread.of([odd]), Spread.of([1.0, 2.0])]
    facts = sum(parts if first else parts[::-1], Spread()).facts()
    assert facts["mean"] is None
    assert facts == Spread.of([odd, 1.0, 2.0]).facts()


def test_tallies_add_up() -> None:
    one, other = Tally.of(np.array([2, 1]), np.array([1.0, 0.0, 2.0])), Tally.of(np.array([1]), np.array([9.0]))
    assert ((one + other).trajectories, (one + other).timesteps) == (3, 4)
    assert (Tally() + one).returns.mean == 1.5


def test_what_json_cannot_hold_is_stored_as_python_writes_it() -> None:
    assert storable({"a": [1, None], "b": {1, 2}, "c": (1,), "d": {1: 2}, "e": math.nan}) == {
        "a": [1, None], "b": "{1, 2}", "c": "(1,)", "d": "{1: 2}", "e": "nan",
    }  # fmt: skip


def test_a_traceback_of_this_package_alone_is_no_traceback() -> None:
    with pytest.raises(StorageError) as raised:
        streamsampler.load(__file__)
    assert raised.value.__traceback__ is not None
    assert traceback_of(raised.value.with_traceback(raised.value.__traceback__.tb_next)) == ""
    assert traceback_of(None) == ""


def test_a_remote_traceback_begins_with_the_users_code() -> None:
    own = Path(streamsampler.__file__).parent / "workers" / "loop.py"
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{own}", line 156, in _run\n'
        "    outcome = worker.rollout(ticket)\n"
        "              ^^^^^^^^^^^^^^^^^^^^^^\n"
        '  File "/home/user/envs.py", line 9, in step\n'
        "    self.boom()\n"
        "KeyError: 'gone'\n"
        "two lines"
    )
    assert traceback_of(RemoteTraceback(text)) == (
        "Traceback (most recent call last):\n"
        '  File "/home/user/envs.py", line 9, in step\n'
        "    self.boom()\n"
        "KeyError: 'gone'\n"
        "two lines"
    )


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ({"trajectories": 0, "timesteps": 0}, "0 abandoned"),
        ({"trajectories": 2, "timesteps": 1_500}, "2 abandoned (1,500 timesteps)"),
        ({"trajectories": 0, "timesteps": 57}, "57 timesteps abandoned"),
    ],
)
def test_what_is_left_over(amount: dict[str, int], text: str) -> None:
    assert summary._left_over("abandoned", amount) == text
