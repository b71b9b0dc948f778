"""Files that are given for something that they are not: the error says what to give."""

import pytest
from click.testing import CliRunner

from streamsampler.cli.app import cli


def refused(*arguments):
    """Return what a command that refuses its arguments says, in one line."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("policy.pt", "weights are no agent: name a function that makes the agent with them"),
        ("policy.pth", "weights are no agent"),
        ("vecnormalize.pkl", "the statistics of a VecNormalize go to --vec-normalize, with --agent model.zip"),
        ("cartpole.npz", "it holds trajectories"),
        ("evaluation.json", "it holds an evaluation"),
        ("model", "Did you mean 'model.zip'?"),
    ],
)
def test_a_file_that_is_no_agent(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.zip").touch()
    assert said in refused("sample", "CartPole-v1", "--num-samples", "9", "--agent", name)


def test_statistics_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.zip").touch()
    arguments = ["--num-trajectories", "3", "--agent", "model.zip", "--vec-normalize", "typo.pkl"]
    assert "--vec-normalize: there is no file 'typo.pkl'" in refused("evaluate", "CartPole-v1", *arguments)


def test_a_folder_of_shards_as_a_file(tmp_path):
    (tmp_path / "manifest.json").touch()
    said = refused("sample", "CartPole-v1", "--num-samples", "9", "--out", str(tmp_path))
    assert "is a folder of shards: --shard-size and --resume go on with it" in said


@pytest.mark.parametrize("ending", [".pdf", ".svg", ".jpg"])
def test_a_picture_in_another_format(ending, tmp_path):
    (tmp_path / "x.npz").touch()
    assert "The picture goes into a .png file" in refused("plot", str(tmp_path / "x.npz"), "-o", f"it{ending}")


def test_a_module_that_is_not_there_is_not_to_be_imported():
    said = refused("sample", "nowhere:Maze-v0", "--num-samples", "9")
    assert "there is no module 'nowhere'" in said
    assert "--import" not in said
