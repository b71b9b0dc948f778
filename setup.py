"""Metadata lives in setup.cfg; this shim lets every installer find it, and packs the whole source into an sdist."""

from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

_FOLDERS = ("tests", "benchmarks", ".ci")
_FILES = (".gitignore", ".ruff.toml", "CHANGELOG.md")


class _WholeSource(sdist):
    """Packs what the tests and `.ci/run` need, too: setuptools by itself leaves most of the tests out."""

    def make_release_tree(self, base_dir, files):
        """Add to the files that setuptools found."""
        found = [path for folder in _FOLDERS for path in Path(folder).rglob("*") if path.is_file()]
        more = {path.as_posix() for path in found if "__pycache__" not in path.parts} | set(_FILES)
        super().make_release_tree(base_dir, sorted({*files, *more}))


setup(cmdclass={"sdist": _WholeSource})
