"""Find the user's modules in the current directory, after all installed ones."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from pathlib import Path
from types import ModuleType

from streamsampler.engines.launch.start_methods import working_directory
from streamsampler.errors import UsageError

_log = logging.getLogger("streamsampler")


def append_current_directory() -> None:
    """Let modules in the current directory be found, after all others: an installed command does not look there.

    If it came first, a file in it that is called like another module, such as `re.py`, would run in that module's
    place.
    """
    directory = working_directory()
    if directory is not None and directory not in sys.path and "" not in sys.path:
        sys.path.append(directory)
    # A module written a moment ago may be younger than the listing that the importer remembers.
    importlib.invalidate_caches()


def import_named(name: str, what: str, error: type[UsageError] = UsageError) -> ModuleType:
    """Import a module that the user has named, from the current directory if it is nowhere else.

    Args:
        name: The module's name.
        what: What it was named for; errors begin with this.
        error: The type of the errors.

    Raises:
        UsageError: There is no such module; or importing it raised, which is the cause.
    """
    append_current_directory()
    try:
        module = importlib.import_module(name)
    except Exception as raised:
        missing = raised.name if isinstance(raised, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise error(f"{what}: there is no module {missing!r}{_hint(name)}") from None
        raise error(f"{what}: importing {name} raised {type(raised).__name__}: {raised}") from raised
    warn_of_hidden(name)
    return module


def _hint(name: str) -> str:
    if (dotted := dotted_name(name)) is not None:
        return f". A module goes by its name, not its file's: {dotted!r}"
    here = working_directory()
    if here is None:
        return ", and the working directory was removed"
    near = difflib.get_close_matches(name, [path.stem for path in Path(here).glob("*.py")], n=1)
    return f". Did you mean {near[0]!r}?" if near else f", neither installed nor in {here}"


def dotted_name(file_name: str) -> str | None:
    """Return the name of the module in a file; None if it is not the name of a file."""
    if not file_name.endswith(".py") and "/" not in file_name:
        return None
    return file_name.removesuffix(".py").strip("./").replace("/", ".")


def warn_of_hidden(name: str) -> None:
    """Warn if an imported module hides one of the same name in the current directory."""
    top = name.partition(".")[0]
    here = Path(working_directory() or os.devnull)
    mine = next((path for path in (here / f"{top}.py", here / top / "__init__.py") if path.is_file()), None)
    file = getattr(sys.modules.get(top), "__file__", None)
    if mine is not None and file is not None and not os.path.samefile(file, mine):
        _log.warning("%s was imported from %s, which hides %s: rename the latter to use it", top, file, mine)
