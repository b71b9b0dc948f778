"""Import other libraries where they are used, and say what to install where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["needed"]


def needed(module: str, what: str, extra: str) -> Any:
    """Return a module of another library.

    Args:
        module: The module.
        what: What needs it.
        extra: The extra of this package that installs it.

    Raises:
        ImportError: It is not there; names the extra.
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ImportError(f"{what} needs {library}: pip install 'streamsampler[{extra}]' ({error})") from error
