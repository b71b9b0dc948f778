"""C3: what nobody wants any more stops within a step, and nothing old is ever returned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler
from streamsampler.errors import ClosedError, RolloutError, SamplerError
from streamsampler.workers.fail_points import Records
from tests.contracts.conftest import PARENT, PROCESSES, RAY, SLOW_QUEUES, Maker, on, slow
from tests.scripted.agents import Stamping, always_zero
from tests.scripted.envs import AnyLength, Marathon, Steps, jittery
from tests.tiers import mostly_slow

SEED = 17
# The step under way when the word is written goes on to its end, and the word may be written just after it was read.
# An actor of Ray is told by a call that takes its time, while steps of 10 ms or more go on.
STRAY_STEPS, STRAY_STEPS_ON_RAY = 1, 1_000


@pytest.fixture
def steps(tmp_path: Path) -> Records:
    """Where the long trajectory's steps are counted."""
    return Records(tmp_path)


def a_complete_call(sampler: Any) -> None:
    assert sampler.obtain_samples(Marathon.SHORT).lengths.tolist() == [Marathon.SHORT]


def a_new_version(sampler: Any) -> None:
    stream = sampler.stream(agent_update=(1,))
    assert next(stream).indices.tolist() == [0]
    batch = sampler.obtain_trajectories(4, agent_update=(2,))
    assert set(batch.actions.tolist()) == {2}
    with pytest.raises(SamplerError, match="later call"):
        next(stream)


def a_stream_that_is_left(sampler: Any) -> None:
    stream = sampler.stream()
    next(stream)
    stream.close()


def an_error(sampler: Any) -> None:
    with pytest.raises(RolloutError, match="broken on purpose"):
        sampler.obtain_samples(Marathon.SHORT)


def a_close(sampler: Any) -> None:
    """Its 100,000 steps would take a quarter of an hour."""
    stream = sampler.stream()
    next(stream)
    sampler.close()
    with pytest.raises(ClosedError):
        next(stream)


@on("processes", "queues fork", *SLOW_QUEUES[1:], RAY)
@pytest.mark.parametrize(
    "end", mostly_slow([a_complete_call, a_new_version, a_stream_that_is_left, an_error, a_close], 4)
)
def test_workers_stop(
    make_sampler: Maker, steps: Records, end: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalSampler(always_zero, Steps, seed=SEED) as local:
        (long_seed,) = local.seeds(1, [1])
    env = partial(Marathon, steps.folder, long_seed, breaks=end is an_error)
    sampler = make_sampler(Stamping(), env, n_workers=2, seed=SEED, check=None)
    engine, at_stop = sampler._life.session.engine, []
    abandon_older = engine.abandon_older

    def abandon_and_count(version: int) -> None:
        abandon_older(version)
        at_stop.append(steps.count())

    monkeypatch.setattr(engine, "abandon_older", abandon_and_count)
    end(sampler)
    at_stop.append(steps.count())
    assert next(count for count in at_stop if count) >= Marathon.UNDER_WAY
    if end is not a_close:
        # Each of two workers has something of its own to do: all that is older is over then.
        update = [Stamping(0), Stamping(0)]
        assert len(sampler.obtain_exact_trajectories(1, agent_update=update, env_update=[Steps, Steps])) == 2
        assert sampler.stats.abandoned_timesteps >= steps.count()
    if end is a_complete_call:
        assert (sampler.stats.abandoned_trajectories, sampler.stats.abandoned_timesteps) == (1, steps.count())
    stray = STRAY_STEPS_ON_RAY if make_sampler.engine == "ray" else STRAY_STEPS
    assert steps.count() - next(count for count in at_stop if count) <= stray


class Noting(AnyLength):
    """Records the steps of agent version 1, by their actions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(pause=0.005)
        self.records = Records(folder)

    def step(self, action: int) -> Any:
        if action == 1:
            self.records.record("steps")
        return super().step(action)


@on(PARENT)
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
    assert set(sampler.obtain_trajectories(8, agent_update=(2,)).actions.tolist()) == {2}
    assert steps.count() - before <= n_envs * STRAY_STEPS
    assert sampler.stats.abandoned_trajectories > 0


@on("waiting processes", *PROCESSES, *slow(PARENT))
@pytest.mark.parametrize("n_calls", [18, pytest.param(200, marks=pytest.mark.slow)])
def test_no_action_of_an_old_version(
    make_sampler: Maker, make_local: Callable[..., LocalSampler], n_calls: int
) -> None:
    """In many calls with four workers and random delays."""
    sampler = make_sampler(Stamping(), jittery(AnyLength, 0.001), n_workers=4, seed=SEED)
    twin = make_local(Stamping(), AnyLength, n_workers=4, seed=SEED)
    for version in range(1, n_calls + 1):
        update = (version,)
        match version % 8:
            case 0:  # The workers run ahead, and are full of this version when the next call begins.
                batch, same = (next(one.stream(agent_update=update)) for one in (sampler, twin))
            case 1 | 4:
                batch, same = (one.obtain_trajectories(3, agent_update=update) for one in (sampler, twin))
            case 2 | 5:
                batch, same = (one.obtain_exact_trajectories(1, agent_update=update) for one in (sampler, twin))
            case _:
                batch, same = (one.obtain_samples(12, agent_update=update) for one in (sampler, twin))
        assert set(batch.actions.tolist()) == {version} == {batch.agent_version}
        assert batch == same
