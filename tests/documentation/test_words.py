"""The language of docstrings, comments and pages: sentences name things, and docstrings are shorter than the code."""

import re

import pytest

from tests.documentation.words import (
    MOST_OFTEN,
    MOST_WORDS_PER_LINE,
    PACKAGE,
    Texts,
    frequencies,
    texts_of,
    texts_of_package,
    texts_of_pages,
)

SHOWN = 10


def worst(texts, word):
    """Return the files with the most of a word, as lines."""
    counts = sorted(((each.words().count(word), each.name) for each in texts), reverse=True)
    return [f"{n} in {name}" for n, name in counts[:SHOWN]]


@pytest.mark.parametrize("where", [texts_of_package, texts_of_pages])
def test_sentences_name_things(where):
    texts = where()
    found = {word: often for word, often in frequencies(texts).items() if often > MOST_OFTEN[word]}
    assert found == {}, {word: worst(texts, word) for word in found}


def test_docstrings_are_shorter_than_two_words_for_a_line_of_code():
    texts = texts_of_package()
    n_words, n_lines = sum(each.n_words for each in texts), sum(each.n_lines for each in texts)
    print(f"\n{n_words:,} words of docstrings, {n_lines:,} lines of code: {n_words / n_lines:.2f} words for a line")
    by_excess = sorted(texts, key=lambda each: MOST_WORDS_PER_LINE * each.n_lines - each.n_words)
    longest = [f"{each.n_words} words, {each.n_lines} lines: {each.name}" for each in by_excess[:SHOWN]]
    assert n_words <= MOST_WORDS_PER_LINE * n_lines, longest


def test_words_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.documentation.words.PACKAGE", tmp_path / "package")
    file = tmp_path / "example.py"
    file.write_text(
        '"""What `that` is:\n\n>>> one\n"""\n\nLIMIT = 1\n"""Whose ``there``."""\n# that, not what\nX = 2  # one\n'
    )
    texts = texts_of(file)
    assert (texts.n_words, texts.n_lines) == (5, 2)
    assert sorted(texts.words()) == ["is", "not", "one", "that", "what", "what", "whose"]
    assert frequencies([texts, Texts("page", ("there, there, there",))])["there"] == 300


def test_no_file_has_sections():
    """A file with sections is several files."""
    top = PACKAGE.parent
    files = [path for folder in (PACKAGE, top / "tests", top / "benchmarks") for path in sorted(folder.rglob("*.py"))]
    sections = [
        f"{path.relative_to(top)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.match(r"# -{4,}", line)
    ]
    assert sections == []
