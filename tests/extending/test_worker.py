"""A worker outside the package keeps the contracts that do not depend on the kind of worker."""

from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RolloutError, TrajectoryBatch
from streamsampler.testing import Fault, Faults
from tests.extending.pairs import PairWorker
from tests.extending.pipes import PipeSampler
from tests.scripted.envs import AnyLength


class Rivals:
    """Chooses on what it has seen of both trajectories of a pair, with numbers of its own and of NumPy's generator."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.seen = self.offset

    def get_param_values(self) -> Any:
        return self.offset

    def set_param_values(self, values: Any) -> None:
        (self.offset,) = values

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self.seen += float(np.sum(observation))
        drawn = self.rng.random() + np.random.random()
        return int(self.seen + drawn > 1), {"seen": self.seen, "drawn": drawn}


def three_calls(sampler: Any) -> list[TrajectoryBatch]:
    with sampler:
        return [
            sampler.obtain_samples(100),
            sampler.obtain_trajectories(7, agent_update=(3.0,)),
            sampler.obtain_samples(60, env_update=AnyLength),
        ]


def pairs(cls: Any, n_workers: int, env: Any = AnyLength, **options: Any) -> Any:
    return cls(Rivals(), env, n_workers=n_workers, seed=5, worker_class=PairWorker, **options)


@pytest.fixture(scope="module")
def expected() -> list[TrajectoryBatch]:
    return three_calls(pairs(LocalSampler, 1))


@pytest.mark.parametrize(("cls", "n_workers"), [(LocalSampler, 3), (MultiprocessingSampler, 2), (PipeSampler, 3)])
def test_the_same_batches_for_any_engine_and_number_of_workers(cls, n_workers, expected):
    assert three_calls(pairs(cls, n_workers)) == expected


def test_a_pair_shares_what_its_agent_has_seen(expected):
    seen = [trajectory.agent_infos["seen"][0] for trajectory in expected[1]]
    shown = [float(trajectory.observations[0].sum()) for trajectory in expected[1]]
    assert seen[:2] == pytest.approx([3 + shown[0], 3 + shown[0] + shown[1]])
    assert seen[2:4] == pytest.approx([3 + shown[2], 3 + shown[2] + shown[3]])


def test_worker_args_and_limits_reach_the_worker():
    with pairs(LocalSampler, 1, worker_args={"repeat": 3}, max_episode_length=2) as sampler:
        batch = sampler.obtain_trajectories(6)
    assert batch.lengths.max() == 2
    assert batch.rewards.max() > 1


def test_a_killed_worker_changes_nothing(tmp_path, expected):
    faults = Faults(tmp_path, Fault("kill", trajectory=2, step=2), seed=5)
    assert three_calls(pairs(MultiprocessingSampler, 2, faults.env(AnyLength))) == expected
    assert faults.fired() == 1


def test_an_error_names_phase_and_trajectory(tmp_path):
    faults = Faults(tmp_path, Fault("raise", trajectory=3, step=2, times=None), seed=5)
    with pairs(MultiprocessingSampler, 2, faults.env(AnyLength)) as sampler:
        with pytest.raises(RolloutError) as caught:
            sampler.obtain_trajectories(6)
        assert (caught.value.trajectory, caught.value.phase) == (3, "stepping the environment")
        assert sampler.obtain_trajectories(6).n_trajectories == 6
