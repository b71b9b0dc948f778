"""Tasks of which trajectories are left out: n of each all the same, on any number of workers, whatever is lost."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, VecWorker
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.errors import RolloutError, UsageError
from streamsampler.testing import Fault, Faults
from tests.scripted.agents import Independent, always_zero
from tests.scripted.envs import AnyLength

TASKS = [5.0, 3.0, 4.0]
N = 4


def is_bad(seed: int) -> bool:
    return seed % 3 == 0


class Marked(AnyLength):
    """Says in the info of its reset which trajectories are bad; shows its task in its rewards."""

    task = 0.0

    def set_task(self, task: float) -> None:
        self.task = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation, info | {"bad": is_bad(seed or 0)}

    def step(self, action: Any) -> tuple[Any, ...]:
        observation, _, *rest = super().step(action)
        return observation, self.task, *rest


class Raising(Marked):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        if result[1]["bad"]:
            raise OSError("stuck")
        return result


class AlwaysBad(Marked):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation, info | {"bad": self.task == 4.0}


def bad(info: dict[str, Any]) -> bool:
    return bool(info.get("bad"))


def expected_indices(version: int, first: int = 0) -> list[list[int]]:
    """The first N indices of each task that are not bad; the tasks go round, N of each at a time."""
    seeds = TrajectorySeeds(1, version)
    found: list[list[int]] = [[] for _ in TASKS]
    for index in range(first, first + 200):
        of_task = found[(index - first) // N % len(TASKS)]
        if len(of_task) < N and not is_bad(seeds[index]):
            of_task.append(index)
    assert all(len(one) == N for one in found)
    assert max(map(max, found)) >= first + N * len(TASKS), "or this shows nothing"
    return found


def check(batch: TrajectoryBatch[Any, Any], version: int, first: int = 0) -> None:
    found = expected_indices(version, first)
    assert batch.indices.tolist() == [*chain(*found)]
    assert batch.episode_infos["task_index"].tolist() == np.repeat(range(len(TASKS)), N).tolist()
    assert [float(one.rewards[0]) for one in batch] == np.repeat(TASKS, N).tolist()
    assert list(batch.seeds) == [TrajectorySeeds(1, version)[index] for index in batch.indices.tolist()]
    assert batch.stats is not None
    assert batch.stats.kept_trajectories == N * len(TASKS)
    assert batch.stats.dropped_trajectories > 0


WORKERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "alone": (LocalSampler, {}),
    "lanes": (LocalSampler, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}),
    "two": (MultiprocessingSampler, {"n_workers": 2}),
    "seven": (MultiprocessingSampler, {"n_workers": 7}),
    "of their own": (MultiprocessingSampler, {"n_workers": 3, "envs": 3 * [Marked]}),
}


@pytest.mark.parametrize("which", ["alone", "lanes", "two", *(pytest.param(w, marks=pytest.mark.slow)
                                                             for w in ("seven", "of their own"))])  # fmt: skip
def test_each_task_has_as_many_as_were_asked_for(which: str) -> None:
    kind, options = WORKERS[which]
    envs = {"envs": Marked, **options}
    with kind(Independent(always_zero), **envs, seed=1, drop_if=bad) as sampler:
        for version in (1, 2, 3):
            check(sampler.obtain_trajectories(N, tasks=TASKS), version)
        assert len(sampler.obtain_samples(40, tasks=TASKS)) > 1


def test_what_raises_is_replaced_by_one_of_the_same_task() -> None:
    with LocalSampler(always_zero, Raising, seed=1, on_failure="drop", check=None) as sampler:
        check(sampler.obtain_trajectories(N, tasks=TASKS), 1)


@pytest.mark.slow
def test_killed_workers_change_nothing(tmp_path: Any) -> None:
    late = max(map(max, expected_indices(1)))
    faults = Faults(tmp_path, Fault("kill", "reset"), Fault("kill", "step", trajectory=late), seed=1)
    options: dict[str, Any] = {"n_workers": 2, "seed": 1, "check": None, "drop_if": bad}
    with MultiprocessingSampler(always_zero, faults.env(Marked), **options) as sampler:
        check(sampler.obtain_trajectories(N, tasks=TASKS), 1)
        assert faults.fired() == 2
        assert 1 <= sampler.stats.restarts <= 2  # as many as there was work for: the second one dies late


def test_a_stream_brings_them_last() -> None:
    with LocalSampler(always_zero, Marked, seed=1, drop_if=bad) as sampler:
        found = TrajectoryBatch.concatenate(list(sampler.stream(n_trajectories=N, tasks=TASKS)))
        assert found.indices.tolist() == sorted(chain(*expected_indices(1)))
        with pytest.raises(UsageError, match="first_trajectory must be 0, got 3"):
            sampler.stream(n_trajectories=N, tasks=TASKS, first_trajectory=3)


@pytest.mark.slow
def test_the_next_batch_of_a_lagging_learner_begins_after_the_last_one() -> None:
    for which in ("alone", "two"):
        kind, options = WORKERS[which]
        with kind(always_zero, Marked, seed=1, drop_if=bad, staleness=1, **options) as sampler:
            check(sampler.obtain_trajectories(N, tasks=TASKS), 1)
            following = max(map(max, expected_indices(1))) + 1
            check(sampler.obtain_trajectories(N, tasks=TASKS), 1, following)


def test_seeds_are_used_once() -> None:
    seeds = [1, 3, 4]
    with LocalSampler(always_zero, Marked, seed=1, drop_if=bad) as sampler:
        batch = sampler.obtain_trajectories(1, tasks=TASKS, seeds=seeds)
    assert list(batch.seeds) == [1, 4]


def test_a_task_that_always_fails_ends_the_call() -> None:
    with LocalSampler(always_zero, AlwaysBad, seed=1, drop_if=bad, check=None) as sampler:
        with pytest.raises(RolloutError, match="too many to leave out"):
            sampler.obtain_trajectories(1, tasks=TASKS)
        assert len(sampler.obtain_trajectories(2, tasks=TASKS[:2])) == 4


def test_trajectories_that_took_others_places_are_replayed() -> None:
    with LocalSampler(always_zero, Marked, seed=1, drop_if=bad) as sampler:
        batch = sampler.obtain_trajectories(N, tasks=TASKS)
        for index in (int(batch.indices.max()), int(batch.indices[0])):
            assert sampler.replay(1, index, recorded=batch).same
