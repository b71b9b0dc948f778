"""C7, however it ends: what is kept, surplus, stale, abandoned, lost and checked are all timesteps that were run."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from streamsampler.errors import ClosedError, RolloutError, WorkerDiedError
from streamsampler.samplers.base import Sampler
from streamsampler.testing.fail_points import Records
from tests.contracts.conftest import Maker, one_each, slow_on
from tests.scripted.agents import always_zero
from tests.scripted.envs import AnyLength, Steps, TwoOrFifty, counted

SEED = 43
UNSHOWN = 65
"""A worker shows its timesteps once in 64 of them, or more often; and one may be under way."""


class Stumbling(gymnasium.Wrapper):
    """Goes wrong at the third step of some trajectories, before anything is stepped."""

    def __init__(self, env: gymnasium.Env, share: float, dies: bool) -> None:
        super().__init__(env)
        self.share, self.dies = share, dies

    def reset(self, **options: Any) -> Any:
        result = super().reset(**options)
        self.stumbles = self.unwrapped.np_random.random() < self.share
        self.t = 0
        return result

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.stumbles and self.t == 3:
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("it stumbled")
        return super().step(action)


def stumbling(make_env: Any, share: float = 0.1, dies: bool = False) -> Any:
    return partial(_stumbling, make_env, share, dies)


def _stumbling(make_env: Any, share: float, dies: bool) -> gymnasium.Env:
    return Stumbling(make_env(), share, dies)


@pytest.fixture
def steps(tmp_path: Path) -> Records:
    """Where steps are counted, by the environments themselves."""
    return Records(tmp_path)


@pytest.fixture
def env(steps: Records) -> Any:
    return counted(partial(TwoOrFifty, pause=0.0002), steps.folder)


def settle(sampler: Sampler, env: Any, steps: Records) -> None:
    """Make a call in which each of three workers has something to do: without an end, too, all is in the accounts."""
    assert len(sampler.obtain_exact_trajectories(1, agent_update=one_each(sampler, always_zero), env_update=env)) == 3
    assert sampler.stats.ran_timesteps == steps.count("steps")


def check(sampler: Sampler, steps: Records, missing: int = 0) -> None:
    """Close a sampler; all steps are in its accounts, but for so many that nobody can know of."""
    sampler.close()
    stats = sampler.stats
    fates = [
        getattr(stats, f"{fate}_timesteps") for fate in ("kept", "surplus", "stale", "abandoned", "lost", "checked")
    ]
    assert 0 <= steps.count("steps") - sum(fates) <= missing, (steps.count("steps"), fates)
    assert stats.ran_timesteps == sum(fates)


def test_after_a_return(make_sampler: Maker, env: Any, steps: Records) -> None:
    sampler = make_sampler(always_zero, env, n_workers=3, seed=SEED)
    for _ in range(3):
        sampler.obtain_samples(60)
    sampler.obtain_trajectories(2)
    check(sampler, steps)
    assert sampler.stats.lost_timesteps == 0


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
@pytest.mark.slow
def test_after_an_exception(make_sampler: Maker, env: Any, steps: Records) -> None:
    sampler = make_sampler(always_zero, stumbling(env, 0.3), n_workers=3, seed=SEED)
    for _ in range(3):
        with pytest.raises(RolloutError, match="stumbled"):
            sampler.obtain_trajectories(30)
    settle(sampler, env, steps)
    check(sampler, steps)
    assert sampler.stats.lost_timesteps >= 2


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
def test_where_losses_and_failures_are_run_again_or_left_out(make_sampler: Maker, env: Any, steps: Records) -> None:
    if make_sampler.side_by_side:
        pytest.skip("VecWorker cannot leave trajectories out")
    sampler = make_sampler(always_zero, stumbling(env, 0.5), n_workers=3, seed=SEED, on_failure="drop")
    sampler.obtain_trajectories(40)
    check(sampler, steps)
    assert sampler.stats.lost_timesteps >= 2 * sampler.stats.dropped_trajectories > 0


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
def test_after_exceptions_that_count_as_losses(make_sampler: Maker, env: Any, steps: Records) -> None:
    sampler = make_sampler(
        always_zero, stumbling(env, 0.5), n_workers=2, seed=SEED, restart_on=(OSError,), max_restarts=1
    )
    with pytest.raises(RolloutError, match="stumbled"):
        sampler.obtain_trajectories(8)
    check(sampler, steps)


class Interrupting:
    """Raises KeyboardInterrupt at its n-th snapshot, as Ctrl-C does."""

    interval = 0.0

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, snapshot: object) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("n_snapshots", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 6))])
def test_after_an_interrupt(make_sampler: Maker, env: Any, steps: Records, n_snapshots: int) -> None:
    sampler = make_sampler(always_zero, env, n_workers=3, seed=SEED)
    kept = 0
    for goes_on in (True, False):
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_samples(100_000, progress=Interrupting(n_snapshots))
        salvaged = sampler.salvage()
        kept += 0 if salvaged is None else salvaged.n_timesteps
        if goes_on:
            kept += sampler.obtain_samples(20).n_timesteps
    check(sampler, steps)
    assert sampler.stats.kept_timesteps == kept


@pytest.mark.slow
def test_after_a_worker_was_killed(make_sampler: Maker, env: Any, steps: Records) -> None:
    if make_sampler.engine == "local" or make_sampler.side_by_side:
        pytest.skip("its workers are no processes, or run several trajectories")
    # Without a check, which would show nothing before its end.
    dying = stumbling(env, 0.5, dies=True)
    sampler = make_sampler(always_zero, dying, n_workers=2, seed=SEED, max_restarts=1, check=None)
    with pytest.raises(WorkerDiedError):
        sampler.obtain_trajectories(8)
    # What a worker had not shown when it died nobody knows.
    check(sampler, steps, missing=UNSHOWN * (2 + sampler.stats.restarts))
    # An actor shows its timesteps with its answers only, unless somebody looks.
    assert sampler.stats.lost_timesteps > 0 or make_sampler.engine == "ray"


@pytest.mark.parametrize("engine", slow_on("local"), indirect=True)
def test_after_streams(make_sampler: Maker, env: Any, steps: Records) -> None:
    sampler = make_sampler(always_zero, env, n_workers=3, seed=SEED)
    for n in (1, 20):
        stream = sampler.stream()
        for _ in itertools.islice(stream, n):
            pass
        stream.close()
    stream = sampler.stream()
    next(stream)
    sampler.obtain_samples(20)  # ends it
    stream = sampler.stream()
    next(stream)
    check(sampler, steps)  # as does this


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
def test_after_a_stream_that_failed(make_sampler: Maker, env: Any, steps: Records) -> None:
    sampler = make_sampler(always_zero, stumbling(env, 0.3), n_workers=3, seed=SEED)
    with pytest.raises(RolloutError, match="stumbled"):
        list(itertools.islice(sampler.stream(), 30))
    settle(sampler, env, steps)
    check(sampler, steps)


def test_after_a_close_during_a_call(make_sampler: Maker, steps: Records) -> None:
    if make_sampler.engine in ("local", "vec", "lanes"):
        pytest.skip("its workers run in the thread of the call")
    endless = counted(partial(Steps, 10**9, pause=0.0002), steps.folder)
    short = counted(AnyLength, steps.folder)
    # Its workers are killed. Without a check, which would show nothing before its end.
    sampler = make_sampler([always_zero, always_zero], [endless, short], n_workers=2, seed=SEED, check=None)
    snapshots = itertools.count()

    def close_in_a_while(snapshot: object) -> None:
        if next(snapshots) == 3:
            threads.append(threading.Thread(target=sampler.close))
            threads[0].start()

    threads: list[threading.Thread] = []
    with pytest.raises(ClosedError):
        sampler.obtain_samples(10**8, progress=close_in_a_while)
    threads[0].join()
    check(sampler, steps, missing=2 * UNSHOWN)
