from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import SCRIPTED, Announcements, Terminal
from tests.patience import wait_for_exit_codes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the user's module `scripted`."""
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    return tmp_path


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
