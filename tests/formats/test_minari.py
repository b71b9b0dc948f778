"""Datasets of Minari, read by Minari."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, sample_to_folder
from streamsampler.data import trees
from streamsampler.data.codec import decode
from streamsampler.errors import StorageError, UsageError
from streamsampler.formats import export

pytestmark = pytest.mark.extras

minari = pytest.importorskip("minari")
h5py = pytest.importorskip("h5py")


def same_rows(one, other):
    return trees.same(np.asarray(one), np.asarray(other))


def check_episode(episode, one):
    """Compare an episode with a trajectory, a batch of one."""
    length = one.n_timesteps
    expected = trees.concatenate([one.observations, one.last_observations])
    assert trees.same(expected, episode.observations)
    assert trees.same(one.actions, episode.actions)
    assert trees.same(one.rewards, episode.rewards)
    for name in ("terminated", "truncated"):
        ends = getattr(episode, {"terminated": "terminations", "truncated": "truncations"}[name])
        assert ends.tolist() == [False] * (length - 1) + [bool(getattr(one, name)[0])]
    assert len(episode.actions if not isinstance(episode.actions, dict) else episode.actions["move"]) == length


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
        check_episode(episode, one)


@pytest.mark.core
def test_infos_have_a_row_for_the_reset_and_masks_where_they_come_and_go(odd, dataset):
    seen = set()
    for one, episode in zip(odd, dataset, strict=True):
        infos, length = episode.infos, one.n_timesteps
        assert same_rows(infos["sum"][1:], one.env_infos["sum"])
        assert infos["_sum"].tolist() == [False] + [True] * length
        assert same_rows(infos["big"][1:], one.env_infos["big"])
        assert infos["big"].dtype == np.int64
        assert same_rows(infos["half"][1:], one.env_infos["half"])
        assert same_rows(infos["time"]["fps"][1:], one.env_infos["time/fps"])
        assert infos["start"]["x"].tolist() == [0.5] + [0.0] * length
        late = [b"at reset"] + [(text or "").encode() for text in one.env_infos.get("late", [""] * length)]
        assert infos["late"].tolist() == late
        assert same_rows(infos["agent_infos"]["logits"], one.agent_infos["logits"])
        assert same_rows(infos["agent_infos"]["nested"]["value"], one.agent_infos["nested"]["value"])
        for key in ("rare", "mixed", "list", "nothing"):
            assert (key in infos) == (key in one.env_infos)
        if "rare" in infos:
            assert same_rows(infos["rare"][1:], one.env_infos["rare"])
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
    assert [each["seed"] for each in about] == list(odd.seeds)
    assert [each["trajectory_index"] for each in about] == odd.indices.tolist()
    assert [each["id"] for each in about] == list(range(len(odd)))
    assert [each["total_steps"] for each in about] == odd.lengths.tolist()


def test_more_can_be_appended_by_minari_itself(odd, dataset, tmp_path):
    """What Minari writes behind it is an episode of its own, so that the numbering is Minari's."""
    export(odd[:3], tmp_path / "out", to="minari")
    storage = minari.MinariDataset(tmp_path / "out").storage
    episode = dataset[0]
    storage.update_episodes([minari.data_collector.EpisodeBuffer(
        observations=episode.observations, actions=episode.actions, rewards=episode.rewards,
        terminations=episode.terminations, truncations=episode.truncations, infos=episode.infos,
    )])  # fmt: skip
    longer = minari.MinariDataset(tmp_path / "out")
    assert len(longer) == 4
    assert trees.same(longer[3].observations, episode.observations)
    assert trees.same(longer[2].rewards, odd[2].rewards)


def test_images_are_exact(pictures, tmp_path):
    export(pictures, tmp_path / "out", to="minari")
    for one, episode in zip(pictures, minari.MinariDataset(tmp_path / "out"), strict=True):
        check_episode(episode, one)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(5, start=-2),
        gymnasium.spaces.MultiDiscrete([3, 4]),
        gymnasium.spaces.MultiBinary((2, 3)),
        gymnasium.spaces.Text(5),
        gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(3), gymnasium.spaces.Text(4))),
        gymnasium.spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_come_back(space, tmp_path):
    from tests.scripted.envs import Echo

    with LocalSampler("random", lambda: Echo(space), seed=1) as sampler:
        batch = sampler.obtain_trajectories(3)
    export(batch, tmp_path / "out", to="minari")
    dataset = minari.MinariDataset(tmp_path / "out")
    assert (dataset.observation_space, dataset.action_space) == (space, space)
    for one, episode in zip(batch, dataset, strict=True):
        whole = trees.concatenate([one.observations, one.last_observations])
        for (_, rows), (_, found) in zip(trees.leaves(whole), leaves(episode.observations), strict=True):
            assert rows.tolist() == (found if isinstance(found, list) else found.tolist())


def leaves(tree):
    return [("", tree)] if isinstance(tree, list) else [
        pair for child in tree for pair in leaves(child)
    ] if isinstance(tree, tuple) else [("", tree)]  # fmt: skip


def test_what_minari_cannot_hold_is_an_error(odd, tmp_path):
    from tests.scripted.envs import Echo

    with LocalSampler("random", lambda: Echo(gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))), seed=1) as it:
        batch = it.obtain_trajectories(2)
    with pytest.raises(StorageError, match=r"Minari cannot hold observation_space, a space of the kind Sequence"):
        export(batch, tmp_path / "out", to="minari")
    for infos, words in (
        ({"a//b": np.zeros(odd.n_timesteps)}, "cannot be a name in HDF5"),
        ({"a/b": np.zeros(odd.n_timesteps), "a": {"b": np.zeros(odd.n_timesteps)}}, "two infos under the name 'a/b'"),
        ({"a/b": np.zeros(odd.n_timesteps), "a": np.zeros(odd.n_timesteps)}, "two infos under the name 'a'"),
        ({"agent_infos": np.zeros(odd.n_timesteps)}, "two infos under the name 'agent_infos'"),
    ):
        with pytest.raises(StorageError, match=words):
            export(dataclasses.replace(odd, env_infos=infos), tmp_path / "out", to="minari")
    assert os.listdir(tmp_path) == []


@pytest.mark.core
def test_the_environment_can_be_recovered(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    home = tmp_path / "datasets" / "cartpole" / "random-v0"
    home.mkdir(parents=True)
    with LocalSampler("random", "CartPole-v1", seed=1, env_kwargs={"sutton_barto_reward": True}) as sampler:
        sample_to_folder(sampler, tmp_path / "folder", num_samples=100, shard_size=50)
    export(tmp_path / "folder", home / "data", to="minari")
    dataset = minari.load_dataset("cartpole/random-v0")
    assert dataset.id == "cartpole/random-v0"
    env = dataset.recover_environment()
    assert env.spec.id == "CartPole-v1"
    assert env.unwrapped._sutton_barto_reward is True
    assert list(minari.list_local_datasets()) == ["cartpole/random-v0"]


@pytest.mark.core
def test_seeds_of_any_size_come_back(odd, tmp_path):
    seeds = (2**100, *odd.seeds[1:])
    export(dataclasses.replace(odd, seeds=seeds), tmp_path / "out", to="minari")
    about = minari.MinariDataset(tmp_path / "out").storage.get_episode_metadata(range(len(odd)))
    assert tuple(each["seed"] for each in about) == seeds


@pytest.mark.parametrize("dataset_id", ["x", "5", "a/b", "a/b-v", "a b/c-v0", "x/y-v0"])
def test_what_is_no_id_is_an_error(dataset_id, odd, tmp_path):
    with pytest.raises(UsageError, match="no id of a Minari dataset"):
        export(odd, tmp_path / "out", to="minari", dataset_id=dataset_id)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("metadata", [{"athor": "me"}, {"author": 5}])
def test_what_is_no_metadata_is_an_error(metadata, odd, tmp_path):
    with pytest.raises(UsageError, match="the metadata of a Minari dataset are texts, some of author"):
        export(odd, tmp_path / "out", to="minari", metadata=metadata)


# --- Ends in the middle


@pytest.mark.parametrize("n_shards", [0, 2])
def test_a_full_disk_is_an_error_before_hdf5_meets_it(n_shards, odd_folder, tmp_path):
    from streamsampler.formats.columns import open_source
    from streamsampler.formats.minari import Episodes

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    episodes = Episodes(open_source(odd_folder))
    most = 50_000 + sum(episodes.most_bytes(shard) for shard in list(odd_folder.shards)[:n_shards])
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            export(odd_folder, tmp_path / "out", to="minari")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("of", ["odd", "pictures"])
def test_the_space_that_is_reserved_is_enough(of, request, tmp_path):
    from streamsampler.formats.columns import open_source
    from streamsampler.formats.minari import Episodes

    batch = request.getfixturevalue(of)
    export(batch, tmp_path / "out", to="minari")
    size = (tmp_path / "out" / "main_data.hdf5").stat().st_size
    assert size < Episodes(open_source(batch)).most_bytes(batch) < 4 * size


def test_memory_holds_a_shard_whatever_the_amount(tmp_path):
    """Ten times as many shards take no more memory."""
    peaks = []
    for name, n_timesteps in (("small", 1_000), ("large", 10_000)):
        with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
            sample_to_folder(sampler, tmp_path / name, num_samples=n_timesteps, shard_size=500)
        code = (
            "import resource, sys; from streamsampler.formats import export; "
            "export(sys.argv[1], sys.argv[2], to='minari'); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        command = [sys.executable, "-c", code, tmp_path / name, tmp_path / f"{name}-out"]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] < peaks[0] * 1.15, peaks
