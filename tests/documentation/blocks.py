"""The code blocks of the pages, and the outputs that stand under them.

A page is Markdown. Its blocks run in order, as cells of a notebook do: names and files of one block are there in the
next. A block in ```text under a block of Python or of commands is its output. Comments before a block say more:

- `<!-- extra: torch -->`: it needs this extra; without it, later blocks that need no extra run all the same;
- `<!-- file: ppo.py -->`: it is written into this file, and runs where a command runs the file;
- `<!-- edit: streamsampler/cli/app.py -->`: it is the change of a file of the repository, in ```diff;
- `<!-- not run: needs a cluster -->`: it does not run, for this reason;
- `<!-- output: labels -->`: of its output only the first word or words of each line are compared, since a network's
  numbers differ between kinds of processors.
"""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

__all__ = ["DOCS", "Block", "blocks", "pages", "pattern_of", "prose"]

DOCS = pathlib.Path(__file__).parent.parent.parent / "streamsampler" / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!-- (edit|extra|file|not run|output): (.*?) -->\n\Z")
# Times, speeds, memory, process ids and addresses differ from run to run.
VARYING = re.compile(
    r"(?<![\w.])\d[\d,.]*(?= ?(?:s|ms|µs|us|ns|min|h|MB|KiB|MiB|GiB)\b| ?%)"
    r"|\d[\d,.]*(?= timesteps per second)|(?<=pid )\d+|(?<=process )\d+|0x[0-9a-f]+"
)
PATH = re.compile(r"(?:/[\w.-]+){2,}")


class Block(NamedTuple):
    """A code block of a page.

    Attributes:
        line: The line of the page at which it begins.
        language: "python", "sh", "diff" or "toml".
        code: Its text.
        notes: What the comments before it say, by their first words.
        output: What the page says it prints; None where the page says nothing.
    """

    line: int
    language: str
    code: str
    notes: dict[str, str]
    output: str | None


def pages() -> list[pathlib.Path]:
    """Return the files of all pages."""
    return sorted(DOCS.glob("*.md"))


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page that are code."""
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        language, code = match.groups()
        before = text[end : match.start()]
        if language == "text" and found and re.fullmatch(r"\s*(?:[^\n]*:\n\s*)?", before):
            found[-1] = found[-1]._replace(output=code)
        elif language in ("python", "sh", "diff", "toml"):
            found.append(Block(text.count("\n", 0, match.start()) + 1, language, code, notes_of(before), None))
        end = match.end()
    return found


def notes_of(before: str) -> dict[str, str]:
    """Return what the comments at the end of a text say."""
    notes = {}
    while match := COMMENT.search(before):
        notes[match[1]] = match[2]
        before = before[: match.start()]
    return notes


def pattern_of(output: str, *, labels_only: bool = False) -> re.Pattern[str]:
    """Return a pattern of what is printed, from what a page shows.

    A line with "…" alone stands for any lines; "…" in a line for any text; spaces for any number of spaces.
    """
    lines = []
    for line in output.splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
        elif labels_only:
            label = re.split(r"  +|\d|…", line.strip())[0]
            lines.append(r"\s*" + re.escape(label) + r".*\n")
        else:
            parts = [_words(part) for part in line.rstrip().split("…")]
            lines.append(".*".join(parts) + r"[ ]*\n")
    return re.compile("".join(lines))


def _words(text: str) -> str:
    varied = VARYING.sub("\0", PATH.sub("\1", text))
    escaped = re.sub(r"(?:\\ )+", lambda _: r"[ ]+", re.escape(varied))
    return escaped.replace("\0", r"[\d,.a-fx]+").replace("\1", r"\S+")


def prose(text: str) -> str:
    """Return the words of a page without its code blocks, its names in backticks, its comments and its links."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    return re.sub(r"`[^`]+`|\]\([^)]*\)", " ", text)
