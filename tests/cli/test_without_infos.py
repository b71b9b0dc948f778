"""`--without-infos`: what is sampled is not lost to infos that no file can hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from click.testing import CliRunner, Result

import streamsampler
from streamsampler.cli.app import cli


@pytest.fixture(autouse=True)
def handles() -> Iterator[None]:
    gymnasium.register("Handles-v0", "tests.data.test_kept_infos:Handles")
    yield
    del gymnasium.registry["Handles-v0"]


def sample(*arguments: object) -> Result:
    fixed = ("sample", "Handles-v0", "--num-trajectories", 300, "--seed", 1, "--workers", 0)
    return CliRunner().invoke(cli, list(map(str, (*fixed, *arguments))), prog_name="streamsampler")


@pytest.mark.parametrize("sharding", [(), ("--shard-size", 200)])
def test_the_error_names_the_option_with_which_the_same_command_works(tmp_path: Path, sharding: tuple[object]) -> None:
    result = sample("--out", tmp_path / "x", *sharding)
    assert result.exit_code == 1
    assert "env_infos['handle'] holds a tests.data.test_kept_infos.Handle" in result.stderr
    assert ". --without-infos handle,poses leaves them out" in result.stderr
    assert "infos=" not in result.stderr
    assert sample("--out", tmp_path / "x", *sharding, "--without-infos", "handle").stderr.count("handle,poses") == 1
    result = sample("--out", tmp_path / "x", *sharding, "--without-infos", "handle,poses")
    assert result.exit_code == 0, result.stderr
    batch = streamsampler.load(tmp_path / "x")[:2]
    assert set(batch.env_infos) == {"deep", "mixed", "rare", "_rare", "x"}


def test_without_names_all_infos_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text('without-infos = ["handle", "poses"]\n')
    amount = ("--num-trajectories", 3)
    assert sample("--out", tmp_path / "x", *amount, "--without-infos").exit_code == 0
    assert streamsampler.load(tmp_path / "x").env_infos == streamsampler.load(tmp_path / "x").episode_infos == {}
    assert sample("--out", tmp_path / "y", *amount, "--config", tmp_path / "o.toml").exit_code == 0
    assert "handle" not in streamsampler.load(tmp_path / "y").env_infos


def test_what_cannot_be_left_out_is_said(tmp_path: Path) -> None:
    result = sample("--without-infos")
    assert (result.exit_code, "--without-infos needs --out: give it, too" in result.stderr) == (2, True)
    result = sample("--out", tmp_path / "x", "--without-infos", "a,,b")
    assert (result.exit_code, "'a,,b' should be names of infos" in result.stderr) == (2, True)
    result = sample("--out", tmp_path / "x", "--num-trajectories", 3, "--without-infos", "handle,poses,hands")
    assert (result.exit_code, "there was no info 'hands'" in result.stderr) == (0, True)
