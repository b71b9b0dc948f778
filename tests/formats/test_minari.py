"""Datasets of Minari, read by Minari."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from streamsampler import LocalSampler, sample_to_folder
from streamsampler.data import trees
from streamsampler.data.codec import decode
from streamsampler.errors import StorageError, UsageError
from streamsampler.formats import export
from streamsampler.formats.minari import EpisodeFile
from streamsampler.formats.sources import open_source
from tests.scripted.envs import Counting, Echo

pytestmark = pytest.mark.extras

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")


def same_rows(one, other):
    return trees.same(np.asarray(one), np.asarray(other))


@pytest.fixture(scope="module")
def dataset(odd_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("minari") / "odd"
    assert export(odd_folder, out, to="minari", metadata={"author": "A. N. Author", "description": "odd"}) == out
    assert sorted(os.listdir(out)) == ["main_data.hdf5", "metadata.json"]
    assert os.listdir(out.parent) == ["odd"]
    return minari.MinariDataset(out)


@pytest.mark.core
def test_episodes_are_the_trajectories(odd, dataset):
    assert (len(dataset), dataset.total_steps) == (len(odd), odd.n_timesteps)
    assert dataset.observation_space == odd.observation_space
    assert dataset.action_space == odd.action_space
    for one, episode in zip(odd, dataset, strict=True):
        assert trees.same(trees.concatenate([one.observations, one.last_observations]), episode.observations)
        assert trees.same(one.actions, episode.actions)
        assert trees.same(one.rewards, episode.rewards)
        for name in ("terminated", "truncated"):
            ends = getattr(episode, {"terminated": "terminations", "truncated": "truncations"}[name])
            assert ends.tolist() == [False] * (one.n_timesteps - 1) + [bool(getattr(one, name)[0])]


@pytest.mark.core
def test_infos_have_a_row_for_the_reset_and_masks_where_they_come_and_go(odd, dataset):
    seen = set()
    for one, episode in zip(odd, dataset, strict=True):
        infos, length = episode.infos, one.n_timesteps
        assert infos["_sum"].tolist() == [False] + [True] * length
        assert infos["big"].dtype == np.int64
        for key in ("sum", "big", "half", *({"rare"} & one.env_infos.keys())):
            assert same_rows(infos[key][1:], one.env_infos[key])
        assert same_rows(infos["time"]["fps"][1:], one.env_infos["time/fps"])
        assert infos["start"]["x"].tolist() == [0.5] + [0.0] * length
        late = [b"at reset"] + [(text or "").encode() for text in one.env_infos.get("late", [""] * length)]
        assert infos["late"].tolist() == late
        assert same_rows(infos["agent_infos"]["logits"], one.agent_infos["logits"])
        assert same_rows(infos["agent_infos"]["nested"]["value"], one.agent_infos["nested"]["value"])
        for key in ("rare", "mixed", "list", "nothing"):
            assert (key in infos) == (key in one.env_infos)
        if "list" in infos:
            row = int(np.flatnonzero(infos["_list"])[0])
            assert trees.same(decode(json.loads(infos["list"][row])), one.env_infos["list"][row - 1])
        seen |= infos.keys()
    assert {"rare", "_rare", "list", "mixed", "nothing", "event"} <= seen


def test_metadata_say_where_the_data_are_from(odd, dataset):
    metadata = dataset.storage.metadata
    assert metadata["author"] == {"A. N. Author"}
    assert metadata["streamsampler"]["seed"] == 3
    assert metadata["jpeg_encoding"] is False
    assert (metadata["total_episodes"], metadata["total_steps"]) == (len(odd), odd.n_timesteps)
    assert metadata["minari_version"] == minari.__version__
    about = list(dataset.storage.get_episode_metadata(range(len(odd))))
    for key, values in (("seed", odd.seeds), ("trajectory_index", odd.indices), ("total_steps", odd.lengths)):
        assert [each[key] for each in about] == list(values)
    assert [each["id"] for each in about] == list(range(len(odd)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary((2, 3)),
        spaces.Text(5),
        spaces.Tuple((spaces.Discrete(3), spaces.Text(4))),
        spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        spaces.Box(0, 255, (32, 40, 3), np.uint8),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_come_back_with_values_and_the_space_that_is_reserved_is_enough(space, tmp_path):
    with LocalSampler("random", lambda: Echo(space), seed=1) as sampler:
        batch = sampler.obtain_trajectories(3)
    export(batch, tmp_path / "out", to="minari")
    dataset = minari.MinariDataset(tmp_path / "out")
    assert (dataset.observation_space, dataset.action_space) == (space, space)
    for one, episode in zip(batch, dataset, strict=True):
        whole = trees.concatenate([one.observations, one.last_observations])
        found = episode.observations if isinstance(episode.observations, tuple) else (episode.observations,)
        for (_, rows), values in zip(trees.leaves(whole), found, strict=True):
            assert rows.tolist() == (values if isinstance(values, list) else values.tolist())
    size = (tmp_path / "out" / "main_data.hdf5").stat().st_size
    assert size < EpisodeFile(open_source(batch)).most_bytes(batch) < (4 if isinstance(space, spaces.Box) else 5) * size


def test_more_can_be_appended_by_minari_itself_and_the_space_that_is_reserved_is_enough(odd, dataset, tmp_path):
    """What Minari writes after ours is an episode of its own, so that the numbering is Minari's."""
    export(odd, tmp_path / "out", to="minari")
    size = (tmp_path / "out" / "main_data.hdf5").stat().st_size
    assert size < EpisodeFile(open_source(odd)).most_bytes(odd) < 4 * size
    episode = dataset[0]
    minari.MinariDataset(tmp_path / "out").storage.update_episodes([minari.data_collector.EpisodeBuffer(
        observations=episode.observations, actions=episode.actions, rewards=episode.rewards,
        terminations=episode.terminations, truncations=episode.truncations, infos=episode.infos,
    )])  # fmt: skip
    longer = minari.MinariDataset(tmp_path / "out")
    assert len(longer) == len(odd) + 1
    assert trees.same(longer[len(odd)].observations, episode.observations)
    assert trees.same(longer[len(odd) - 1].rewards, odd[-1].rewards)


def test_what_minari_cannot_hold_is_an_error(odd, tmp_path):
    with LocalSampler("random", lambda: Echo(spaces.Sequence(spaces.Discrete(3))), seed=1) as it:
        batch = it.obtain_trajectories(2)
    with pytest.raises(StorageError, match=r"Minari cannot hold observations, a Sequence space$"):
        export(batch, tmp_path / "out", to="minari")
    rows = np.zeros(odd.n_timesteps)
    for infos, words in (
        ({"a//b": rows}, "no valid name in HDF5"),
        ({"a/b": rows, "a": {"b": rows}}, "two infos with the name 'a/b'"),
        ({"a/b": rows, "a": rows}, "two infos with the name 'a'"),
        ({"agent_infos": rows}, "two infos with the name 'agent_infos'"),
    ):
        with pytest.raises(StorageError, match=words):
            export(dataclasses.replace(odd, env_infos=infos), tmp_path / "out", to="minari")
    for dataset_id in ("x", "5", "a/b", "a/b-v", "a b/c-v0", "x/y-v0"):
        with pytest.raises(UsageError, match="no id of a Minari dataset"):
            export(odd, tmp_path / "out", to="minari", dataset_id=dataset_id)
    wrong: list[Any] = [{"athor": "me"}, {"author": 5}]
    for metadata in wrong:
        with pytest.raises(UsageError, match="the metadata of a Minari dataset are strings, some of author"):
            export(odd, tmp_path / "out", to="minari", metadata=metadata)
    assert os.listdir(tmp_path) == []


@pytest.mark.core
def test_the_environment_can_be_recovered(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    home = tmp_path / "datasets" / "cartpole" / "random-v0"
    home.mkdir(parents=True)
    with LocalSampler("random", "CartPole-v1", seed=1, env_kwargs={"sutton_barto_reward": True}) as sampler:
        sample_to_folder(sampler, tmp_path / "folder", n_timesteps=100, shard_size=50)
    export(tmp_path / "folder", home / "data", to="minari")
    dataset = minari.load_dataset("cartpole/random-v0")
    assert dataset.id == "cartpole/random-v0"
    env = dataset.recover_environment()
    assert env.spec.id == "CartPole-v1"
    assert env.unwrapped._sutton_barto_reward is True
    assert list(minari.list_local_datasets()) == ["cartpole/random-v0"]


@pytest.mark.parametrize(("entry_point", "module"), [(Counting, Counting.__module__), (lambda: Counting(), None)])
def test_an_environment_registered_with_a_class_can_be_recovered(entry_point, module, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(gymnasium.registry, "Counting-v0", EnvSpec("Counting-v0", entry_point=entry_point))
    with LocalSampler("random", "Counting-v0", seed=1) as sampler:
        sampler.obtain_trajectories(1).save(tmp_path / "counting.npz", provenance=sampler.provenance())
    export(tmp_path / "counting.npz", tmp_path / "out", to="minari")
    spec = minari.MinariDataset(tmp_path / "out").spec.env_spec
    if module is None:
        assert spec is None
        assert "no env_spec, so Minari cannot recreate the environment 'Counting-v0': " in caplog.text
        assert 'entry_point="module:Class"' in caplog.text
    else:
        assert spec.entry_point == f"{module}:Counting"
        assert caplog.text == ""


@pytest.mark.core
def test_seeds_of_any_size_come_back(odd, tmp_path):
    seeds = (2**100, *odd.seeds[1:])
    export(dataclasses.replace(odd, seeds=seeds), tmp_path / "out", to="minari")
    about = minari.MinariDataset(tmp_path / "out").storage.get_episode_metadata(range(len(odd)))
    assert tuple(each["seed"] for each in about) == seeds


# --- Ends in the middle


@pytest.mark.parametrize("n_shards", [0, 2])
def test_a_full_disk_is_an_error_before_hdf5_meets_it(n_shards, odd_folder, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    episodes = EpisodeFile(open_source(odd_folder))
    most = 50_000 + sum(episodes.most_bytes(shard) for shard in list(odd_folder.shards)[:n_shards])
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            export(odd_folder, tmp_path / "out", to="minari")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_memory_holds_a_shard_whatever_the_amount(tmp_path):
    """Ten times as many shards take no more memory."""
    code = (
        "import resource, sys; from streamsampler.formats import export\n"
        "export(sys.argv[1], sys.argv[2], to='minari')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for name, n_timesteps in (("small", 1_000), ("large", 10_000)):
        with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
            sample_to_folder(sampler, tmp_path / name, n_timesteps=n_timesteps, shard_size=500)
        command = [sys.executable, "-c", code, tmp_path / name, tmp_path / f"{name}-out"]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] < peaks[0] * 1.15, peaks
