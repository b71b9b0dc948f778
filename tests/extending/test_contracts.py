"""An engine and a worker outside the package keep the contracts that depend on neither."""

import gc
import multiprocessing
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RolloutError, TrajectoryBatch, WorkerDiedError
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.testing import Fault, Faults
from tests.contracts.conftest import open_files
from tests.extending.pairs import PairWorker
from tests.extending.pipes import PipeSampler
from tests.scripted.agents import always_zero
from tests.scripted.envs import AnyLength, Steps


class Rivals:
    """Chooses on what it has seen of both trajectories of a pair, with numbers of its own and of NumPy's generator."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset

    def reset(self, seed: int) -> None:
        self.rng, self.seen = np.random.default_rng(seed), self.offset

    def set_param_values(self, values: Any) -> None:
        (self.offset,) = values

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self.seen += float(np.sum(observation))
        drawn = self.rng.random() + np.random.random()
        return int(self.seen + drawn > 1), {"seen": self.seen, "drawn": drawn}


def pairs(cls: Any, n_workers: int, env: Any = AnyLength, **options: Any) -> Any:
    return cls(Rivals(), env, n_workers=n_workers, seed=5, worker_class=PairWorker, **options)


def three_calls(sampler: Any) -> list[TrajectoryBatch]:
    with sampler:
        return [
            sampler.obtain_samples(100),
            sampler.obtain_trajectories(7, agent_update=(3.0,)),
            sampler.obtain_samples(60, env_update=AnyLength),
        ]


@pytest.fixture(scope="module")
def expected() -> list[TrajectoryBatch]:
    return three_calls(pairs(LocalSampler, 1))


@pytest.mark.parametrize("cls", [LocalSampler, MultiprocessingSampler, PipeSampler])
@pytest.mark.slow
def test_the_same_batches_for_any_engine_and_number_of_workers_although_one_is_killed(cls, tmp_path, expected):
    assert three_calls(pairs(cls, 3)) == expected
    if cls is not LocalSampler:
        faults = Faults(tmp_path, Fault("kill", trajectory=2, step=2), seed=5)
        assert three_calls(pairs(cls, 2, faults.env(AnyLength))) == expected
        assert faults.fired() == 1


def test_a_pair_shares_what_its_agent_has_seen_and_the_worker_gets_its_arguments(expected):
    seen = [trajectory.agent_infos["seen"][0] for trajectory in expected[1]]
    shown = [float(trajectory.observations[0].sum()) for trajectory in expected[1]]
    assert seen[:2] == pytest.approx([3 + shown[0], 3 + shown[0] + shown[1]])
    assert seen[2:4] == pytest.approx([3 + shown[2], 3 + shown[2] + shown[3]])
    with pairs(LocalSampler, 1, worker_args={"repeat": 3}, max_episode_length=2) as sampler:
        batch = sampler.obtain_trajectories(6)
    assert batch.lengths.max() == 2
    assert batch.rewards.max() > 1


@pytest.mark.parametrize("cls", [MultiprocessingSampler, PipeSampler])
@pytest.mark.slow
def test_errors_name_phase_and_trajectory_and_the_sampler_goes_on(cls, tmp_path):
    # Each time: where a copy in the other worker succeeds first, the failure is forgotten.
    failing = Fault("raise", trajectory=3, step=2, times=None), Fault("exit", trajectory=1, version=2, times=None)
    faults = Faults(tmp_path, *failing, seed=5)
    with pairs(cls, 2, faults.env(AnyLength), max_restarts=1) as sampler:
        with pytest.raises(RolloutError) as caught:
            sampler.obtain_trajectories(6)
        assert (caught.value.trajectory, caught.value.phase) == (3, "stepping the environment")
        with pytest.raises(WorkerDiedError) as died:
            sampler.obtain_trajectories(6)
        assert died.value.exitcode == 7
        assert sampler.obtain_trajectories(6).n_trajectories == 6


class OneShort(Steps):
    """Is short in the first trajectory of each of two calls, and has a million timesteps in the others."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.length = 3 if seed in (TrajectorySeeds(1, 1)[0], TrajectorySeeds(1, 2)[0]) else 1_000_000
        return super().reset(seed=seed)


def test_rollouts_that_are_not_needed_are_abandoned_and_nothing_is_left():
    gc.collect()
    gc.disable()  # what a sampler leaves open would be closed at any time
    try:
        files, children = open_files(), set(multiprocessing.active_children())
        with PipeSampler(always_zero, OneShort, n_workers=2, seed=1, check=None) as sampler:
            assert [sampler.obtain_trajectories(1).lengths.tolist() for _ in range(2)] == [[3], [3]]
        assert sampler.stats.ran_timesteps < 1_000_000
        # What an earlier test left may go meanwhile; nothing may come.
        assert set(multiprocessing.active_children()) <= children
        assert open_files() <= files
    finally:
        gc.enable()
