"""Files in the current directory run only when the user names them."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from streamsampler.engines.launch.start_methods import import_path
from tests.cli.harness import SCRIPTED
from tests.patience import PATIENCE

SAMPLE = ("sample", "--num-trajectories", "1", "--quiet")
HOSTILE = "import os; open(os.environ['MARKER'], 'a').write(__name__ + ' ')\nraise SystemExit('ran ' + __name__)\n"
# All that the command and its workers may import. Those that Python itself imports for `-m` run before any of this.
INSTALLED = ["numpy", "gymnasium", "cloudpickle", "click", "setproctitle", "typing_extensions", "farama_notifications"]
AFTER_RUNPY = ["re", "typing", "signal", "pathlib", "json", "logging", "socket", "struct", "inspect", *INSTALLED]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A current directory with a hostile file for each module that could be imported, and the user's own module."""
    (tmp_path / "here").mkdir()
    for name in sorted(sys.stdlib_module_names) + INSTALLED:
        (tmp_path / "here" / f"{name}.py").write_text(HOSTILE)
    (tmp_path / "here" / "scripted.py").write_text(f"import colorsys\n{SCRIPTED}")  # which nothing else imports
    # What an installer makes of an entry point, and where it stands: its own folder comes first in `sys.path`.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "streamsampler").write_text("from streamsampler.cli import main\nmain()\n")
    return tmp_path


def run(hostile: Path, *command: object) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "MARKER": str(hostile / "ran"), "PYTHONDONTWRITEBYTECODE": "1"}
    python = [sys.executable, *map(str, command)]
    return subprocess.run(
        python, cwd=hostile / "here", env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def assert_only_the_users(hostile: Path, result: subprocess.CompletedProcess[str]) -> None:
    assert not (hostile / "ran").exists(), (hostile / "ran").read_text()
    assert (result.returncode, result.stderr) == (0, "")
    assert "trajectories  1" in result.stdout


@pytest.mark.parametrize(
    "method", ["forkserver", *(pytest.param(m, marks=pytest.mark.slow) for m in ("spawn", "fork"))]
)
def test_the_command_runs_nothing_from_the_current_directory(hostile: Path, method: str) -> None:
    result = run(hostile, hostile / "bin" / "streamsampler", *SAMPLE, "CartPole-v1", "--start-method", method)
    assert_only_the_users(hostile, result)


@pytest.mark.slow
def test_what_is_named_is_found_there_and_nothing_else_runs(hostile: Path) -> None:
    """With `spawn` Python itself looks for Windows's `_winapi`, there as everywhere."""
    named = ("scripted:Scripted-v0", "--agent", "scripted:always_two", "--start-method", "forkserver")
    assert_only_the_users(hostile, run(hostile, hostile / "bin" / "streamsampler", *SAMPLE, *named))


@pytest.mark.slow
def test_python_m_forgets_the_current_directory(hostile: Path) -> None:
    for path in (hostile / "here").iterdir():
        if path.stem not in (*AFTER_RUNPY, "scripted"):
            path.unlink()
    for named in (["CartPole-v1"], ["Scripted-v0", "--import", "scripted"]):
        assert_only_the_users(hostile, run(hostile, "-m", "streamsampler", *SAMPLE, *named))


@pytest.mark.slow
def test_an_installed_module_that_hides_the_users_is_told(hostile: Path) -> None:
    result = run(hostile, hostile / "bin" / "streamsampler", *SAMPLE[:-1], "CartPole-v1", "--import", "json")
    assert "Warning: json was imported from " in result.stderr
    assert f"which hides {hostile / 'here' / 'json.py'}: rename the latter to use it" in result.stderr
    assert result.returncode == 0


def test_other_processes_look_there_only_for_what_was_loaded_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = str(Path(sys.modules["streamsampler"].__file__ or "").parents[1])
    monkeypatch.chdir(tmp_path)
    for current in ("", str(tmp_path), "."):
        monkeypatch.setattr(sys, "path", [current, "/elsewhere", installed])
        assert import_path("vendored.module") == ["/elsewhere", installed]
    vendored = types.ModuleType("vendored")
    vendored.__file__ = str(tmp_path / "vendored" / "__init__.py")
    monkeypatch.setitem(sys.modules, "vendored", vendored)
    assert import_path("vendored.module") == [str(tmp_path.resolve()), "/elsewhere", installed]
