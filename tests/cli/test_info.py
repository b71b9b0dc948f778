"""What `streamsampler info` says of files and folders, whole and damaged."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from gymnasium.spaces import Discrete
from hypothesis import given
from hypothesis import strategies as st

import streamsampler
from streamsampler import LocalSampler, RandomAgent, __version__
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation, Found
from streamsampler.filters import RunningReturnNorm
from tests.cli.harness import invoke
from tests.data.damage import damaged_bytes, damaged_json, forget_shards, header_of, with_header


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file and a folder of the same trajectories."""
    home = tmp_path_factory.mktemp("home")
    arguments = ("CartPole-v1", "--num-samples", 900, "--seed", 3, "--workers", 0, "--quiet")
    assert invoke("sample", *arguments, "--out", home / "file").exit_code == 0
    assert invoke("sample", *arguments, "--out", home / "folder", "--shard-size", 300).exit_code == 0
    return home


def rows(text: str) -> dict[str, str]:
    pairs = [line.partition("  ") for line in text.splitlines()]
    return {name: value.strip() for name, _, value in pairs}


@pytest.mark.parametrize("name", ["file", "folder"])
def test_what_is_told_is_what_is_there(home: Path, name: str) -> None:
    is_folder = name == "folder"
    batch = streamsampler.TrajectoryFolder(home / name).to_batch() if is_folder else streamsampler.load(home / name)
    result = invoke("info", home / name, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    facts = json.loads(result.stdout)
    assert facts["kind"] == name
    assert (facts["trajectories"], facts["timesteps"], facts["seed"]) == (len(batch), batch.n_timesteps, 3)
    assert facts["return"]["mean"] == pytest.approx(batch.returns.mean())
    assert facts["length"]["maximum"] == batch.lengths.max()
    assert (facts["terminated"], facts["truncated"]) == (batch.terminated.sum(), batch.truncated.sum())
    assert facts["observation_space"] == " ".join(str(batch.observation_space).split())
    assert facts["action_space"] == "Discrete(2)"
    assert facts["first_seeds"] == list(batch.seeds[:3])
    assert facts["indices"] == [0, len(batch) - 1]
    assert facts["agent_versions"] == [1, 1]
    assert facts["provenance"]["environment"] == "CartPole-v1"
    assert (facts["package_version"], facts["format_version"]) == (__version__, 1)
    assert facts["bytes"] == sum(path.stat().st_size for path in home.glob(f"{name}*/*.npz")) or name == "file"

    told = rows(invoke("info", home / name).stdout)
    assert told["environment"] == "CartPole-v1"
    assert told["trajectories"] == f"{len(batch)}, indices 0 to {len(batch) - 1}"
    assert told["timesteps"] == f"{batch.n_timesteps:,}"
    assert " standard error, from " in told["return"]
    assert told["seed"] == "3"
    if name == "folder":
        assert (facts["complete"], facts["wanted"], facts["damaged"]) == (True, {"timesteps": 900}, [])
        assert told["shards"] == "3, complete: 900 timesteps were wanted"
        assert told["damaged"] == "no shard"


def test_a_batch_of_the_library_is_told_too(tmp_path: Path) -> None:
    with LocalSampler(RandomAgent(Discrete(2)), "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(1)
    batch.save(tmp_path / "one", provenance={"note": float("nan")})
    batch[:0].save(tmp_path / "none")
    told = rows(invoke("info", tmp_path / "one.npz").stdout)
    assert (told["trajectories"], told["options"]) == ("1, index 0", "note=nan")
    assert json.loads(invoke("info", tmp_path / "one", "--json").stdout)["provenance"] == {"note": None}
    told = rows(invoke("info", tmp_path / "none").stdout)
    assert (told["trajectories"], told["return"]) == ("0", "none")


def copied(home: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in (home / "folder").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_parts_of_episodes_are_told_from_episodes(tmp_path: Path, quick: list[str]) -> None:
    filtered = {"reward_filter": RunningReturnNorm(0.9)}
    with LocalSampler("random", "CartPole-v1", seed=1, **filtered) as sampler:  # type: ignore[arg-type]
        sampler.obtain_fragments(30, 4)
        batch = sampler.obtain_fragments(30, 4)
    path = batch.save(tmp_path / "fragments.npz")
    facts = json.loads(invoke("info", path, "--json", *quick).stdout)["episodes"]
    assert facts["trajectories"] == len(batch.episode_returns) > 0
    assert facts["return"]["mean"] == pytest.approx(batch.episode_returns.mean())
    assert facts["length"]["mean"] == pytest.approx(batch.episode_lengths.mean())
    told = rows(invoke("info", path, *quick).stdout)
    assert told["trajectories"].startswith(f"{len(batch)} parts of episodes, ")
    assert told["episode return"].startswith(f"{batch.episode_returns.mean():.1f} ± ")
    assert "return of parts" in told
    assert "return" not in told


def test_damaged_shards_are_named(home: Path, tmp_path: Path) -> None:
    folder = copied(home, tmp_path / "folder")
    (folder / "shard-000001.npz").unlink()
    changed = bytearray((folder / "shard-000002.npz").read_bytes())
    changed[changed.index(b"observations.npy") + 500] ^= 4
    (folder / "shard-000002.npz").write_bytes(changed)
    result = invoke("info", folder, "--json")
    assert result.exit_code == 1
    assert "Error: 2 shards of " in result.stderr
    facts, first = json.loads(result.stdout), streamsampler.TrajectoryFolder(home / "folder").shards[0]
    assert [entry["shard"] for entry in facts["damaged"]] == ["shard-000001.npz", "shard-000002.npz"]
    assert (facts["shards"], facts["trajectories"], facts["timesteps"]) == (3, len(first), first.n_timesteps)
    assert "shard-000001.npz is missing" in invoke("info", folder).stdout
    quick = json.loads(invoke("info", folder, "--json", "--quick").stdout)
    assert [entry["shard"] for entry in quick["damaged"]] == ["shard-000001.npz"]


def test_what_is_incomplete_or_empty_is_told(home: Path, tmp_path: Path) -> None:
    folder = copied(home, tmp_path / "folder")
    forget_shards(folder, 1)
    told = rows(invoke("info", folder).stdout)
    assert told["shards"] == "1, incomplete: 900 timesteps were wanted"
    assert told["timesteps"] == f"{streamsampler.load(folder).n_timesteps:,}"
    forget_shards(folder, 0)
    result = invoke("info", folder)
    assert (result.exit_code, rows(result.stdout)["trajectories"]) == (0, "0")


def test_what_is_none_is_an_error(home: Path, tmp_path: Path) -> None:
    result = invoke("info", tmp_path / "nowhere")
    assert (result.exit_code, "there is no file or folder" in result.stderr) == (2, True)
    (tmp_path / "text.npz").write_text("words")
    for path, words in [(tmp_path / "text", "it is no .npz file"), (tmp_path, "no folder of trajectories")]:
        result = invoke("info", path)
        assert (result.exit_code, result.stdout) == (1, "")
        assert words in result.stderr


@given(seed=st.integers(0, 10**9))
def test_damaged_files_end_in_a_line(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = (home / "file.npz").read_bytes()
    path = home / "damaged.npz"
    if chance.random() < 0.5:
        path.write_bytes(damaged_bytes(data, chance))
    else:
        path.write_bytes(with_header(data, damaged_json(header_of(data), chance)))
    result = invoke("info", path, *chance.choice(([], ["--json"], ["--quick"])))
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert "Traceback" not in result.stderr
    assert result.exit_code == 0 or result.stderr.startswith("Error: ")


@pytest.fixture(scope="module")
def found(home: Path) -> Path:
    """A directory with an evaluation and a comparison."""
    arguments = ("CartPole-v1", "--num-trajectories", 12, "--seed", 3, "--workers", 0, "--quiet")
    assert invoke("evaluate", *arguments, "--out", home / "evaluation").exit_code == 0
    two = ("--agent", "random", "--agent", "random")
    assert invoke("compare", *arguments, *two, "--out", home / "comparison").exit_code == 0
    return home


@pytest.mark.parametrize(("kind", "read"), [("evaluation", Evaluation), ("comparison", Comparison)])
def test_evaluations_and_comparisons_are_described(found: Path, kind: str, read: type[Found]) -> None:
    path = found / f"{kind}.json"
    result = invoke("info", found / kind)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{kind}: {path} ({path.stat().st_size:,} bytes)"
    assert str(read.load(path)) in result.stdout
    assert "settings: max_episode_length=None" in result.stdout
    assert lines[-2:][0] == f"written by: streamsampler {__version__}, format 1"
    assert lines[-1].startswith("versions: python ")
    facts = json.loads(invoke("info", path, "--json").stdout)
    written = json.loads(path.read_text())
    del written["format"]
    assert facts == {"path": str(path), "kind": kind, "bytes": path.stat().st_size, **written}


def test_a_damaged_evaluation_is_an_error(found: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_bytes((found / "evaluation.json").read_bytes()[:500])
    result = invoke("info", tmp_path / "cut.json")
    assert (result.exit_code, "cut.json is no evaluation of streamsampler" in result.stderr) == (1, True)
