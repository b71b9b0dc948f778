"""An engine outside the package keeps the contracts that do not depend on the engine."""

import gc
import multiprocessing
import pickle
from typing import Any

import pytest

from streamsampler import RolloutError, WorkerDiedError
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.testing import Fault, Faults
from tests.contracts.conftest import open_files
from tests.contracts.test_c1_reproducible import SCENARIOS, SEED, assert_same, expected, three_calls
from tests.extending.pipes import PipeSampler
from tests.scripted.agents import always_zero
from tests.scripted.envs import AnyLength, Steps


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    gc.collect()
    gc.disable()  # what a sampler leaves open would be closed at any time, in the middle of another test
    try:
        files, children = open_files(), set(multiprocessing.active_children())
        yield
        # What an earlier test left may go meanwhile; nothing may come.
        assert set(multiprocessing.active_children()) <= children
        assert open_files() <= files
    finally:
        gc.enable()


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "name", [name if name == "nested" else pytest.param(name, marks=pytest.mark.slow) for name in SCENARIOS]
)
def test_the_same_batches_as_in_this_process(name, n_workers):
    scenario = SCENARIOS[name]
    with PipeSampler(scenario.agent, scenario.env, n_workers=n_workers, seed=SEED) as sampler:
        batches = [*three_calls(sampler, scenario), sampler.obtain_exact_trajectories(2)]
    assert_same(batches, expected(name, n_workers))


@pytest.mark.slow
def test_a_sampler_that_was_pickled_goes_on():
    with PipeSampler(always_zero, AnyLength, n_workers=2, seed=1) as sampler:
        sampler.obtain_trajectories(3)
        with pickle.loads(pickle.dumps(sampler)) as again:
            assert again.obtain_samples(50) == sampler.obtain_samples(50)


def test_a_killed_worker_changes_nothing(tmp_path):
    with PipeSampler(always_zero, AnyLength, n_workers=2, seed=1) as sampler:
        undisturbed = sampler.obtain_trajectories(20)
    faults = Faults(tmp_path, Fault("kill", trajectory=7, step=1), seed=1)
    with PipeSampler(always_zero, faults.env(AnyLength), n_workers=2, seed=1) as sampler:
        assert sampler.obtain_trajectories(20) == undisturbed
        assert sampler.obtain_trajectories(5).agent_version == 2
    # The other worker may have run a copy of the killed worker's ticket: then the first call ends without a restart.
    assert faults.fired() == 1
    assert sampler.stats.restarts <= 1


@pytest.mark.slow
def test_after_an_error_the_sampler_goes_on(tmp_path):
    # Each time: where a copy in the other worker succeeds first, the failure is forgotten.
    failing = Fault("raise", trajectory=2, times=None), Fault("exit", trajectory=1, version=2, times=None)
    faults = Faults(tmp_path, *failing, seed=1)
    with PipeSampler(always_zero, faults.env(AnyLength), n_workers=2, seed=1, max_restarts=1) as sampler:
        with pytest.raises(RolloutError) as caught:
            sampler.obtain_trajectories(6)
        assert caught.value.trajectory == 2
        with pytest.raises(WorkerDiedError) as died:
            sampler.obtain_trajectories(6)
        assert died.value.exitcode == 7
        assert sampler.obtain_trajectories(6).n_trajectories == 6


class OneShort(Steps):
    """Is short in the first trajectory of each of two calls, and has a million timesteps in the others."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.length = 3 if seed in (TrajectorySeeds(1, 1)[0], TrajectorySeeds(1, 2)[0]) else 1_000_000
        return super().reset(seed=seed)


def test_rollouts_that_are_not_needed_are_abandoned():
    with PipeSampler(always_zero, OneShort, n_workers=2, seed=1, check=None) as sampler:
        batches = [sampler.obtain_trajectories(1) for _ in range(2)]
    assert [batch.lengths.tolist() for batch in batches] == [[3], [3]]
    assert sampler.stats.ran_timesteps < 1_000_000
