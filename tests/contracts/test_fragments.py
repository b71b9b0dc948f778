"""C1 for fragments: the same on all engines, with whole trajectories in between, and after kills."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, VecWorker
from tests.contracts.conftest import PARENT, SLOW_QUEUES, Maker, core_on_ray
from tests.fragments.agents import Drawn, Recurrent, Sticky

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "default": (Recurrent, {}),
    "vec": (Drawn, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}),
}
N_CALLS = 7


def one_call(sampler: Any, call: int) -> Any:
    """Return fragments, and in one call in between whole trajectories, after which fresh environments begin."""
    update = np.array([0.0, 0.1 * call, 0.3, 0.1])
    if call == 3:
        return sampler.obtain_trajectories(5, agent_update=update)
    return sampler.obtain_fragments(11, 8, agent_update=update)


@functools.cache
def expected(kind: str) -> list[Any]:
    agent, options = KINDS[kind]
    with LocalSampler(agent(), Sticky, seed=5, **options) as sampler:
        return [one_call(sampler, call) for call in range(N_CALLS)]


@pytest.mark.parametrize("kind", KINDS)
@core_on_ray([pytest.param("local", marks=pytest.mark.slow), "forkserver", *SLOW_QUEUES])
def test_fragments_are_the_same_with_whole_trajectories_in_between_and_after_kills(make_sampler: Maker, kind: str):
    check_calls(make_sampler, kind, KINDS[kind][1])


@pytest.mark.parametrize("engine", [PARENT], indirect=True)
@pytest.mark.slow
def test_so_they_are_with_the_agent_in_the_parent(make_sampler: Maker):
    # All environments are in one group there, which changes nothing where rows are independent.
    check_calls(make_sampler, "vec", {"worker_args": {"n_envs": 8}})


def check_calls(make_sampler: Maker, kind: str, options: dict[str, Any]) -> None:
    with make_sampler(KINDS[kind][0](), Sticky, n_workers=2, seed=5, max_restarts=None, **options) as sampler:
        for call, batch in enumerate(expected(kind)):
            assert one_call(sampler, call) == batch
            if call in (1, 5) and hasattr(sampler, "worker_pids"):
                with contextlib.suppress(ProcessLookupError):  # killed before, and not needed since
                    os.kill(sampler.worker_pids()[call % 2], signal.SIGKILL)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_trajectories_end_the_episodes_and_fresh_ones_begin(kind: str):
    before, whole, after, last = expected(kind)[2:6]
    assert before.cut.any()
    assert before.continued.any()
    assert not (before.cut & (before.terminated | before.truncated)).any()
    assert not (whole.continued | whole.cut).any()
    assert not after.continued.any()
    assert after.episode_starts[after.starts].all()
    assert last.continued.any()
    assert not set(after.seeds) & set(before.seeds)
