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
            info |= {"handle": Handle(), "poses": {"of": [Handle()]}}
        return np.zeros(1, np.float32), 1.0, self.timestep == 3, False, info


def make(first: int = 1, **options: Any) -> LocalSampler[Any, Any]:
    return LocalSampler("random", Handles, env_kwargs={"first": first}, seed=1, check=None, **options)


def test_a_file_holds_the_infos_that_are_kept_or_is_not_written(tmp_path):
    with make() as sampler:
        batch = sampler.obtain_trajectories(4)
    with pytest.raises(UnwritableInfoError) as caught:
        batch.save(tmp_path / "x")
    assert "env_infos['handle'] holds a tests.data.test_kept_infos.Handle" in str(caught.value)
    assert str(caught.value).endswith('Pass infos=["deep", "mixed", "rare", "start", "x"] to write only the others')
    assert caught.value.names == ["handle", "poses"]
    with pytest.raises(UsageError, match="the batch has no info 'z', only 'deep', 'handle', 'mixed'"):
        batch.save(tmp_path / "x", infos=["x", "z"])
    wrongs: list[Any] = ["x", [1], 1]
    for wrong in wrongs:
        with pytest.raises(UsageError, match="infos must be True, False, or the names to keep"):
            batch.save(tmp_path / "x", infos=wrong)
    assert list(tmp_path.iterdir()) == []
    kept = load(batch.save(tmp_path / "x", infos=["deep", "mixed", "rare", "start", "x"]))
    assert set(kept.env_infos) == {"deep", "mixed", "rare", "_rare", "x"}
    np.testing.assert_array_equal(kept.env_infos["_rare"], batch.env_infos["_rare"])
    assert kept.env_infos["rare"][1] == [1, (2, "b")]
    np.testing.assert_array_equal(kept.episode_infos["start"], batch.episode_infos["start"])
    none = load(batch.save(tmp_path / "y", infos=False))
    assert none.env_infos == none.agent_infos == none.episode_infos == {}


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])
def test_sampling_ends_with_the_first_trajectory_that_no_file_can_hold(tmp_path, kind, is_folder):
    def sample():
        if is_folder:
            sample_to_folder(sampler, tmp_path / "out", n_trajectories=5_000, shard_size=3_000)
        with sampler.writable_infos():
            sampler.obtain_trajectories(5_000)

    with kind("random", Handles, seed=1, check=None, n_workers=1) as sampler:
        with pytest.raises(UnwritableInfoError) as caught:
            sample()
        assert caught.value.names == ["handle", "poses"]
        assert sampler.stats.ran_timesteps < 5_000
        assert sampler.obtain_trajectories(2).n_trajectories == 2  # it is usable again, without files as before


def test_a_trajectory_that_does_not_go_into_the_file_does_not_end_the_call():
    """Else it would depend on timing whether a call fails."""
    with make(first=6) as sampler, sampler.writable_infos():
        assert len(sampler.obtain_trajectories(5)) == 5
    with make(first=5) as sampler, sampler.writable_infos(), pytest.raises(UnwritableInfoError):
        sampler.obtain_trajectories(5)


def test_the_same_folder_takes_other_infos_after_the_error_and_keeps_them_when_it_is_resumed(tmp_path, caplog):
    def sample(**options):
        with make() as sampler:
            return sample_to_folder(sampler, tmp_path / "out", n_trajectories=20, shard_size=30, **options)

    kept = ["deep", "rare", "x", "missing"]
    with pytest.raises(UnwritableInfoError):
        sample()
    with caplog.at_level(logging.WARNING, "streamsampler"):
        folder = sample(infos=kept)
    assert caplog.messages == ["no trajectory had an info 'missing'"]
    assert folder.provenance["infos"] == sorted(kept)
    assert set(folder.to_batch().env_infos) == {"deep", "rare", "_rare", "x"}
    assert folder.to_batch().episode_infos == {}
    with pytest.raises(UsageError, match=r"infos was .*, now \['x'\]"):
        sample(infos=["x"], resume=True)
