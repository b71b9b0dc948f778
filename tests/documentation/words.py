"""Count the words of docstrings, comments and pages: `python -m tests.documentation.words [PATH…]`.

Relative clauses without a noun ("what was", "that there are", "the one whose") make sentences hard to read, and
docstrings longer than the code hide it. The limits lie a little above the figures of well-read libraries.
"""

from __future__ import annotations

import ast
import inspect
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterable
from typing import NamedTuple

from tests.documentation.blocks import DOCS, pages, prose

__all__ = [
    "MOST_OFTEN",
    "MOST_WORDS_PER_LINE",
    "Texts",
    "frequencies",
    "texts_of",
    "texts_of_package",
    "texts_of_pages",
]

PACKAGE = DOCS.parent
MOST_OFTEN = {"what": 3.0, "that": 9.0, "one": 2.0, "there": 1.0, "whose": 0.3}
"""In 1,000 words, names in backticks and code apart."""
MOST_WORDS_PER_LINE = 2.0
"""Words of docstrings for a line of code, in the whole package."""


class Texts(NamedTuple):
    """The texts of a file.

    Attributes:
        name: The file.
        docstrings: The docstrings of its modules, classes and functions.
        others: Its comments, and the texts under constants and attributes.
        n_lines: Its lines of code.
    """

    name: str
    docstrings: tuple[str, ...]
    others: tuple[str, ...] = ()
    n_lines: int = 0

    @property
    def n_words(self) -> int:
        return sum(len(text.split()) for text in self.docstrings)

    def words(self) -> list[str]:
        texts = [re.sub(r"``.*?``|^\s*(>>>|\.\.\.) .*$", "", text, flags=re.MULTILINE) for text in self.docstrings]
        return [word for text in [*texts, *self.others] for word in re.findall(r"[a-z']+", prose(text).lower())]


def texts_of(path: pathlib.Path) -> Texts:
    """Return the texts of a Python file."""
    source = path.read_text()
    statements, docstrings = list[ast.Expr](), list[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            statements.append(node)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstrings.append(ast.get_docstring(node) or "")
    of_docstrings = {line for each in statements for line in range(each.lineno, (each.end_lineno or 0) + 1)}
    others, of_code = list[str](), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            others.append(token.string.lstrip("# "))
        elif token.string.strip():
            of_code.update(range(token.start[0], token.end[0] + 1))
    texts = (ast.literal_eval(each.value) for each in statements)
    others += [text for text in texts if inspect.cleandoc(text) not in docstrings]
    name = str(path.relative_to(PACKAGE.parent))
    return Texts(name, tuple(docstrings), tuple(others), len(of_code - of_docstrings))


def texts_of_package(*under: pathlib.Path) -> list[Texts]:
    """Return the texts of the package's files, or of those under some paths."""
    files = [file for path in under or (PACKAGE,) for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return [texts_of(file.resolve()) for file in sorted(files)]


def texts_of_pages() -> list[Texts]:
    return [Texts(path.name, (path.read_text(),)) for path in [*pages(), PACKAGE.parent / "README.md"]]


def frequencies(texts: Iterable[Texts]) -> dict[str, float]:
    """Return how often each word of `MOST_OFTEN` stands in 1,000 words."""
    words = [word for each in texts for word in each.words()]
    return {word: 1000 * words.count(word) / max(1, len(words)) for word in MOST_OFTEN}


def main(*names: str) -> None:
    """Print a line for each file, and the totals."""
    texts = texts_of_package(*map(pathlib.Path, names))
    docstrings, others = ([it for each in texts for it in each[field]] for field in (1, 2))
    total = Texts("all", tuple(docstrings), tuple(others), sum(each.n_lines for each in texts))
    for each in [*texts, total]:
        often = "  ".join(f"{word} {number:.1f}" for word, number in frequencies([each]).items() if number)
        print(f"{each.name:60} {each.n_words:7,} words, {each.n_lines:6,} lines  {often}")


if __name__ == "__main__":
    main(*sys.argv[1:])
