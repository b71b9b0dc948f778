"""Numbers as people and programs read them, and tracebacks without this package in them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamsampler
from streamsampler.cli import summary
from streamsampler.cli.tallies import Spread, Tally
from streamsampler.core.errors import RemoteTraceback, StorageError
from streamsampler.core.words import count, duration
from streamsampler.workers.explain import traceback_of


@pytest.mark.parametrize(
    ("written", "text"),
    [
        *((summary.number(value), text) for value, text in [
            (0.0, "0"), (12.0, "12"), (-1234.5, "-1,234.50"), (0.012345, "0.0123"), (1.5e9 + 0.5, "1.5e+09")
        ]),
        (count(1, "trajectory"), "1 trajectory"),
        (count(0, "trajectory"), "0 trajectories"),
        (count(1234, "timestep"), "1,234 timesteps"),
        *((duration(seconds), text) for seconds, text in [
            (0.004, "0.00 s"), (0.5, "0.50 s"), (12.34, "12.3 s"), (59.99, "1 min 00 s"), (3723, "1 h 02 min 03 s")
        ]),
        *((summary._left_over("abandoned", {"trajectories": n, "timesteps": m}), text) for n, m, text in [
            (0, 0, "0 abandoned"), (2, 1_500, "2 abandoned (1,500 timesteps)"), (0, 57, "57 timesteps abandoned")
        ]),
        *((summary._restarts({"restarts": n, "hangs": hangs, "replaced": grown}), text) for n, hangs, grown, text in [
            (0, 0, 0, ""), (2, 0, 0, "2"), (1, 1, 0, "1, 1 hung"), (0, 0, 1, "0, 1 used too much memory")
        ]),
    ],
)  # fmt: skip
def test_numbers(written: str, text: str) -> None:
    assert written == text


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
    for odd in (math.nan, math.inf, -math.inf):
        strange = (Spread.of([odd]) + together, together + Spread.of([odd]))
        assert [each.facts() for each in strange] == [
            Spread.of([odd, *(v for part in parts for v in part)]).facts()
        ] * 2
        assert strange[0].facts()["mean"] is None


def test_tallies_add_up() -> None:
    one, other = Tally.of(np.array([2, 1]), np.array([1.0, 0.0, 2.0])), Tally.of(np.array([1]), np.array([9.0]))
    assert ((one + other).trajectories, (one + other).timesteps) == (3, 4)
    assert (Tally() + one).returns.mean == 1.5


def test_a_traceback_of_this_package_alone_is_no_traceback() -> None:
    with pytest.raises(StorageError) as raised:
        streamsampler.load(__file__)
    assert raised.value.__traceback__ is not None
    assert traceback_of(raised.value.with_traceback(raised.value.__traceback__.tb_next)) == ""
    assert traceback_of(None) == ""


def test_a_remote_traceback_begins_with_the_users_code() -> None:
    own = Path(streamsampler.__file__).parent / "workers" / "loop.py"
    first, last = (
        "Traceback (most recent call last):\n",
        "  File \"/home/user/envs.py\", line 9, in step\n    self.boom()\nKeyError: 'gone'\ntwo lines",
    )
    ours = f'  File "{own}", line 156, in _run\n    outcome = worker.rollout(ticket)\n              ^^^^^^^^^^\n'
    assert traceback_of(RemoteTraceback(f"{first}{ours}{last}")) == f"{first}{last}"
