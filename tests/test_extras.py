"""How to install a library that is missing: by its own name, never by that of this package."""

import configparser
import pathlib
import re

import pytest

from streamsampler.core.extras import EXTRAS, install_hint, needed

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = sorted(
    path
    for folder in ("streamsampler", "benchmarks", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and path.suffix in ("", ".py", ".md", ".sh", ".toml", ".txt")
)


def test_no_text_installs_a_package_of_this_name():
    """On PyPI it belongs to others, and has no such extras."""
    files = [*FILES, ROOT / "README.md", ROOT / "CHANGELOG.md"]
    assert len(files) > 300
    wrong = [
        f"{path.relative_to(ROOT)}: {found}"
        for path in files
        for found in re.findall(r"streamsampler\[\w*|pip install (?:[\w-]+ )*['\"]?streamsampler\b", path.read_text())
    ]
    assert wrong == []


def test_what_the_package_says_to_install_are_libraries_that_it_uses():
    package = [path for path in FILES if path.is_relative_to(ROOT / "streamsampler")]
    named = {
        word
        for path in package
        for found in re.findall(r"pip install ([\w -]+)(?:[`'\")]|$)", path.read_text(), re.MULTILINE)
        for word in found.split()
    }
    known = {name for extra in EXTRAS.values() for name in extra.packages}
    assert {"torch", "ray", "av"} <= named <= known | {"sb3-contrib", "tensorboard", "wandb", "moviepy", "mpe2", "-e"}


def test_the_packages_are_those_of_the_extras():
    parser = configparser.RawConfigParser()
    parser.read(ROOT / "setup.cfg")
    declared = {
        extra: {re.split(r"[ >=\[]", line)[0] for line in lines.split("\n") if line and not line.startswith("%")}
        for extra, lines in parser["options.extras_require"].items()
    }
    assert {name: set(extra.packages) for name, extra in EXTRAS.items()} == {name: declared[name] for name in EXTRAS}
    # Without the extra "notebook" progress is shown in lines, and nothing names it.
    assert declared.keys() - EXTRAS.keys() == {"benchmarks", "dev", "notebook", "test"}


def test_the_hint_is_for_anywhere_and_for_a_clone():
    assert install_hint("sb3") == "pip install stable-baselines3 (in a clone of streamsampler: pip install '.[sb3]')"


def test_a_library_that_is_absent_and_one_that_is_broken(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("raise ImportError('libGL.so.1 is not there')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as absent:
        needed("absent_library", "drawing", "plot")
    assert str(absent.value) == f"drawing needs matplotlib: {install_hint('plot')}"
    with pytest.raises(ImportError, match=r"drawing needs .*; importing it raised ImportError: libGL\.so\.1 is not"):
        needed("broken_library", "drawing", "plot")
    assert needed("json", "drawing", "plot").dumps(1) == "1"
