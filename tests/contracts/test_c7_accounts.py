"""C7: whatever was stepped is accounted for, however a call ends."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from streamsampler import PerWorker
from streamsampler.errors import ClosedError, RolloutError, WorkerDiedError
from streamsampler.testing import Fault, Faults
from streamsampler.workers.fail_points import Records
from tests.contracts.conftest import ENGINES, PROCESSES, RAY, Maker, on, slow
from tests.scripted.agents import Stamping, always_zero
from tests.scripted.envs import AnyLength, Steps, TwoOrFifty, counted

SEED = 41
FATES = ("kept", "surplus", "stale", "abandoned", "lost", "checked")
UNSHOWN = 65
"""A worker shows its timesteps once in 64 of them, or more often; and one may be under way."""


@pytest.fixture
def steps(tmp_path: Path) -> Records:
    """Where steps are counted, by the environments themselves."""
    return Records(tmp_path / "steps")


@pytest.fixture
def env(steps: Records) -> Any:
    return counted(partial(TwoOrFifty, pause=0.0002), steps.folder)


def test_versions_and_timesteps(make_sampler: Maker) -> None:
    """A call that is refused costs no version."""
    sampler = make_sampler(Stamping(), AnyLength, n_workers=2, seed=SEED)
    with pytest.raises(ValueError, match="at least 1"):
        sampler.obtain_samples(0)
    with pytest.raises(TypeError):
        sampler.obtain_samples(10, env_update=17)
    assert (sampler.agent_version, sampler.total_env_steps) == (0, 0)
    batches = [
        sampler.obtain_samples(30),
        sampler.obtain_trajectories(5, agent_update=(3,)),
        sampler.obtain_exact_trajectories(2),
        sampler.obtain_samples(1, env_update=Steps),
    ]
    assert [set(batch.agent_versions.tolist()) for batch in batches] == [{1}, {2}, {3}, {4}]
    assert sampler.agent_version == 4
    assert sampler.total_env_steps == sum(batch.n_timesteps for batch in batches)
    assert sampler.stats.kept_trajectories == sum(len(batch) for batch in batches)
    assert [batch.stats.kept_timesteps for batch in batches] == [batch.n_timesteps for batch in batches]
    returned, trajectories = sampler.total_env_steps, sampler.stats.kept_trajectories
    for trajectory in itertools.islice(sampler.stream(), 20):  # counts as it is returned
        returned, trajectories = returned + trajectory.n_timesteps, trajectories + 1
        assert (sampler.total_env_steps, sampler.stats.kept_trajectories) == (returned, trajectories)


@on(*ENGINES, RAY)
def test_every_step_is_accounted_for(make_sampler: Maker, env: Any, steps: Records) -> None:
    """In calls that leave a lot of surplus behind: kept, surplus, stale and abandoned timesteps are all there were."""
    sampler = make_sampler(always_zero, env, n_workers=3, seed=SEED)
    for call in range(6):
        sampler.obtain_samples(60 + call)
        sampler.obtain_trajectories(1 + call % 5)
    with sampler.stream() as stream:  # until more was run than is returned, however fast the workers are
        for _ in itertools.islice(stream, 300):
            if steps.count("steps") > sampler.total_env_steps + sampler.stats.checked_timesteps:
                break
    # Each of the workers has something of its own to do: all older answers are in then.
    update = Stamping() if sampler._holds_agent else PerWorker(3 * [Stamping()])
    assert len(sampler.obtain_exact_trajectories(1, agent_update=update)) == 3
    stats = sampler.stats
    assert sum(getattr(stats, f"{fate}_timesteps") for fate in FATES) == steps.count("steps")
    counts = [getattr(stats, f"{fate}_trajectories") for fate in FATES if fate != "lost"]
    assert sum(counts) == steps.count("resets")
    assert stats.surplus_timesteps + stats.abandoned_timesteps + stats.stale_timesteps > 0
    assert stats.failed_trajectories == stats.restarts == stats.lost_timesteps == 0


@on("local", "waiting", "processes")
def test_exactly_what_was_asked_for_leaves_nothing_over(make_sampler: Maker, steps: Records) -> None:
    """With an agent each, because what a slow worker holds another one may run a second time."""
    sampler = make_sampler(3 * [always_zero], counted(AnyLength, steps.folder), n_workers=3, seed=SEED)
    batches = [sampler.obtain_trajectories(17), sampler.obtain_exact_trajectories(5)]
    stats = sampler.stats
    assert steps.count("resets") == 32 + stats.checked_trajectories
    assert sampler.total_env_steps == sum(batch.n_timesteps for batch in batches)
    assert steps.count("steps") == sampler.total_env_steps + stats.checked_timesteps
    assert (stats.surplus_trajectories, stats.stale_trajectories, stats.abandoned_trajectories) == (0, 0, 0)


class Stumbling(gymnasium.Wrapper):
    """Raises at the third step of some trajectories, before anything is stepped."""

    def __init__(self, env: gymnasium.Env, share: float) -> None:
        super().__init__(env)
        self.share = share

    def reset(self, **options: Any) -> Any:
        result = super().reset(**options)
        self.stumbles, self.t = self.unwrapped.np_random.random() < self.share, 0
        return result

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.stumbles and self.t == 3:
            raise OSError("it stumbled")
        return super().step(action)


class Interrupting:
    """Raises KeyboardInterrupt at its n-th snapshot, as Ctrl-C does."""

    interval = 0.0

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, snapshot: object) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def returns(sampler: Any) -> None:
    for _ in range(2):
        sampler.obtain_samples(60)
    sampler.obtain_trajectories(2)
    assert sampler.stats.lost_timesteps == 0


def raises(sampler: Any) -> None:
    for _ in range(2):
        with pytest.raises(RolloutError, match="stumbled"):
            sampler.obtain_trajectories(12)
    assert sampler.stats.lost_timesteps >= 2


def leaves_out(sampler: Any) -> None:
    sampler.obtain_trajectories(12)
    assert sampler.stats.lost_timesteps >= 2 * sampler.stats.dropped_trajectories > 0


def is_interrupted(sampler: Any, n_snapshots: int = 2) -> None:
    kept = 0
    for goes_on in (True, False):
        # Not with `pytest.raises(…) as it`: a cycle of frames would keep the sampler's memory until it is collected.
        try:
            sampler.obtain_samples(100_000, progress=Interrupting(n_snapshots))
        except KeyboardInterrupt as interrupt:
            notes = getattr(interrupt, "__notes__", [])
        else:
            pytest.fail("nothing was interrupted")
        salvaged = sampler.salvage()
        expected = [] if salvaged is None else [f"salvage() returns all finished trajectories: {len(salvaged)}"]
        assert notes == expected
        kept += 0 if salvaged is None else salvaged.n_timesteps
        kept += sampler.obtain_samples(20).n_timesteps if goes_on else 0
    assert sampler.stats.kept_timesteps == kept


def streams(sampler: Any) -> None:
    for n in (1, 8):
        stream = sampler.stream()
        list(itertools.islice(stream, n))
        stream.close()
    next(sampler.stream())
    sampler.obtain_samples(20)  # ends it
    next(sampler.stream())  # closing ends this


def fails_in_a_stream(sampler: Any) -> None:
    with pytest.raises(RolloutError, match="stumbled"):
        list(itertools.islice(sampler.stream(), 20))


# The share of trajectories that raise, and options.
CALLS: list[Any] = [
    (returns, 0.0, {}),
    (raises, 0.3, {}),
    pytest.param(raises, 0.5, {"restart_on": (OSError,), "max_restarts": 1}, marks=pytest.mark.slow),
    (leaves_out, 0.5, {"on_failure": "drop"}),
    (is_interrupted, 0.0, {}),
    *(pytest.param(partial(is_interrupted, n_snapshots=n), 0.0, {}, marks=pytest.mark.slow) for n in (1, 6)),
    (streams, 0.0, {}),
    (fails_in_a_stream, 0.3, {}),
]


@pytest.mark.parametrize(("calls", "share", "options"), CALLS)
@on("processes", "waiting processes", *slow("local", "queues fork", "vec processes"))
@pytest.mark.slow
def test_when_calls_end(
    make_sampler: Maker, env: Any, steps: Records, calls: Any, share: float, options: dict[str, Any]
) -> None:
    if make_sampler.side_by_side and "on_failure" in options:
        pytest.skip("VecWorker cannot leave trajectories out")
    envs = (lambda: Stumbling(env(), share)) if share else env
    sampler = make_sampler(always_zero, envs, n_workers=3, seed=SEED, **options)
    calls(sampler)
    if share and not options:  # without an end, too, all is in the accounts, once each worker has done something
        update = PerWorker(3 * [always_zero])
        assert len(sampler.obtain_exact_trajectories(1, agent_update=update, env_update=env)) == 3
        assert sampler.stats.ran_timesteps == steps.count("steps")
    check(sampler, steps)


def check(sampler: Any, steps: Records, missing: int = 0) -> None:
    """Close a sampler; all steps are in its accounts, but for so many that nobody can know of."""
    sampler.close()
    fates = [getattr(sampler.stats, f"{fate}_timesteps") for fate in FATES]
    assert 0 <= steps.count("steps") - sum(fates) <= missing, (steps.count("steps"), fates)
    assert sampler.stats.ran_timesteps == sum(fates)


@on("waiting processes", *PROCESSES)
def test_after_workers_were_killed(make_sampler: Maker, env: Any, steps: Records, tmp_path: Path) -> None:
    # In the third step of each trajectory. Without a check, which would show nothing before its end.
    faults = Faults(tmp_path / "faults", Fault("kill", step=3, times=None))
    sampler = make_sampler(always_zero, faults.env(env), n_workers=2, seed=SEED, max_restarts=1, check=None)
    with pytest.raises(WorkerDiedError):
        sampler.obtain_trajectories(80)
    # What a worker had not shown when it died nobody knows.
    check(sampler, steps, missing=UNSHOWN * (2 + sampler.stats.restarts))
    assert sampler.stats.lost_timesteps > 0


@on("waiting processes", *PROCESSES)
def test_after_a_close_during_a_call(make_sampler: Maker, steps: Records) -> None:
    endless = counted(partial(Steps, 10**9, pause=0.0002), steps.folder)
    # Its workers are killed. Without a check, which would show nothing before its end.
    envs = [endless, counted(AnyLength, steps.folder)]
    sampler = make_sampler([always_zero, always_zero], envs, n_workers=2, seed=SEED, check=None)
    snapshots, thread = itertools.count(), threading.Thread(target=sampler.close)

    def close_in_a_while(snapshot: object) -> None:
        if next(snapshots) == 3:
            thread.start()

    with pytest.raises(ClosedError):
        sampler.obtain_samples(10**8, progress=close_in_a_while)
    thread.join()
    check(sampler, steps, missing=2 * UNSHOWN)


class SleepingResets(Steps):
    def reset(self, **arguments: Any) -> Any:
        time.sleep(0.05)
        return super().reset(**arguments)


def sleep_and_act(observation: Any) -> int:
    time.sleep(0.005)
    return 0


@on("processes", *slow("local"))
def test_all_times_are_where_they_were_spent(make_sampler: Maker) -> None:
    """At least as much as was slept there, however busy the machine is; and no time is in two places."""
    before = time.perf_counter()
    sampler = make_sampler(sleep_and_act, partial(SleepingResets, 10, pause=0.01), n_workers=1, seed=SEED, check=None)
    times = sampler.obtain_trajectories(3).stats.times
    passed = time.perf_counter() - before
    assert times.reset >= 3 * 0.05 * 0.95
    assert times.agent >= 30 * 0.005 * 0.95
    assert times.step >= 30 * 0.01 * 0.95
    assert times.reset + times.agent + times.step + times.sending <= passed
