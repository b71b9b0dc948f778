"""The commands that read files: `info`, `export` and `replay`; and `sample`, where it continues a folder of shards."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamsampler
from streamsampler import LocalSampler, __version__
from streamsampler.core import progress
from streamsampler.data.shards import Shard, check_shard
from streamsampler.errors import StorageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.found import Found
from streamsampler.filters import RunningReturnNorm
from streamsampler.formats.export import FORMATS
from tests.cli.harness import invoke, told
from tests.data.damage import damaged_bytes, damaged_json, forget_shards, header_of, with_header


def rows(*arguments: object) -> dict[str, str]:
    """Return the table that a command prints."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    pairs = [line.partition("  ") for line in result.stdout.splitlines()]
    return {name: value.strip() for name, _, value in pairs}


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the folder of shards, to be changed."""
    return Path(shutil.copytree(made / "folder", tmp_path / "folder"))


@pytest.mark.parametrize("name", ["file", "folder"])
def test_info_tells_what_is_there(made: Path, name: str) -> None:
    batch = streamsampler.load(made / "file")
    result = invoke("info", made / name, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    facts = json.loads(result.stdout)
    expected = {
        "kind": name, "trajectories": 40, "timesteps": batch.n_timesteps, "seed": 5, "terminated": 40, "truncated": 0,
        "observation_space": " ".join(str(batch.observation_space).split()), "action_space": "Discrete(2)",
        "first_seeds": list(batch.seeds[:3]), "indices": [0, 39], "agent_versions": [1, 1],
        "package_version": __version__, "format_version": 1,
        "bytes": sum(path.stat().st_size for path in made.glob(f"{name}*/*.npz" if name == "folder" else "file.npz")),
    }  # fmt: skip
    assert {name: facts[name] for name in expected} == expected
    assert facts["return"]["mean"] == pytest.approx(batch.returns.mean())
    assert facts["length"]["maximum"] == batch.lengths.max()
    assert facts["provenance"]["environment"] == "CartPole-v1"

    told = rows("info", made / name)
    assert (told["environment"], told["seed"]) == ("CartPole-v1", "5")
    assert (told["trajectories"], told["timesteps"]) == ("40, indices 0 to 39", f"{batch.n_timesteps:,}")
    assert " standard error, from " in told["return"]
    if name == "folder":
        assert (facts["complete"], facts["wanted"], facts["damaged"]) == (True, {"trajectories": 40}, [])
        n_shards = len(list((made / "folder").glob("*.npz")))
        assert told["shards"] == f"{n_shards}, complete: 40 trajectories were wanted"
        assert told["damaged"] == "no shard"


def test_info_tells_of_a_batch_of_the_library(tmp_path: Path) -> None:
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(1)
    batch.save(tmp_path / "one", provenance={"note": float("nan")})
    batch[:0].save(tmp_path / "none")
    told = rows("info", tmp_path / "one.npz")
    assert (told["trajectories"], told["options"]) == ("1, index 0", "note=nan")
    assert json.loads(invoke("info", tmp_path / "one", "--json").stdout)["provenance"] == {"note": None}
    told = rows("info", tmp_path / "none")
    assert (told["trajectories"], told["return"]) == ("0", "none")


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_info_tells_parts_of_episodes_from_episodes(tmp_path: Path, quick: list[str]) -> None:
    filtered: Any = {"reward_filter": RunningReturnNorm(0.9)}
    with LocalSampler("random", "CartPole-v1", seed=1, **filtered) as sampler:
        sampler.obtain_fragments(30, 4)
        batch = sampler.obtain_fragments(30, 4)
    path = batch.save(tmp_path / "fragments.npz")
    facts = json.loads(invoke("info", path, "--json", *quick).stdout)["episodes"]
    assert facts["trajectories"] == len(batch.episode_returns) > 0
    assert facts["return"]["mean"] == pytest.approx(batch.episode_returns.mean())
    assert facts["length"]["mean"] == pytest.approx(batch.episode_lengths.mean())
    told = rows("info", path, *quick)
    assert told["trajectories"].startswith(f"{len(batch)} parts of episodes, ")
    assert told["episode return"].startswith(f"{batch.episode_returns.mean():.1f} ± ")
    assert ("return of parts" in told, "return" in told) == (True, False)


def test_info_names_damaged_shards_and_tells_what_is_incomplete(made: Path, folder: Path) -> None:
    first = streamsampler.TrajectoryFolder(folder).shards[0]
    (folder / "shard-000001.npz").unlink()
    changed = bytearray((folder / "shard-000002.npz").read_bytes())
    changed[changed.index(b"observations.npy") + 500] ^= 4
    (folder / "shard-000002.npz").write_bytes(changed)
    result = invoke("info", folder, "--json")
    assert (result.exit_code, "Error: 2 shards of " in result.stderr) == (1, True)
    facts = json.loads(result.stdout)
    assert [entry["shard"] for entry in facts["damaged"]] == ["shard-000001.npz", "shard-000002.npz"]
    assert (facts["shards"], facts["trajectories"], facts["timesteps"]) == (3, len(first), first.n_timesteps)
    assert "shard-000001.npz is missing" in invoke("info", folder).stdout
    quick = json.loads(invoke("info", folder, "--json", "--quick").stdout)
    assert [entry["shard"] for entry in quick["damaged"]] == ["shard-000001.npz"]
    cut = Path(shutil.copytree(made / "folder", folder.with_name("cut")))
    forget_shards(cut, 1)
    told = rows("info", cut)
    assert told["shards"] == "1, incomplete: 40 trajectories were wanted"
    assert told["timesteps"] == f"{first.n_timesteps:,}"
    forget_shards(cut, 0)
    assert rows("info", cut)["trajectories"] == "0"


@given(seed=st.integers(0, 10**9))
def test_info_of_damaged_files_ends_in_a_line(made: Path, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    data = (made / "file.npz").read_bytes()
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    if chance.random() < 0.5:
        path.write_bytes(damaged_bytes(data, chance))
    else:
        path.write_bytes(with_header(data, damaged_json(header_of(data), chance)))
    result = invoke("info", path, *chance.choice(([], ["--json"], ["--quick"])))
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert "Traceback" not in result.stderr
    assert result.exit_code == 0 or result.stderr.startswith("Error: ")


@pytest.mark.parametrize(("kind", "read"), [("evaluation", Evaluation), ("comparison", Comparison)])
def test_info_describes_evaluations_and_comparisons(made: Path, kind: str, read: type[Found]) -> None:
    path = made / f"{kind}.json"
    result = invoke("info", made / kind)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{kind}: {path} ({path.stat().st_size:,} bytes)"
    assert str(read.load(path)) in result.stdout
    assert "settings: max_episode_length=None" in result.stdout
    assert lines[-2] == f"written by: streamsampler {__version__}, format 1"
    assert lines[-1].startswith("versions: python ")
    written = json.loads(path.read_text())
    del written["format"]
    facts = json.loads(invoke("info", path, "--json").stdout)
    assert facts == {"path": str(path), "kind": kind, "bytes": path.stat().st_size, **written}


def test_evaluations_are_exported(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("late.json", "early.json"):
        shutil.copy(made / "evaluation.json", name)
    typed = ("late.json", "early.json", "--to", "sb3", "--timesteps", "2k", "--timesteps", "1e3", "--out", "typed.npz")
    told = rows("export", *typed)
    assert told == {"format": "sb3", "evaluations": "2", "trajectories": "80", "written to": "typed.npz"}
    Path("o.toml").write_text(
        "sources = ['late.json', 'early.json']\nto = 'sb3'\ntimesteps = [2000, 1000]\nout = 'file.npz'\n"
    )
    rows("export", "--config", "o.toml")
    for name in ("typed.npz", "file.npz"):
        with np.load(name) as found:
            assert (found["timesteps"].tolist(), found["results"].shape) == ([1_000, 2_000], (2, 40))
    one = invoke("export", "early.json", "--to", "sb3", "--timesteps", 0, "--out", "one.npz", "--json")
    assert json.loads(one.stdout) == {"format": "sb3", "evaluations": 1, "trajectories": 40, "out": "one.npz"}


@pytest.mark.extras
@pytest.mark.parametrize("to", sorted(FORMATS))
def test_trajectories_are_exported(to: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip({"parquet": "pyarrow"}.get(to, to))
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress.Lines, "interval", 0.0)
    result = invoke("export", made / "folder", "--to", to, "--out", tmp_path / "out")
    told = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert (result.exit_code, told["format"], result.stderr[:11]) == (0, to, "exporting: "), result.stderr
    assert int(told["timesteps"].replace(",", "")) == streamsampler.load(made / "folder").n_timesteps
    again = invoke("export", made / "folder", "--to", to, "--out", tmp_path / "out")
    assert (again.exit_code, "is not empty" in again.stderr) == (2, True)


@pytest.mark.extras
def test_several_folders_are_exported_as_one(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shutil.copytree(made / "folder", tmp_path / "another")
    told = rows(
        "export", made / "folder", tmp_path / "another", "--to", "parquet", "--out", tmp_path / "out", "--quiet"
    )
    assert told["trajectories"] == "80"


@pytest.mark.extras
def test_an_export_imports_what_registers_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    name = f"registers_{tmp_path.name.replace('-', '_')}"
    Path(f"{name}.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Exported-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    given = ("--num-trajectories", 2, "--workers", 0, "--quiet", "--out", "a.npz", "--import", name)
    assert invoke("sample", "Exported-v0", *given).exit_code == 0
    monkeypatch.delitem(gymnasium.registry, "Exported-v0")
    monkeypatch.delitem(sys.modules, name)
    specs = []
    for out, imports in (("without", ()), ("with", ("--import", name))):
        result = invoke("export", "a.npz", "--to", "minari", "--out", out, *imports)
        assert result.exit_code == 0, result.stderr
        specs.append(minari.MinariDataset(tmp_path / out).spec.env_spec)
    assert specs[0] is None
    assert specs[1].id == "Exported-v0"
    monkeypatch.delitem(gymnasium.registry, "Exported-v0")


def test_a_file_of_the_command_says_all_that_a_replay_needs(tmp_path: Path) -> None:
    given = ("--num-trajectories", 6, "--seed", 1, "--vec", 4, "--workers", 0, "--quiet", "--out", tmp_path / "a")
    assert invoke("sample", "CartPole-v1", *given).exit_code == 0
    for index in range(6):
        result = invoke("replay", tmp_path / "a", "--index", index)
        assert (result.exit_code, "the same as recorded, bit for bit" in result.stdout) == (0, True), result.output


def test_replays_that_are_the_same_and_others(at_home: Path) -> None:
    env, agent = ("--env", "scripted:Scripted-v0"), ("--agent", "scripted:always_two")
    given = (*agent, "--env-kwarg", "chatty=true", "--num-trajectories", 9, "--seed", 5, "--workers", 0)
    assert invoke("sample", "scripted:Scripted-v0", *given, "--out", "a").exit_code == 0
    batch = streamsampler.load("a.npz")
    result = invoke("replay", "a", "--index", 8, *env, *agent, "--json", "--env-kwarg", "chatty=false")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert (facts["same"], facts["seed"], facts["return"]) == (True, batch.seeds[8], batch.returns[8])
    result = invoke("replay", "a", "--index", 8, *env, "--agent", "random")
    assert result.exit_code == 1
    assert "differs from the record, first in the action of timestep" in " ".join(result.stdout.split())
    assert "- another agent, or other parameters" in result.stdout
    assert invoke("replay", "a", "--index", 8, *env, "--actions").exit_code == 0


PAINTED = """
import gymnasium as gym
import numpy as np
from scripted import Scripted


class Painted(Scripted):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.full((32, 32, 3), 20 * self.timestep, np.uint8)


gym.register("Coloured-v0", Painted)
"""


@pytest.mark.extras
def test_videos(at_home: Path) -> None:
    (at_home / "painted.py").write_text(PAINTED)
    given = ("painted:Coloured-v0", "--seed", 5, "--num-trajectories", 9, "--workers", 0)
    result = invoke("evaluate", *given, "--video", "v", "--video-of", "best", "--video-of", 3)
    assert (result.exit_code, "videos in: v" in result.stdout) == (0, True), result.stderr
    assert len(list(Path("v").glob("trajectory-00000?_seed-*_return+*.mp4"))) == 2
    assert invoke("sample", *given, "--out", "a").exit_code == 0
    result = invoke("replay", "a", "--index", 3, "--env", "painted:Coloured-v0", "--video", "3.mp4")
    assert (result.exit_code, "video: 3.mp4" in result.stdout) == (0, True), result.stderr
    assert Path("3.mp4").stat().st_size > 1_000


FOLDER = ("sample", "CartPole-v1", "--num-trajectories", 40, "--shard-size", 300, "--workers", 0)


@pytest.mark.parametrize("sharding", [(), ("--shard-size", 300)])
def test_compressed_files_hold_the_same_in_less_room(made: Path, tmp_path: Path, sharding: tuple[object, ...]) -> None:
    common = ("sample", "CartPole-v1", "--num-trajectories", 30, "--seed", 3, "--workers", 0)
    assert invoke(*common, "--out", tmp_path / "it", *sharding, "--compress").exit_code == 0
    assert invoke(*common, "--out", tmp_path / "plain", *sharding).exit_code == 0
    sizes = [sum(each.stat().st_size for each in tmp_path.rglob(f"{name}*/*.npz" if sharding else f"{name}.npz"))
             for name in ("it", "plain")]  # fmt: skip
    assert 0 < sizes[0] < sizes[1]
    batches = [streamsampler.load(tmp_path / name) for name in ("it", "plain")]
    assert list(batches[0]) == list(batches[1])


def test_a_folder_holds_what_a_file_holds(made: Path, tmp_path: Path) -> None:
    folder = streamsampler.TrajectoryFolder(made / "folder")
    assert folder.to_batch() == streamsampler.load(made / "file")
    given = ("sample", "CartPole-v1", "--shard-size", 200, "--seed", 3, "--workers", 2, "--trajectories-per-worker", 15)
    result = invoke(*given, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.stderr
    summary, batch = json.loads(result.stdout), streamsampler.TrajectoryFolder(tmp_path / "out").to_batch()
    assert (summary["trajectories"], summary["timesteps"]) == (30, batch.n_timesteps)
    with LocalSampler("random", "CartPole-v1", seed=3) as sampler:
        assert batch == sampler.obtain_trajectories(30)
    assert summary["shards"] == len(list((tmp_path / "out").glob("*.npz")))


def test_what_is_complete_stays_as_it_is(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = invoke(*FOLDER, "--out", folder, "--resume", "--json")
    assert result.exit_code == 0
    assert f"{folder} was complete before" in result.stderr
    summary, batch = json.loads(result.stdout), streamsampler.TrajectoryFolder(folder).to_batch()
    assert (summary["trajectories"], summary["timesteps"]) == (len(batch), batch.n_timesteps)
    assert (summary["interrupted"], summary["timesteps_per_second"]) == (False, 0)
    assert "none: everything was complete before" in invoke(*FOLDER, "--out", folder, "--resume").stdout
    for change, words in (
        (("--seed", 4), "seed was 5, now 4"),
        (("--max-episode-length", 9), "--max-episode-length was None, now 9"),
        (("--env-kwarg", "sutton_barto_reward=1"), "--env-kwarg was {}, now {'sutton_barto_reward': 1}"),
    ):
        assert words in told(invoke(*FOLDER, "--out", folder, "--resume", *change))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "manifest.json").write_text("{}")
    result = invoke(*FOLDER, "--out", folder, "--resume")
    assert (result.exit_code, "manifest.json is no manifest of trajectories" in result.stderr) == (1, True)


def test_a_folder_says_itself_how_large_its_shards_are(made: Path, folder: Path) -> None:
    forget_shards(folder, 1)
    arguments = [each for each in FOLDER if each not in ("--shard-size", 300)]
    result = invoke(*arguments, "--out", folder, "--resume")
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in folder.iterdir()} == {path.name for path in (made / "folder").iterdir()}
    assert streamsampler.TrajectoryFolder(folder).to_batch() == streamsampler.load(made / "file")


def test_an_empty_folder_is_resumed_from_its_beginning(tmp_path: Path) -> None:
    """As it is left by a command that was killed before it wrote the manifest."""
    result = invoke(*FOLDER, "--out", tmp_path, "--resume")
    assert result.exit_code == 0, result.stderr
    assert streamsampler.TrajectoryFolder(tmp_path).complete


def test_what_fails_says_how_to_go_on(at_home: Path) -> None:
    given = ("sample", "scripted:Scripted-v0", "--num-trajectories", 40, "--shard-size", 20, "--workers", 0)
    said = told(invoke(*given, "--env-kwarg", "fail_at=14", "--out", "out"))
    assert "the robot stumbled" in said
    assert len(streamsampler.load("out")) < 14
    assert "Complete shards are in out. To resume: streamsampler sample scripted:" in said
    assert said.endswith("--out out --resume")


@pytest.mark.parametrize(
    ("dropped", "indices"),
    [(0, [2, 3, 5]), (0, [1, 2, 3]), (0, [2, 3]), (1, [2, 3, 4]), (1, [3, 3, 5]), (1, [1, 3, 5]), (2, [3, 5])],
)
def test_a_shard_with_other_gaps_is_damaged(dropped: int, indices: list[int]) -> None:
    check_shard(Path("x"), Shard(2, 3, 9), np.arange(2, 5), np.array([3, 3, 3]))
    check_shard(Path("x"), Shard(2, 3, 9, dropped=2), np.array([3, 4, 6]), np.array([3, 3, 3]))
    lengths = np.array([9 - 2 * (len(indices) - 1), *[2] * (len(indices) - 1)])
    with pytest.raises(StorageError, match="x should hold trajectories 2 to"):
        check_shard(Path("x"), Shard(2, 3, 9, dropped=dropped), np.array(indices), lengths)
