from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import SCRIPTED, Announcements


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
