"""A run of the tests in several processes shows what happens while it happens, and says why it ended."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
CONFTEST = """
import pathlib
from tests import interrupts, side_by_side
from tests.side_by_side import pytest_addoption, pytest_runtestloop

interrupts.restore_ctrl_c()
side_by_side.MANY = side_by_side.N_PROCESSES = 1
counts = []

def pytest_runtest_logfinish(nodeid):
    counts.append(pathlib.Path("shown").read_text().count("."))

def pytest_sessionfinish():
    pathlib.Path("counts").write_text(repr(counts))
"""
INTERRUPTED = """
import os, signal

def test_it():
    os.kill(os.getppid(), signal.SIGINT)
    raise KeyboardInterrupt
"""


def run(folder: pathlib.Path, *options: str, **files: str) -> tuple[int, str]:
    """Run files with tests of their own; return the exit code and what was shown."""
    for name, code in {"conftest": CONFTEST, **files}.items():
        (folder / f"{name}.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir=.", "-p", "no:cacheprovider", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (folder / "shown").open("w") as shown:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=shown, stderr=shown, check=False)
    return done.returncode, (folder / "shown").read_text()


@pytest.mark.parametrize("capture", ["fd", pytest.param("sys", marks=pytest.mark.slow)])
def test_each_result_is_shown_when_it_is_reported_and_the_traceback_of_a_process_that_dies(tmp_path, capture):
    files = {
        "test_a": "def test_first(): print('...')\ndef test_second(): print('...')\n",
        "test_b": "def test_it(): raise KeyboardInterrupt('by itself')\n",
    }
    code, shown = run(tmp_path, f"--capture={capture}", **files)
    assert (tmp_path / "counts").read_text() == "[1, 2]"
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "KeyboardInterrupt: by itself" in shown
    assert "a process that ran tests has died" in shown


@pytest.mark.slow
def test_ctrl_c_shows_no_traceback_of_a_process(tmp_path):
    code, shown = run(tmp_path, test_it=INTERRUPTED)
    assert code == pytest.ExitCode.INTERRUPTED, shown
    assert "raise KeyboardInterrupt" not in shown
