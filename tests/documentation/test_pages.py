"""The pages in `streamsampler/docs`: their code runs and prints what they say, their links lead to places."""

import functools
import pathlib
import re

import pytest

from tests.documentation.blocks import DOCS, blocks, pages
from tests.documentation.page_runs import check

PAGES = [path.stem for path in pages()]
RUN_HERE = [name for name in PAGES if name != "extending"]  # which is followed in a copy of the repository


def extras_of(name: str) -> set[str]:
    """Return the extras that blocks of a page need."""
    notes = [block.notes.get("extra", "") for block in blocks((DOCS / f"{name}.md").read_text())]
    return set(" ".join(notes).split())


# Ray has a stage of its own.
WITH_EXTRAS = [
    pytest.param(name, marks=[pytest.mark.extras, *([pytest.mark.ray] if "ray" in extras_of(name) else [])])
    for name in PAGES
    if extras_of(name)
]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_HERE)
def test_code_without_extras_runs_and_prints_what_the_page_says(name, tmp_path):
    check(DOCS / f"{name}.md", tmp_path)


@pytest.mark.parametrize("name", WITH_EXTRAS)
def test_code_runs_and_prints_what_the_page_says(name, tmp_path):
    check(DOCS / f"{name}.md", tmp_path, "--extras", *extras_of(name))


def slug(heading: str) -> str:
    """Return the anchor that forges and MyST give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@functools.cache
def anchors(path: pathlib.Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_pages_and_headings(name):
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", (DOCS / f"{name}.md").read_text()):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = DOCS / file if file else DOCS / f"{name}.md"
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []
