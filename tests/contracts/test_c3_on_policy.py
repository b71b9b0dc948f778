"""C3: what nobody wants any more stops within a step, and nothing old is ever returned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler
from streamsampler.errors import ClosedError, RolloutError, SamplerError
from streamsampler.samplers.base import Sampler
from streamsampler.testing.fail_points import Records
from tests.contracts.conftest import PARENT, PROCESSES, RAY, SLOW_QUEUES, Maker
from tests.scripted.agents import Stamping, always_zero
from tests.scripted.envs import AnyLength, Marathon, Steps, jittery

SEED = 17
# The step under way when the word is written goes on to its end, and the word may be written just after it was read.
STRAY_STEPS = 1
# An actor of Ray is told by a call that takes its time, while steps of 10 ms or more go on.
STRAY_STEPS_ON_RAY = 1_000
EACH_TIME = ["forkserver", "queues fork", *SLOW_QUEUES[1:], RAY]
ALL_PROCESSES = pytest.mark.parametrize("engine", EACH_TIME, indirect=True)


@pytest.fixture
def steps(tmp_path: Path) -> Records:
    """Where the long trajectory's steps are counted."""
    return Records(tmp_path)


@pytest.fixture
def long_seed() -> int:
    """The seed of trajectory 1 of agent version 1."""
    with LocalSampler(always_zero, Steps, seed=SEED) as sampler:
        return sampler.obtain_trajectories(2).seeds[1]


def stray_steps(make_sampler: Maker) -> int:
    """How many steps may begin after the workers were told to stop."""
    return STRAY_STEPS_ON_RAY if make_sampler.engine == "ray" else STRAY_STEPS


def counted_at_stop(sampler: Any, steps: Records, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of steps each time that workers have been told to abandon something."""
    engine, counts = sampler._session.engine, []
    abandon_older = engine.abandon_older

    def abandon_and_count(version: int) -> None:
        abandon_older(version)
        counts.append(steps.count())

    monkeypatch.setattr(engine, "abandon_older", abandon_and_count)
    return counts


def hear_from_both(sampler: Sampler) -> None:
    """Make a call in which each of two workers has something of its own to do: all that is older is over then."""
    assert len(sampler.obtain_exact_trajectories(1, agent_update=[Stamping(0), Stamping(0)])) == 2


@ALL_PROCESSES
def test_a_complete_call_stops_the_surplus(make_sampler: Maker, steps: Records, long_seed: int) -> None:
    sampler = make_sampler(always_zero, partial(Marathon, steps.folder, long_seed), n_workers=2, seed=SEED, check=None)
    batch = sampler.obtain_samples(Marathon.SHORT)
    at_return = steps.count()
    assert batch.lengths.tolist() == [Marathon.SHORT]
    assert at_return >= Marathon.UNDER_WAY

    hear_from_both(sampler)
    assert steps.count() - at_return <= stray_steps(make_sampler)
    assert sampler.stats.abandoned_trajectories == 1
    assert sampler.stats.abandoned_timesteps == steps.count()


@ALL_PROCESSES
def test_a_new_version_stops_the_old_one(
    make_sampler: Maker, steps: Records, long_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make_sampler(Stamping(), partial(Marathon, steps.folder, long_seed, pause=0.02), n_workers=2, seed=SEED)
    stream = sampler.stream(agent_update=(1,))
    assert next(stream).indices.tolist() == [0]
    assert steps.count() >= Marathon.UNDER_WAY

    at_stop = counted_at_stop(sampler, steps, monkeypatch)
    batch = sampler.obtain_trajectories(4, agent_update=(2,))
    assert set(batch.actions.tolist()) == {2}
    hear_from_both(sampler)
    assert steps.count() - at_stop[0] <= stray_steps(make_sampler)
    with pytest.raises(SamplerError, match="later call"):
        next(stream)


@pytest.mark.parametrize("engine", PROCESSES, indirect=True)
def test_leaving_a_stream_stops_the_workers(make_sampler: Maker, steps: Records, long_seed: int) -> None:
    sampler = make_sampler(always_zero, partial(Marathon, steps.folder, long_seed), n_workers=2, seed=SEED)
    stream = sampler.stream()
    next(stream)
    stream.close()
    at_return = steps.count()
    assert at_return >= Marathon.UNDER_WAY
    hear_from_both(sampler)
    assert steps.count() - at_return <= stray_steps(make_sampler)


@pytest.mark.parametrize("engine", PROCESSES, indirect=True)
def test_an_error_stops_the_other_workers(make_sampler: Maker, steps: Records, long_seed: int) -> None:
    sampler = make_sampler(always_zero, partial(Marathon, steps.folder, long_seed, breaks=True), n_workers=2, seed=SEED)
    with pytest.raises(RolloutError, match="broken on purpose"):
        sampler.obtain_samples(Marathon.SHORT)
    at_return = steps.count()
    assert at_return >= Marathon.UNDER_WAY
    assert len(sampler.obtain_exact_trajectories(1, env_update=[Steps, Steps])) == 2
    assert steps.count() - at_return <= stray_steps(make_sampler)


@pytest.mark.parametrize("engine", PROCESSES, indirect=True)
def test_closing_stops_the_workers(
    make_sampler: Maker, steps: Records, long_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its 100,000 steps would take a quarter of an hour."""
    sampler = make_sampler(always_zero, partial(Marathon, steps.folder, long_seed), n_workers=2, seed=SEED)
    stream = sampler.stream()
    next(stream)
    at_stop = counted_at_stop(sampler, steps, monkeypatch)
    sampler.close()
    assert steps.count() - at_stop[0] <= stray_steps(make_sampler)
    with pytest.raises(ClosedError):
        next(stream)


class Noting(AnyLength):
    """Records the steps of agent version 1, by their actions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(pause=0.005)
        self.records = Records(folder)

    def step(self, action: int) -> Any:
        if action == 1:
            self.records.add("steps")
        return super().step(action)


@pytest.mark.parametrize("engine", [PARENT], indirect=True)
@pytest.mark.slow
def test_environments_stepped_from_the_parent_take_no_step_more(make_sampler: Maker, steps: Records) -> None:
    """What runs ahead when a stream is left in the middle is not sent another action, and steps that run may end."""
    n_envs = 4
    make_env = partial(Noting, steps.folder)
    sampler = make_sampler(Stamping(), make_env, n_workers=2, worker_args={"n_envs": n_envs}, seed=SEED)
    sampler.obtain_trajectories(8)
    stream = sampler.stream(agent_update=(1,))
    next(stream)
    before = steps.count()
    batch = sampler.obtain_trajectories(8, agent_update=(2,))
    assert set(batch.actions.tolist()) == {2}
    assert steps.count() - before <= n_envs * STRAY_STEPS
    assert sampler.stats.abandoned_trajectories > 0


@pytest.mark.parametrize("n_calls", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", [*PROCESSES, pytest.param(PARENT, marks=pytest.mark.slow)], indirect=True)
def test_no_action_of_an_old_version(
    make_sampler: Maker, make_local: Callable[..., LocalSampler], n_calls: int
) -> None:
    """In many calls with four workers and random delays."""
    sampler = make_sampler(Stamping(), jittery(AnyLength, 0.001), n_workers=4, seed=SEED)
    twin = make_local(Stamping(), AnyLength, n_workers=4, seed=SEED)
    for call in range(n_calls):
        update = (call + 1,)
        match call % 20:
            case 0 | 3 | 6 | 9 | 12 | 15 | 18:
                batch, same = (one.obtain_samples(12, agent_update=update) for one in (sampler, twin))
            case 1 | 4 | 7 | 10 | 13 | 16:
                batch, same = (one.obtain_trajectories(3, agent_update=update) for one in (sampler, twin))
            case 2 | 5 | 8 | 11 | 14 | 17:
                batch, same = (one.obtain_exact_trajectories(1, agent_update=update) for one in (sampler, twin))
            case _:
                # The workers run ahead, and are full of this version when the next call begins.
                batch, same = (next(one.stream(agent_update=update)) for one in (sampler, twin))
        assert set(batch.actions.tolist()) == {call + 1}
        assert batch.agent_version == call + 1
        assert batch == same
