"""`on_failure="drop"`: what raises is left out and told; the batch is what one process sampling alone would return.

With tasks there are n of each all the same.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import chain
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, TrajectoryBatch, VecWorker
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.errors import RolloutError, UsageError
from tests.contracts.conftest import Maker, on, slow
from tests.contracts.told import Tasked, bad, first_rewards, is_bad, told
from tests.scripted.agents import Independent, above_half, always_zero
from tests.scripted.failing import Brittle

SEED = 77
BRITTLE = partial(Brittle, one_in=3)
LOCAL = on("local", *slow("processes", "queues fork"))
PHASES = {"step": "stepping the environment", "reset": "resetting the environment", "shape": "recording the trajectory"}


class Doomed(Brittle):
    """Raises in the trajectories of these seeds."""

    def __init__(self, seeds: set[int]) -> None:
        super().__init__(one_in=0)
        self.seeds = seeds

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed in self.seeds:
            self.fail()
        return super().reset(seed=seed, options=options)


@cache
def sound(where: str = "step", width: int = 2) -> dict[int, tuple[list[Any], list[float]]]:
    """Observations and rewards of the first trajectories by their indices, of those that do not raise."""
    env, trajectories = BRITTLE(wrong=where, width=width), {}
    for index, seed in enumerate(TrajectorySeeds(SEED, 1).of(range(200))):
        try:
            observations, rewards, ended = [env.reset(seed=seed)[0]], [], False
            while not ended:
                observation, reward, ended, *_ = env.step(above_half(observations[-1]))
                observations.append(observation)
                rewards.append(reward)
        except OSError:
            env = BRITTLE(wrong=where, width=width)
            continue
        if all(observation.shape == (width,) for observation in observations):
            trajectories[index] = observations, rewards
    return trajectories


def is_sound(batch: TrajectoryBatch[Any, Any], expected: dict[int, tuple[list[Any], list[float]]]) -> bool:
    """Tell whether a batch has the first of these trajectories, and what they were."""
    indices = list(expected)[: len(batch)]
    observations = np.array([observation for index in indices for observation in expected[index][0][:-1]])
    rewards = [reward for index in indices for reward in expected[index][1]]
    return (
        batch.indices.tolist() == indices
        and np.array_equal(batch.observations, observations)
        and batch.rewards.tolist() == rewards
        and np.array_equal(batch.last_observations, [expected[index][0][-1] for index in indices])
    )


@LOCAL
@pytest.mark.parametrize("where", PHASES)
def test_the_batch_is_what_is_left_of_the_prefix(make_sampler: Maker, where: str) -> None:
    sampler = make_sampler(above_half, partial(BRITTLE, wrong=where), n_workers=3, seed=SEED, on_failure="drop")
    batch = sampler.obtain_trajectories(20)
    assert is_sound(batch, sound(where))
    expected = list(sound(where))[:20]
    left_out = sorted(set(range(expected[-1])) - set(expected))
    assert left_out, "or this shows nothing"
    assert (batch.stats.kept_trajectories, batch.stats.dropped_trajectories) == (20, len(left_out))
    assert [(one.index, one.version) for one in batch.stats.dropped] == [(index, 1) for index in left_out]
    assert {one.phase for one in batch.stats.dropped} == {PHASES[where]}
    assert all(("(2,)" if where == "shape" else "the arm is stuck") in one.error for one in batch.stats.dropped)
    assert sampler.stats.dropped_trajectories == len(left_out)


@on("local", "waiting", "processes", *slow("queues fork"))
def test_rows_that_are_copied_before_the_batch_is_complete(make_sampler: Maker) -> None:
    """Rows of 4 kB and more are, as they come in: each is copied once, behind what is left of those before."""
    sampler = make_sampler(above_half, partial(BRITTLE, width=1100), n_workers=3, seed=SEED, on_failure="drop")
    assert is_sound(sampler.obtain_trajectories(15), sound(width=1100))


@LOCAL
def test_other_calls(make_sampler: Maker) -> None:
    make: Any = partial(make_sampler, above_half, n_workers=2, seed=SEED, on_failure="drop")
    expected = sound()
    timesteps = np.cumsum([len(rewards) for _, rewards in expected.values()])
    samples = make(BRITTLE).obtain_samples(100)
    assert samples.indices.tolist() == list(expected)[: int(np.searchsorted(timesteps, 100)) + 1]
    sampler = make(BRITTLE)
    streamed = [int(one.indices[0]) for one, _ in zip(sampler.stream(), range(25), strict=False)]
    assert streamed == list(expected)[:25]
    assert sampler.stats.dropped_trajectories >= streamed[-1] + 1 - 25
    arrived = make(BRITTLE, order="arrival").obtain_trajectories(30)
    assert len(arrived) == 30
    assert set(arrived.indices.tolist()) <= set(expected)
    exits = make(partial(BRITTLE, error=SystemExit)).obtain_trajectories(20)
    assert exits.indices.tolist() == list(expected)[:20], "SystemExit is a failure like any other"
    failing = set(TrajectorySeeds(SEED, 1).of(range(5)))
    assert make(partial(Doomed, failing)).obtain_samples(10).indices[0] == 5, "nothing is known of lengths then"
    own = make_sampler(2 * [above_half], BRITTLE, n_workers=2, seed=SEED, on_failure="drop")
    assert own.obtain_trajectories(20).indices.tolist() == list(expected)[:20]
    with pytest.raises(UsageError, match="obtain_exact_trajectories"):
        own.obtain_exact_trajectories(3)
    assert len(own.obtain_trajectories(2)) == 2


def _no_environment() -> gymnasium.Env[Any, Any]:
    raise OSError("nothing to be had")


@LOCAL
def test_what_is_not_left_out(make_sampler: Maker) -> None:
    sampler = make_sampler(above_half, partial(Brittle, one_in=1), n_workers=2, seed=SEED, on_failure="drop")
    with pytest.raises(RolloutError, match=r"trajectories failed and 0 did not(.|\n)*the arm is stuck") as caught:
        sampler.obtain_trajectories(1)
    assert (caught.value.trajectory, caught.value.phase) == (99, "stepping the environment")
    with pytest.raises(RolloutError, match="making the environment"):
        sampler.obtain_trajectories(2, env_update=_no_environment)
    assert len(sampler.obtain_trajectories(5, env_update=partial(Brittle, one_in=0))) == 5
    options: dict[str, Any] = {"on_failure": "drop", "restart_on": OSError, "max_restarts": 2}
    with pytest.raises(RolloutError, match="max_restarts is 2"):
        make_sampler(above_half, BRITTLE, n_workers=2, seed=SEED, **options).obtain_trajectories(20)
    with pytest.raises(UsageError, match="VecWorker cannot drop"):
        LocalSampler(above_half, Brittle, on_failure="drop", worker_class=VecWorker)


TASKS = [5.0, 3.0, 4.0]
N = 4


class Raising(Tasked):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if is_bad(seed or 0):
            raise OSError("stuck")
        return super().reset(seed=seed, options=options)


class AlwaysBad(Tasked):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation, info | {"bad": self.task == 4.0}


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
    assert batch.indices.tolist() == [*chain(*expected_indices(version, first))]
    assert told(batch, "task_index") == np.repeat(range(len(TASKS)), N).tolist()
    assert first_rewards(batch) == np.repeat(TASKS, N).tolist()
    assert list(batch.seeds) == [TrajectorySeeds(1, version)[index] for index in batch.indices.tolist()]
    assert batch.stats is not None
    assert batch.stats.kept_trajectories == N * len(TASKS)
    assert batch.stats.dropped_trajectories > 0


@on("local", "waiting", "lanes", *slow("processes"))
def test_each_task_has_as_many_as_were_asked_for(make_sampler: Maker) -> None:
    sampler = make_sampler(Independent(always_zero), Tasked, n_workers=2, seed=1, drop_if=bad)
    for version in (1, 2):
        batch = sampler.obtain_trajectories(N, tasks=TASKS)
        check(batch, version)
    for index in (int(batch.indices.max()), int(batch.indices[0])):
        assert sampler.replay(2, index, recorded=batch).same, "also one that took another's place"
    assert len(sampler.obtain_samples(40, tasks=TASKS)) > 1
    streamed = [int(one.indices[0]) for one in sampler.stream(n_trajectories=N, tasks=TASKS)]
    assert streamed == sorted(chain(*expected_indices(4)))
    with pytest.raises(UsageError, match="first_trajectory must be 0, got 3"):
        sampler.stream(n_trajectories=N, tasks=TASKS, first_trajectory=3)
    once = sampler.obtain_trajectories(1, tasks=TASKS, seeds=[1, 3, 4])
    assert list(once.seeds) == [1, 4], "seeds are used once"


def test_other_ways_to_leave_trajectories_of_tasks_out() -> None:
    with LocalSampler(always_zero, Raising, seed=1, on_failure="drop", check=None) as sampler:
        check(sampler.obtain_trajectories(N, tasks=TASKS), 1)
    with LocalSampler(always_zero, Tasked, seed=1, drop_if=bad, staleness=1) as sampler:
        check(sampler.obtain_trajectories(N, tasks=TASKS), 1)
        check(sampler.obtain_trajectories(N, tasks=TASKS), 1, max(map(max, expected_indices(1))) + 1)
    with LocalSampler(always_zero, AlwaysBad, seed=1, drop_if=bad, check=None) as sampler:
        with pytest.raises(RolloutError, match="too many to drop"):
            sampler.obtain_trajectories(1, tasks=TASKS)
        assert len(sampler.obtain_trajectories(2, tasks=TASKS[:2])) == 4
