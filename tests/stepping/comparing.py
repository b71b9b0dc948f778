"""Run another library's own tests twice, as they are and with classes of this library in place of theirs, and compare.

For scripts beside this file, which import it by its place: a checkout has a package `tests` of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

_OURS, _FOUND = "WITH_STREAMSAMPLER", "FOUND"
"""Variables of the environment: whether this library's is put in the place of theirs, and where to say results."""


def is_ours() -> bool:
    """Return whether this process runs the tests with this library's classes."""
    return _OURS in os.environ


class Counts:
    """Counts tests, by what became of them."""

    made_by: ClassVar[set[str]] = set()
    test = ""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    @classmethod
    def count(cls) -> None:
        """Count the test that runs: it makes what is swapped."""
        cls.made_by.add(cls.test)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Note the test."""
        Counts.test = item.nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note its outcome."""
        if (report.when == "call" or report.failed) and self.outcomes.get(report.nodeid) != "failed":
            self.outcomes[report.nodeid] = report.outcome


def compare(
    swap: Callable[[], None], files: Sequence[str], reasons: Mapping[str, str], stand_ins: Sequence[str] = ()
) -> int:
    """Compare what becomes of the tests of the checkout that the first argument names.

    Those count that pass as they are, and make what is swapped.

    Args:
        swap: Puts a class in the place of theirs that counts the test which makes it; this library's if `is_ours`.
        files: The tests, in the folder `tests`; the script's other arguments choose others.
        reasons: Why tests do not pass with this library's, by name.
        stand_ins: Modules that files import and few tests need; empty ones where they are not installed.

    Returns:
        1 if a test fails without a reason.
    """
    if _FOUND in os.environ:
        return _run(swap, sys.argv[1:])
    folder, *chosen = sys.argv[1:]
    theirs, ours = (_outcomes(folder, chosen or files, stand_ins, more) for more in ({}, {_OURS: "1"}))
    counted = [test for test, outcome in theirs.items() if outcome == "passed"]
    failed = Counter(test.split("::")[-1].split("[")[0] for test in counted if ours.get(test) != "passed")
    print(f"{len(counted) - failed.total()} of {len(counted)} tests pass")
    for name, n in sorted(failed.items()):
        print(f"{n:3} {name}: {reasons.get(name, 'NO REASON')}")
    return int(not failed.keys() <= reasons.keys())


def _run(swap: Callable[[], None], files: list[str]) -> int:
    """Run the tests in this process, and write what became of those that count."""
    swap()
    counts = Counts()
    pytest.main(["-q", "-p", "no:cacheprovider", *(f"tests/{file}" for file in files)], [counts])
    found = {test: outcome for test, outcome in counts.outcomes.items() if test in Counts.made_by}
    Path(os.environ[_FOUND]).write_text(json.dumps(found))
    return 0


def _outcomes(folder: str, files: Sequence[str], stand_ins: Sequence[str], more: dict[str, str]) -> dict[str, str]:
    """Return what became of the tests, which run in another process, beside the library that is installed."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(Path(folder, "tests"), Path(place, "tests"))
        shutil.copy(Path(folder, "pyproject.toml"), place)
        for module in stand_ins:
            if importlib.util.find_spec(module) is None:
                Path(place, f"{module}.py").touch()
        variables = {**os.environ, _FOUND: f"{place}/found", "PYTHONPATH": str(Path(__file__).parents[2]), **more}
        command = [sys.executable, str(Path(sys.argv[0]).resolve()), *files]
        subprocess.run(command, cwd=place, env=variables, stdout=subprocess.DEVNULL, check=True)
        found: dict[str, str] = json.loads(Path(f"{place}/found").read_text())
        return found
