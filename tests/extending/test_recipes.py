"""The recipes of the page `extending`: who follows them to the letter has working extensions, and tests that pass."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.documentation.blocks import DOCS, blocks
from tests.documentation.page_runs import check

ROOT = DOCS.parent.parent
TESTS = ["tests/test_structure.py", "tests/samplers/test_signatures.py", "tests/cli/test_usage.py"]


def changed(text: str, diff: str) -> str:
    """Return a text with a change: lines of context, lines that go ("-") and lines that come ("+")."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(before) == 1, f"it is there {text.count(before)} times:\n{before}"
    return text.replace(before, after)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a copy of the repository in which all recipes were followed."""
    copy = tmp_path_factory.mktemp("recipes") / "repository"
    ignored = shutil.ignore_patterns("__pycache__", ".*", "results", "build")
    shutil.copytree(ROOT, copy, ignore=ignored)
    for block in blocks((copy / "streamsampler" / "docs" / "extending.md").read_text()):
        if (name := block.notes.get("edit")) is not None:
            path = copy / name
            path.write_text(changed(path.read_text(), block.code))
        elif (name := block.notes.get("file", "")).startswith("streamsampler/"):
            (copy / name).write_text(block.code)
    return copy


def test_who_follows_the_page_has_what_it_shows(followed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    check(followed / "streamsampler" / "docs" / "extending.md", tmp_path)


@pytest.mark.slow
def test_the_tests_of_the_repository_pass_where_the_recipes_were_followed(followed: pathlib.Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(followed)}
    command = [sys.executable, "-m", "pytest", "-q", "--one-process", *TESTS]
    done = subprocess.run(command, cwd=followed, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
