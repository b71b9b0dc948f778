"""Random programs with several agents, while processes are killed: what one process gives, bit for bit."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamsampler
from tests.scripted.games import Comings, Turns
from tests.several.comparing import LocalSampler
from tests.several.test_fragments import DyingTurns, Knowing
from tests.several.test_rows import Rowwise, rows
from tests.several.test_staleness import Dying
from tests.workers.waiting.test_several import KnowingLater, Later, RowwiseLater

MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler
PARENT: dict[str, Any] = {"inference": "parent", "worker_args": {"n_envs": 3}}
UPDATES = (None, None, {"red": (1,)}, {"blue": (2,)}, {"red": Knowing(1)}, {"blue": Rowwise(1), "red": (3,)})
KINDS = st.sampled_from(["trajectories", "fragments", "fragments"])
CALLS = st.tuples(KINDS, st.integers(1, 6), st.sampled_from(UPDATES))


def obtained(make: Any, env: Any, calls: Any, agents: Any = None, **options: Any) -> list[Any]:
    agents = agents or {"red": Knowing(), "blue": Rowwise()}
    with make(agents, env, seed=5, check=None, **options) as sampler:
        return [
            sampler.obtain_trajectories(n, agent_update=update)
            if kind == "trajectories"
            else sampler.obtain_fragments(n, 3, update)
            for kind, n, update in calls
        ]


@pytest.mark.slow
@given(
    st.lists(CALLS, min_size=2, max_size=7), st.booleans(), st.sampled_from([{}, rows(1), rows(2), PARENT]),
    st.integers(2, 4),
)  # fmt: skip
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_programs_give_the_same_whatever_dies(calls: Any, in_turns: bool, kind: Any, every: int) -> None:
    expected = obtained(LocalSampler, Turns if in_turns else Comings, calls)
    assert obtained(LocalSampler, Turns if in_turns else Comings, calls, **rows(2)) == expected
    with tempfile.TemporaryDirectory() as folder:
        env = partial(DyingTurns if in_turns else Dying, Path(folder), every)
        how = {"n_workers": 2, "max_restarts": 999, **kind}
        assert obtained(MultiprocessingSampler, env, calls, **how) == expected


@pytest.mark.slow
@given(st.lists(CALLS, min_size=2, max_size=5), st.booleans(), st.sampled_from([{}, rows(2)]), st.integers(2, 4))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_programs_with_a_lag_give_the_same_whatever_dies(calls: Any, in_turns: bool, kind: Any, every: int) -> None:
    calls = [("trajectories", n, update) for _, n, update in calls]
    expected = obtained(LocalSampler, Turns if in_turns else Comings, calls, staleness=1)
    with tempfile.TemporaryDirectory() as folder:
        env = partial(DyingTurns if in_turns else Dying, Path(folder), every)
        how = {"n_workers": 2, "max_restarts": 999, "staleness": 1, **kind}
        assert obtained(MultiprocessingSampler, env, calls, **how) == expected


class DyingLater(Later, Dying):
    """Waits before each step."""


class DyingTurnsLater(Later, DyingTurns):
    """Waits before each turn."""


@pytest.mark.slow
@given(st.lists(CALLS, min_size=2, max_size=6), st.booleans(), st.booleans(), st.integers(1, 7), st.integers(2, 4))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_programs_that_wait_give_the_same_whatever_dies(
    calls: Any, in_turns: bool, policies_wait: bool, in_flight: int, every: int
) -> None:
    expected = obtained(LocalSampler, Turns if in_turns else Comings, calls)
    agents = {"red": KnowingLater(), "blue": RowwiseLater()} if policies_wait else None
    with tempfile.TemporaryDirectory() as folder:
        env = partial(DyingTurnsLater if in_turns else DyingLater, Path(folder), every)
        how = {"n_workers": 2, "max_restarts": 999, "worker_args": {"in_flight": in_flight}}
        assert obtained(MultiprocessingSampler, env, calls, agents, **how) == expected
