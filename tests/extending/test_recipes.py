"""The recipes of the page `extending`: who follows them to the letter has working extensions, and tests that pass."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.documentation.blocks import DOCS, blocks
from tests.documentation.page_runs import check

ROOT = DOCS.parent.parent
TESTS = [
    *("tests/test_structure.py", "tests/samplers/test_signatures.py", "tests/core", "tests/engines", "tests/formats"),
    *("tests/cli", "tests/contracts/test_c2_unbiased.py"),
]


def changed(text: str, diff: str, where: str) -> str:
    """Return a text with changes, of which those that it has already are left out.

    A change has lines of context, lines that go ("-") and lines that come ("+"); "…" in a line is any text, which
    stays. So other extensions than the page's may be in the same lines. "@@" is between two changes.
    """
    for change in diff.split("@@\n"):
        lines = change.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        if all(re.search(pattern(line[1:]), text) for line in lines if line[0] == "+"):
            continue
        found = list(re.finditer(pattern(before), text))
        if len(found) != 1:
            raise LookupError(f"{where} is there {len(found)} times; bring the page up to date:\n{before}")
        for kept in found[0].groups():
            after = after.replace("…", kept, 1)
        text = text[: found[0].start()] + after + text[found[0].end() :]
    return text


def pattern(lines: str) -> str:
    """Return a pattern of whole lines."""
    return "(?m)^" + re.escape(lines).replace("…", "(.*)")


def test_a_change_leaves_others_in_the_same_line_and_is_made_once() -> None:
    diff = "-names = (a, …)\n+names = (a, …, b)\n@@\n+    b: 1\n     c: …\n"
    text = "names = (a, mine)\n    mine: 0\n    c: 2\n"
    once = changed(text, diff, "it")
    assert once == "names = (a, mine, b)\n    mine: 0\n    b: 1\n    c: 2\n"
    assert changed(once, diff, "it") == once
    with pytest.raises(LookupError, match="it is there 0 times; bring the page up to date"):
        changed("other", diff, "it")


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a copy of the repository in which all recipes were followed."""
    copy = tmp_path_factory.mktemp("recipes") / "repository"
    ignored = shutil.ignore_patterns(".*", "results", "build")  # what is compiled comes along, and saves seconds
    shutil.copytree(ROOT, copy, ignore=ignored)
    for block in blocks((copy / "streamsampler" / "docs" / "extending.md").read_text()):
        if (name := block.notes.get("edit")) is not None:
            path = copy / name
            path.write_text(changed(path.read_text(), block.code, f"extending.md, line {block.line}: text of {name}"))
        elif (name := block.notes.get("file", "")).startswith("streamsampler/"):
            (copy / name).write_text(block.code)
    return copy


@pytest.mark.slow
def test_who_follows_the_page_has_what_it_shows(followed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    check(followed / "streamsampler" / "docs" / "extending.md", tmp_path)


@pytest.mark.slow
def test_the_tests_of_the_repository_pass_where_the_recipes_were_followed(followed: pathlib.Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(followed)}
    command = [sys.executable, "-m", "pytest", "-q", "--one-process", *TESTS]
    done = subprocess.run(command, cwd=followed, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
