from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from streamsampler.engines.processes import pool
from tests.cli.harness import SCRIPTED, Announcements, Terminal, invoke
from tests.patience import wait_for_exit_codes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the user's module `scripted`."""
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    return tmp_path


@pytest.fixture
def at_home(home: Path) -> Iterator[Path]:
    """The same, where this process is."""
    with being_at(home):
        yield home


@contextlib.contextmanager
def being_at(home: Path) -> Iterator[None]:
    """Be in a directory; what is imported and registered there is forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.syspath_prepend(home)
        known, modules = set(gymnasium.registry), set(sys.modules)
        yield
    for env_id in gymnasium.registry.keys() - known:
        del gymnasium.registry[env_id]
    for name in sys.modules.keys() - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(home):
            del sys.modules[name]


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "launch", lambda *_: pytest.fail("a worker was started"))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one file of each kind, all of the same trajectories; tests only read it."""
    folder = tmp_path_factory.mktemp("made")
    common = ("CartPole-v1", "--num-trajectories", 40, "--seed", 5, "--workers", 0, "--quiet")
    for arguments in (
        ("sample", *common, "--out", folder / "file"),
        ("sample", *common, "--out", folder / "folder", "--shard-size", 300),
        ("evaluate", *common, "--out", folder / "evaluation"),
        ("compare", *common, "--agent", "random", "--agent", "random", "--out", folder / "comparison"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def announcements(home: Path) -> Iterator[Announcements]:
    announcements = Announcements(home)
    yield announcements
    announcements.close()


@pytest.fixture(autouse=True)
def patience_for_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages have exit codes, also where a watchdog waits for a core for seconds; in commands of this process."""
    wait_for_exit_codes(monkeypatch)


@pytest.fixture(autouse=True)
def no_command_goes_on() -> Iterator[None]:
    """A test that fails before its command has ended does not leave it to disturb all others."""
    yield
    for pid in list(Terminal.unfinished):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        Terminal.unfinished.remove(pid)
