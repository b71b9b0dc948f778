"""Which infos files hold: objects are found when they arrive, and infos are left out of files and folders."""

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, load, sample_to_folder
from streamsampler.errors import UnwritableInfoError, UsageError


class Handle:
    """What no file can hold."""


class Handles(gymnasium.Env[Any, Any]):
    """Trajectories of 3 timesteps, whose infos have numbers, texts and, from a reset on, objects."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, first: int = 1) -> None:
        self.first, self.resets, self.timestep = first, 0, 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        self.timestep = 0
        return np.zeros(1, np.float32), {"start": 0.5}

    def step(self, action):
        self.timestep += 1
        info: dict[str, Any] = {"x": self.timestep, "deep": {"text": "a"}, "mixed": [1j, 1.5][self.timestep % 2]}
        if self.timestep == 2:
            info["rare"] = [1, (2, "b")]
        if self.resets >= self.first:
            info["handle"] = Handle()
            info["poses"] = {"of": [Handle()]}
        return np.zeros(1, np.float32), 1.0, self.timestep == 3, False, info


def make(first: int = 1, **options: Any) -> LocalSampler[Any, Any]:
    return LocalSampler("random", Handles, env_kwargs={"first": first}, seed=1, check=None, **options)


@pytest.fixture(scope="module")
def batch():
    with make() as sampler:
        return sampler.obtain_trajectories(4)


def test_a_batch_with_objects_is_not_written_and_the_error_names_all_of_them_and_the_way_out(batch, tmp_path):
    with pytest.raises(UnwritableInfoError) as caught:
        batch.save(tmp_path / "x")
    assert "env_infos['handle'] holds a tests.data.test_kept_infos.Handle" in str(caught.value)
    assert str(caught.value).endswith('Give infos=["deep", "mixed", "rare", "start", "x"] to write only the others')
    assert caught.value.names == ["handle", "poses"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_holds_the_infos_that_are_kept_with_their_masks(batch, tmp_path):
    kept = load(batch.save(tmp_path / "x", infos=["deep", "mixed", "rare", "start", "x"]))
    assert set(kept.env_infos) == {"deep", "mixed", "rare", "_rare", "x"}
    np.testing.assert_array_equal(kept.env_infos["_rare"], batch.env_infos["_rare"])
    assert kept.env_infos["rare"][1] == [1, (2, "b")]
    np.testing.assert_array_equal(kept.episode_infos["start"], batch.episode_infos["start"])
    none = load(batch.save(tmp_path / "y", infos=False))
    assert none.env_infos == none.agent_infos == none.episode_infos == {}
    np.testing.assert_array_equal(none.observations, batch.observations)


def test_an_info_that_is_not_there_cannot_be_kept(batch, tmp_path):
    with pytest.raises(UsageError, match="there is no info 'z'; those there are: 'deep', 'handle', 'mixed'"):
        batch.save(tmp_path / "x", infos=["x", "z"])
    for wrong in ("x", [1], 1):
        with pytest.raises(UsageError, match="infos must be True, False, or the names to keep"):
            batch.save(tmp_path / "x", infos=wrong)


@pytest.mark.parametrize("is_folder", [False, True])
def test_sampling_ends_with_the_first_trajectory_that_no_file_can_hold(tmp_path, is_folder):
    def sample():
        if is_folder:
            sample_to_folder(sampler, tmp_path / "out", n_trajectories=5_000, shard_size=3_000)
        with sampler.writable_infos():
            sampler.obtain_trajectories(5_000)

    with make() as sampler:
        with pytest.raises(UnwritableInfoError) as caught:
            sample()
        assert caught.value.names == ["handle", "poses"]
        assert sampler.stats.ran_timesteps < 5_000
        assert sampler.obtain_trajectories(2).n_trajectories == 2  # it is usable again, without files as before


def test_sampling_with_processes_ends_with_the_first_trajectory_that_no_file_can_hold():
    with MultiprocessingSampler("random", Handles, n_workers=2, seed=1, check=None) as sampler:
        with pytest.raises(UnwritableInfoError), sampler.writable_infos():
            sampler.obtain_trajectories(20_000)
        assert sampler.obtain_trajectories(3).n_trajectories == 3


def test_a_trajectory_that_does_not_go_into_the_file_does_not_end_the_call():
    """Else it would depend on timing whether a call fails."""
    with make(first=6) as sampler, sampler.writable_infos():
        assert len(sampler.obtain_trajectories(5)) == 5
    with make(first=5) as sampler, sampler.writable_infos(), pytest.raises(UnwritableInfoError):
        sampler.obtain_trajectories(5)


def test_the_same_folder_takes_other_infos_after_the_error_and_keeps_them_when_it_is_resumed(tmp_path, caplog):
    kept, others = ["deep", "rare", "x", "missing"], ["x"]
    with make() as sampler, pytest.raises(UnwritableInfoError):
        sample_to_folder(sampler, tmp_path / "out", n_trajectories=50, shard_size=60)
    with make() as sampler, caplog.at_level(logging.WARNING, "streamsampler"):
        folder = sample_to_folder(sampler, tmp_path / "out", n_trajectories=50, shard_size=60, infos=kept)
    assert caplog.messages == ["there was no info 'missing'"]
    assert folder.provenance["infos"] == sorted(kept)
    assert set(folder.to_batch().env_infos) == {"deep", "rare", "_rare", "x"}
    assert folder.to_batch().episode_infos == {}
    with make() as sampler, pytest.raises(UsageError, match=r"infos is .* there, and \['x'\] here"):
        sample_to_folder(sampler, tmp_path / "out", n_trajectories=50, shard_size=60, infos=others, resume=True)
