"""The recipes of `help(streamsampler)`: who follows one to the letter has something that works, and tests that pass."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import streamsampler
from streamsampler import LocalSampler

ROOT = pathlib.Path(streamsampler.__file__).parent.parent

FORMAT = '''"""Trajectories as a table in text, which spreadsheets read."""

from __future__ import annotations

from pathlib import Path

from streamsampler.core.progress import Display
from streamsampler.formats.columns import Source


def write(source: Source, out: Path, shown: Display) -> None:
    """Write `rewards.csv`, with a line for each timestep.

    Args:
        source: The trajectories.
        out: The folder.
        shown: Shows the progress.
    """
    out.mkdir(exist_ok=True)
    with (out / "rewards.csv").open("w") as file:
        for _, batch in source.shards(shown):
            file.writelines(f"{reward}\\n" for reward in batch.rewards.tolist())
'''
ENGINE = '''"""Workers in this process, although they could be elsewhere."""

from __future__ import annotations

from streamsampler.core.serialization import Payload, loads
from streamsampler.engines.local import LocalEngine


class HereEngine(LocalEngine):
    """Takes what engines of processes take."""

    def __init__(self, n_workers: int, make_worker: Payload, seed: int, *, close_timeout: float, threads: int) -> None:
        del close_timeout
        super().__init__(n_workers, loads(make_worker), seed, threads=threads)
'''
COMMAND = '''"""The command `count`."""

from __future__ import annotations

import click

from streamsampler.cli.options import command, existing


@command("Count trajectories.")
@click.argument("path", metavar="FILE|FOLDER")
def count(path: str) -> None:
    """Print how many trajectories FILE|FOLDER holds.

    Examples:
      streamsampler count cartpole.npz
    """
    from streamsampler.data.folder import load

    click.echo(len(load(existing(path, ".npz"))))
'''
# By recipe: the new file; the places in others, each with what is put in front of it.
RECIPES: dict[str, tuple[dict[str, str], list[tuple[str, str, str]]]] = {
    "format": (
        {"formats/text.py": FORMAT},
        [
            ("formats/export.py", "from streamsampler.formats import m", "from streamsampler.formats import text\n"),
            ("formats/export.py", '    "parquet": Format(', '    "text": Format(text.write),\n'),
            ("cli/files.py", 'sb3",\n    help="The format. ', "text|"),
            ("cli/files.py", "'minari' is a dataset", "'text' is one table. "),
        ],
    ),
    "engine": (
        {"engines/here.py": ENGINE},
        [
            ("engines/registry.py", '"queues"]', '"here", '),
            ("engines/registry.py", '    "queues": Cap', '    "here": Capabilities(("engines.here", "HereEngine")),\n'),
        ],
    ),
    "command": (
        {"cli/count.py": COMMAND},
        [
            ("cli/app.py", "from streamsampler.cli.eval", "from streamsampler.cli.count import count\n"),
            ("cli/app.py", "bench, info, replay", "count, "),
        ],
    ),
}  # fmt: skip
PROGRAM = """
import sys
from streamsampler import LocalSampler, MultiprocessingSampler, load
from streamsampler.cli.app import cli
from streamsampler.formats import export

batch = load("batch")
export(batch, "library", to="text")
cli(["export", "batch.npz", "--to", "text", "--out", "command"], standalone_mode=False)
assert [float(line) for line in open("library/rewards.csv")] == batch.rewards.tolist()
assert open("library/rewards.csv").read() == open("command/rewards.csv").read()
with MultiprocessingSampler("random", "CartPole-v1", n_workers=2, seed=1, engine="here") as sampler:
    assert sampler.obtain_trajectories(3) == batch
cli(["sample", "CartPole-v1", "--num-trajectories", "3", "--engine", "here", "-q"], standalone_mode=False)
cli(["count", "batch"])
"""
TESTS = ["tests/test_structure.py", "tests/samplers/test_signatures.py", "tests/cli/test_usage.py"]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a copy of the repository in which all recipes were followed."""
    copy = tmp_path_factory.mktemp("recipes") / "repository"
    ignored = shutil.ignore_patterns("__pycache__", ".*", "results", "build")
    shutil.copytree(ROOT, copy, ignore=ignored)
    for files, places in RECIPES.values():
        for name, text in files.items():
            (copy / "streamsampler" / name).write_text(text)
        for name, place, before in places:
            path = copy / "streamsampler" / name
            text = path.read_text()
            assert text.count(place) == 1, f"{name} has {place!r} {text.count(place)} times"
            path.write_text(text.replace(place, before + place))
    return copy


def run(copy: pathlib.Path, folder: pathlib.Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_written_by_the_recipes_works(followed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        sampler.obtain_trajectories(3).save(tmp_path / "batch")
    assert run(followed, tmp_path, "-c", PROGRAM).splitlines()[-1] == "3"


@pytest.mark.slow
def test_the_tests_of_the_repository_pass_where_the_recipes_were_followed(followed: pathlib.Path) -> None:
    assert " passed" in run(followed, followed, "-m", "pytest", "-q", "--one-process", *TESTS)


@pytest.mark.parametrize("what", RECIPES)
def test_a_recipe_names_each_file_that_is_to_be_changed(what: str) -> None:
    assert streamsampler.__doc__ is not None
    (recipe,) = re.findall(rf"(?ms)^- A new \*{what}\* is (.*?)(?=^- |\n\n)", streamsampler.__doc__)
    files, places = RECIPES[what]
    named = {name.replace(".", "/") for name in re.findall(r"`streamsampler\.([\w.]+)`", recipe)}
    assert {name.removesuffix(".py") for name, _, _ in places} <= named
    assert {str(pathlib.PurePath(name).parent) for name in files} <= named
