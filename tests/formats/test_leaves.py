"""Exports and data sets of some leaves: of observations with text, of infos, and of nested spaces."""

from __future__ import annotations

import json
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, sample_to_folder
from streamsampler.data.leaf_selection import LeafSelection
from streamsampler.errors import DataError, StorageError, UsageError
from streamsampler.formats import export, to_pandas, to_tensordict
from tests.cli.harness import invoke

pytestmark = pytest.mark.extras

MISSION = ("observations.mission",)


class Words(spaces.Text):
    """A space of text that no library knows, as MiniGrid has one."""

    def __init__(self):
        super().__init__(20)


class Mission(gymnasium.Env):
    """Says in words what is to be done, as MiniGrid does."""

    observation_space = spaces.Dict({
        "image": spaces.Box(0, 255, (2, 3), np.uint8),
        "mission": spaces.Sequence(spaces.Discrete(3)),
        "pair": spaces.Tuple((spaces.Discrete(9), spaces.Text(9), spaces.Box(0, 9, (), np.float32))),
    })  # fmt: skip
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {"start": {"x": 1.5, "word": "here"}}

    def step(self, action):
        self.t += 1
        info = {"lap": self.t, "note": "goes on"} if self.t % 2 else {"lap": self.t}
        return self._observation(), float(action), self.t > 5, False, info

    def _observation(self):
        image = np.full((2, 3), self.t, np.uint8)
        return {"image": image, "mission": (1, 2), "pair": (self.t, "go", np.float32(self.t))}


@pytest.fixture(scope="module")
def missions(tmp_path_factory):
    with LocalSampler("random", Mission, seed=1) as sampler:
        return sample_to_folder(sampler, tmp_path_factory.mktemp("leaves") / "folder", n_trajectories=6, shard_size=12)


def test_text_in_an_observation_is_left_out_of_what_is_trained_on(missions):
    with pytest.raises(DataError, match=r"observations.mission has the dtype object, .* omit it with without=\('obs"):
        next(iter(missions.torch_dataset(4)))
    without = ("observations.mission", "observations.pair.1", "next_observations.mission", "next_observations.pair.1")
    fields = ("observations", "next_observations", "rewards", "env_infos.lap")
    dataset = pickle.loads(pickle.dumps(missions.torch_dataset(4, fields=fields, without=without)))
    first = next(iter(dataset))
    assert {*first} == {
        *["observations", "next_observations", "rewards", "env_infos", "mask", "trajectory", "index", "timestep"]
    }
    assert [{*first[name]} for name in ("observations", "env_infos")] == [{"image", "pair"}, {"lap"}]
    assert first["observations"]["image"][:, 0, 0].tolist() == [0, 1, 2, 3]
    assert [part.tolist() for part in first["next_observations"]["pair"]] == [[1, 2, 3, 4]] * 2
    (image,) = next(iter(missions.torch_dataset(4, fields=("observations.image",))))["observations"].items()
    assert image[0] == "image"


def test_what_a_library_cannot_hold_is_left_out_of_its_export(missions, tmp_path):
    for call, words in (
        (lambda: to_tensordict(missions), r"observations.mission is a Sequence space: omit it with without=\('obs"),
        (
            lambda: export(missions, tmp_path / "m", to="minari"),
            r"hold observations.mission, .*: omit it with",
        ),
    ):
        with pytest.raises(StorageError, match=rf"{words}.*--without observations.mission on the command line"):
            call()
    tensors = to_tensordict(missions, without=(*MISSION, "observations.pair.1", "env_infos"))
    assert {*tensors["observation"].keys()} == {"image", "pair"}
    assert tensors["next", "observation", "pair", "1"].tolist() == [1, 2, 3, 4, 5, 6] * 6
    assert "env_infos" not in tensors["next"].keys()  # noqa: SIM118
    steps, trajectories = to_pandas(
        missions, fields=["observations.pair", "observations.image", "episode_infos.start.x"]
    )
    assert {name for name in steps if "." in name} == {
        *(f"observation.{leaf}" for leaf in ("image", "pair.0", "pair.1", "pair.2")), "env_info.lap", "env_info.note",
    }  # fmt: skip
    assert {name for name in trajectories if "reset_info" in name} == {"reset_info.start.x"}
    minari = pytest.importorskip("minari")
    export(missions, tmp_path / "m", to="minari", without=(*MISSION, "env_infos.note"))
    dataset = minari.MinariDataset(tmp_path / "m")
    assert {*dataset.observation_space.spaces} == {"image", "pair"}
    assert {*dataset[0].infos} & {"note", "_note"} == set()
    assert dataset[3].observations["image"].shape == (7, 2, 3)


def test_a_batch_a_file_and_a_folder_give_the_same_leaves(missions, tmp_path):
    batch = missions.to_batch()
    path = batch.save(tmp_path / "batch.npz")
    frames = [to_pandas(source, without=MISSION) for source in (missions, batch, path)]
    for other in frames[1:]:
        assert all(one.to_json() == its.to_json() for one, its in zip(frames[0], other, strict=True))
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        plain = sampler.obtain_trajectories(2)
    assert "observation" in to_pandas(plain, fields=("observations",)).timesteps
    with pytest.raises(UsageError, match=r"there is no 'observations.image': observations is one array"):
        to_pandas(plain, fields=("observations.image",))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fields": ["observations.imge"]}, "no 'observations.imge': its leaves are observations.image, obs.*pair.2"),
        (
            {"fields": ["observation.image"]},
            "no 'observation.image': paths start with observations, act.*",
        ),
        ({"without": ["env_infos.laps"]}, "no 'env_infos.laps': its leaves are env_infos.lap, env_infos.note"),
        ({"without": ["actions"]}, "nothing of actions would remain"),
        (
            {"fields": ["observations.image"], "without": ["observations"]},
            "nothing of observations would remain: keep at least one",
        ),
        ({"without": "actions"}, r"without must be a list of paths, such as \['observations.image'\], not 'actions'"),
        ({"fields": []}, "fields is empty"),
        ({"fields": [3]}, "fields must be a list of paths"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error_that_lists_the_leaves(arguments, words, missions):
    with pytest.raises(UsageError, match=words):
        to_pandas(missions, **arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fields": ["observations.imge"]}, "no 'observations.imge': its leaves are observations.image"),
        ({"fields": ["rewards.x"]}, "no 'rewards.x'"),
        ({"without": ["next_observations.mission"]}, "without names next_observations, but fields does not"),
        ({"fields": ["observations"], "without": ["observations"]}, "nothing of observations would remain"),
    ],
)
def test_a_data_set_refuses_a_path_that_leads_nowhere(arguments, words, missions):
    with pytest.raises(UsageError, match=words):
        missions.torch_dataset(4, **arguments)


def test_masks_go_with_their_infos():
    infos: dict[str, Any] = {"a": 1, "_a": 2, "b": {"c": 3, "_c": 4, "d": 5}, "_b": 6, "_own": 7}
    assert LeafSelection(without=("env_infos.a", "env_infos.b.c")).infos("env_infos", infos) == {
        "b": {"d": 5}, "_b": 6, "_own": 7,
    }  # fmt: skip
    assert LeafSelection(("env_infos.a",)).infos("env_infos", infos) == {"a": 1, "_a": 2}


def test_the_command_leaves_out_what_it_is_told(missions, tmp_path):
    import pyarrow.parquet

    out = tmp_path / "out"
    result = invoke("export", missions.path, "--to", "parquet", "--out", out, "--without", MISSION[0], "--json")
    assert (result.exit_code, json.loads(result.stdout)["trajectories"]) == (0, 6), result.stderr
    names = pyarrow.parquet.read_schema(out / "timesteps.parquet").names
    assert "observation.image" in names
    assert "observation.mission" not in names
    wrong = invoke("export", missions.path, "--to", "parquet", "--out", tmp_path / "x", "--without", "observations.x")
    assert wrong.exit_code == 2
    assert "its leaves are observations.image" in wrong.stderr


def test_minigrid_is_exported_and_trained_on(tmp_path):
    pytest.importorskip("minigrid")
    pytest.importorskip("minari")
    with LocalSampler("random", "minigrid:MiniGrid-Empty-5x5-v0", seed=1, max_episode_length=9) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "folder", n_trajectories=2, shard_size=9)
    assert to_tensordict(folder, without=MISSION)["observation", "image"].shape == (18, 7, 7, 3)
    export(folder, tmp_path / "minari", to="minari", without=MISSION)
    assert next(iter(folder.torch_dataset(fields=("observations.image",))))["observations"]["image"].shape == (
        9,
        7,
        7,
        3,
    )
