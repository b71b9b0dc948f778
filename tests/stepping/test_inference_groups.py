"""Groups of rows: environments of one step while the agent is asked for another; batches are the same."""

from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, UsageError, VecWorker
from streamsampler.stepping.inference.asking import RowGroups
from tests.stepping.environments import Strolling


class Asked(Strolling.Agent):
    """Counts its calls, and the shapes of what it is asked for."""

    def __init__(self):
        self.shapes = []

    def get_actions(self, observations):
        self.shapes.append(observations.shape)
        return np.tanh(observations + 0.1).astype(np.float32), {"first": observations[:, 0]}


def two_calls(sampler):
    return [sampler.obtain_trajectories(30), sampler.obtain_samples(100)]


def in_parent(agent, groups, n_workers=2, **options):
    worker_args = {"n_envs": 6, "groups": groups}
    options = {"seed": 3, "check": None, "worker_args": worker_args, **options}
    return MultiprocessingSampler(agent, Strolling, n_workers=n_workers, inference="parent", **options)


@pytest.mark.parametrize(
    ("groups", "n_workers"),
    [
        (2, 2),
        *(pytest.param(g, n, marks=pytest.mark.slow) for g in (1, 2, 3, 6) for n in (1, 2, 3, 6) if (g, n) != (2, 2)),
    ],
)
def test_batches_are_the_same_for_any_groups(groups, n_workers):
    options: Any = {"seed": 3, "check": None, "worker_args": {"n_envs": 6}}
    with LocalSampler(Asked(), Strolling, worker_class=VecWorker, **options) as sampler:
        expected = two_calls(sampler)
    agent = Asked()
    with in_parent(agent, groups, n_workers) as sampler:
        assert two_calls(sampler) == expected
    assert set(agent.shapes) == {(6, 2)}, "each call has the shape of all rows"


@pytest.mark.parametrize("n_groups", [1, 2])
def test_groups_are_asked_for_in_turn(n_groups):
    groups = RowGroups(6, n_groups)
    live = np.ones(6, np.bool_)
    live[4] = False
    ready = live.copy()

    def found():
        rows, is_whole = groups.next(live, ready)
        return (None if rows is None else np.flatnonzero(rows).tolist()), is_whole

    for rows in ([0, 2], [1, 3, 5], [0, 2]) if n_groups == 2 else ([0, 1, 2, 3, 5],) * 2:
        assert found() == (rows, True)
        asked, _ = groups.next(live, ready)
        assert asked is not None
        groups.note(asked)
    ready[3] = False
    assert found() == (([0, 2], True) if n_groups == 2 else ([0, 1, 2, 5], False))
    ready[0] = False
    assert found() == (([1, 5], False) if n_groups == 2 else ([1, 2, 5], False))
    ready[[1, 2]] = False
    assert found() == (None, False)
    live[:] = ready[:] = False
    assert found() == (None, True)


@pytest.mark.parametrize(
    ("groups", "match"), [(0, "at least 1"), ("2", "an integer"), (True, "at least 1"), (7, "only 6 environments")]
)
def test_groups_that_cannot_work_are_errors(groups, match):
    with pytest.raises(UsageError, match=match):
        in_parent(Asked(), groups)
