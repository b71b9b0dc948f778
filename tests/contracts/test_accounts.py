"""C7: whatever was stepped is accounted for."""

from __future__ import annotations

import itertools
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamsampler import TrajectoryBatch
from streamsampler.testing.fail_points import Records
from tests.contracts.conftest import Maker, core_on_ray, one_each, slow_on
from tests.scripted.agents import Stamping, always_zero
from tests.scripted.envs import AnyLength, Steps, TwoOrFifty, counted

SEED = 41
FATES = ("kept", "surplus", "stale", "abandoned", "checked")


def test_versions_and_timesteps(make_sampler: Maker) -> None:
    sampler = make_sampler(Stamping(), AnyLength, n_workers=2, seed=SEED)
    assert (sampler.agent_version, sampler.total_env_steps) == (0, 0)
    batches = [
        sampler.obtain_samples(30),
        sampler.obtain_trajectories(5, agent_update=(3,)),
        sampler.obtain_exact_trajectories(2),
        sampler.obtain_samples(1, env_update=Steps),
    ]
    assert [batch.agent_version for batch in batches] == [1, 2, 3, 4]
    assert [set(batch.agent_versions.tolist()) for batch in batches] == [{1}, {2}, {3}, {4}]
    assert sampler.agent_version == 4
    assert sampler.total_env_steps == sum(batch.n_timesteps for batch in batches)
    assert sampler.stats.kept_trajectories == sum(len(batch) for batch in batches)
    assert [batch.stats.kept_timesteps for batch in batches] == [batch.n_timesteps for batch in batches]
    assert {batch.seed for batch in batches} == {SEED}


def test_a_refused_call_costs_no_version(make_sampler: Maker) -> None:
    sampler = make_sampler(Stamping(), AnyLength, n_workers=2, seed=SEED)
    with pytest.raises(ValueError, match="at least 1"):
        sampler.obtain_samples(0)
    with pytest.raises(TypeError):
        sampler.obtain_samples(10, env_update=17)
    assert sampler.agent_version == 0
    assert sampler.obtain_samples(10).agent_version == 1


def settle(sampler: object) -> None:
    """Make a call in which each of three workers has something of its own to do: all older answers are in then."""
    batch = sampler.obtain_exact_trajectories(1, agent_update=one_each(sampler, Stamping()))  # type: ignore[attr-defined]
    assert len(batch) == 3


def leave_something_over(sampler: Any, records: Records) -> None:
    """Take trajectories of a stream until more was run than is returned, however fast the workers are."""
    with sampler.stream() as stream:
        for _ in itertools.islice(stream, 300):
            if records.count("steps") > sampler.total_env_steps + sampler.stats.checked_timesteps:
                break


@core_on_ray(slow_on("local"))
def test_every_step_is_accounted_for(make_sampler: Maker, tmp_path: Path) -> None:
    """In calls that leave a lot of surplus behind: kept, surplus, stale and abandoned timesteps are all there were."""
    make_env = counted(partial(TwoOrFifty, pause=0.0002), tmp_path)
    sampler = make_sampler(always_zero, make_env, n_workers=3, seed=SEED)
    batches: list[TrajectoryBatch] = []
    for call in range(20):
        batches.append(sampler.obtain_samples(60 + call))
        batches.append(sampler.obtain_trajectories(1 + call % 5))
    leave_something_over(sampler, Records(tmp_path))
    settle(sampler)
    stats, records = sampler.stats, Records(tmp_path)
    assert sum(getattr(stats, f"{fate}_timesteps") for fate in FATES) == records.count("steps")
    assert sum(getattr(stats, f"{fate}_trajectories") for fate in FATES) == records.count("resets")
    assert stats.surplus_timesteps + stats.abandoned_timesteps + stats.stale_timesteps > 0
    assert stats.failed_trajectories == stats.restarts == 0


@pytest.mark.slow
def test_a_streams_timesteps_count_as_they_are_returned(make_sampler: Maker) -> None:
    sampler = make_sampler(always_zero, AnyLength, n_workers=3, seed=SEED)
    returned = 0
    for number, trajectory in enumerate(sampler.stream()):
        returned += trajectory.n_timesteps
        assert sampler.total_env_steps == returned
        assert sampler.stats.kept_trajectories == number + 1
        if number == 50:
            break


def test_exactly_what_was_asked_for_leaves_nothing_over(make_sampler: Maker, tmp_path: Path) -> None:
    """With an agent each, because what a slow worker holds another one may run a second time."""
    sampler = make_sampler(3 * [always_zero], counted(AnyLength, tmp_path), n_workers=3, seed=SEED)
    batches = [sampler.obtain_trajectories(17), sampler.obtain_exact_trajectories(5)]
    stats, records = sampler.stats, Records(tmp_path)
    assert records.count("resets") == 32 + stats.checked_trajectories
    assert sampler.total_env_steps == sum(batch.n_timesteps for batch in batches)
    assert records.count("steps") == sampler.total_env_steps + stats.checked_timesteps
    assert stats.kept_trajectories == 32
    assert stats.surplus_trajectories == stats.stale_trajectories == stats.abandoned_trajectories == 0


class SleepingResets(Steps):
    """Takes its time for resets as well."""

    def reset(self, **arguments: Any) -> Any:
        time.sleep(0.05)
        return super().reset(**arguments)


def sleep_and_act(observation: Any) -> int:
    time.sleep(0.005)
    return 0


@pytest.mark.parametrize("engine", slow_on("local"), indirect=True)
def test_all_times_are_where_they_were_spent(make_sampler: Maker) -> None:
    """At least as much as was slept there, however busy the machine is; and no time is in two places."""
    if make_sampler.side_by_side:
        pytest.skip("rows that end at different times are asked together")
    before = time.perf_counter()
    sampler = make_sampler(sleep_and_act, partial(SleepingResets, 10, pause=0.01), n_workers=1, seed=SEED, check=None)
    times = sampler.obtain_trajectories(3).stats.times
    passed = time.perf_counter() - before
    assert times.reset >= 3 * 0.05 * 0.95
    assert times.agent >= 30 * 0.005 * 0.95
    assert times.step >= 30 * 0.01 * 0.95
    assert times.reset + times.agent + times.step + times.sending <= passed
