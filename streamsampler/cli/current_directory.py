"""Modules of the user's in the current directory: found where a name is asked for, and after all installed ones."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["append_current_directory", "import_named", "warn_of_hidden"]

_log = logging.getLogger("streamsampler")


def append_current_directory() -> None:
    """Let modules in the current directory be found, after all others: an installed command does not look there.

    If it came first, a file in it that is called like another module, such as `re.py`, would run in that module's
    place.
    """
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.append(directory)
    # A module written a moment ago may be younger than the listing that the importer remembers.
    importlib.invalidate_caches()


def import_named(name: str) -> ModuleType:
    """Import a module that the user has named, from the current directory if it is nowhere else.

    Raises:
        Exception: What importing it raises.
    """
    append_current_directory()
    module = importlib.import_module(name)
    warn_of_hidden(name)
    return module


def warn_of_hidden(name: str) -> None:
    """Warn if an imported module hides one of the same name in the current directory."""
    top = name.partition(".")[0]
    here = Path.cwd()
    mine = next((path for path in (here / f"{top}.py", here / top / "__init__.py") if path.is_file()), None)
    file = getattr(sys.modules.get(top), "__file__", None)
    if mine is not None and file is not None and not os.path.samefile(file, mine):
        _log.warning("%s was imported from %s, which hides %s: rename the latter to use it", top, file, mine)
