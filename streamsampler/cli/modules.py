"""Import modules that users name, also from the current directory."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from pathlib import Path
from types import ModuleType

from streamsampler.core.errors import UsageError
from streamsampler.core.settings import working_directory

_log = logging.getLogger("streamsampler")


def append_current_directory() -> None:
    """Append the current directory to ``sys.path``: an installed command does not search it.

    At the front, a file such as `re.py` in it would run in place of the module of the same name.
    """
    directory = working_directory()
    if directory is not None and directory not in sys.path and "" not in sys.path:
        sys.path.append(directory)
    # The importer's directory listing may be older than a module written a moment ago.
    importlib.invalidate_caches()


def import_named(name: str, what: str, error: type[UsageError] = UsageError) -> ModuleType:
    """Import a module named by the user, from the current directory if it is nowhere else.

    Args:
        name: The module's name.
        what: Purpose of the module, as the start of errors.
        error: The type of the errors.

    Raises:
        UsageError: No such module exists, or importing it raised its cause.
    """
    append_current_directory()
    try:
        module = importlib.import_module(name)
    except Exception as raised:
        missing = raised.name if isinstance(raised, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise error(f"{what}: no module {missing!r}{_hint(name)}") from None
        raise error(f"{what}: importing {name} raised {type(raised).__name__}: {raised}") from raised
    warn_of_hidden(name)
    return module


def _hint(name: str) -> str:
    if (dotted := dotted_name(name)) is not None:
        return f". Give the module's name, not its file's: {dotted!r}"
    here = working_directory()
    if here is None:
        return ", and the working directory was removed"
    near = difflib.get_close_matches(name, [path.stem for path in Path(here).glob("*.py")], n=1)
    return f". Did you mean {near[0]!r}?" if near else f", neither installed nor in {here}"


def dotted_name(file_name: str) -> str | None:
    """Return the name of the module in a file; None if the name is no file's."""
    if not file_name.endswith(".py") and "/" not in file_name:
        return None
    return file_name.removesuffix(".py").strip("./").replace("/", ".")


def warn_of_hidden(name: str) -> None:
    """Warn if an imported module hides a module of the same name in the current directory."""
    top = name.partition(".")[0]
    here = Path(working_directory() or os.devnull)
    mine = next((path for path in (here / f"{top}.py", here / top / "__init__.py") if path.is_file()), None)
    file = getattr(sys.modules.get(top), "__file__", None)
    if mine is not None and file is not None and not os.path.samefile(file, mine):
        _log.warning("%s was imported from %s, which hides %s: rename the latter to use it", top, file, mine)
