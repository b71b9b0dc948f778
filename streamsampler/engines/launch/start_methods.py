"""Choose how worker processes start and find modules. Imports nothing that only POSIX has."""

from __future__ import annotations

import functools
import os
import sys
from typing import Literal

from streamsampler.core.errors import UsageError
from streamsampler.core.settings import working_directory

StartMethod = Literal["fork", "spawn", "forkserver"]
START_METHODS: tuple[StartMethod, ...] = ("fork", "spawn", "forkserver")


@functools.cache
def has_processes() -> bool:
    """Whether engine "processes" works here: Linux, with pidfds, anonymous memory and a fork server."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an older kernel, or not allowed
        return False
    return True


def default_start_method() -> StartMethod:
    """Return "forkserver", safe with threads and fast; "spawn" where it cannot run."""
    return "forkserver" if has_processes() else "spawn"


def check_start_method(method: str | None) -> StartMethod:
    """Return a valid start method, the default for None; raise a UsageError for an unknown name."""
    if method is None:
        return default_start_method()
    for known in START_METHODS:
        if method == known:
            return known
    raise UsageError(f"start_method must be one of {', '.join(START_METHODS)}, got {method!r}")


_NEEDED = ("streamsampler", "numpy", "gymnasium", "cloudpickle", "setproctitle")
"""Imports of a fork server and a new worker before it receives the sampler's `sys.path`."""


def import_path(module: str) -> list[str]:
    """Return this process's `sys.path` without the current directory, for a process to run a function of `module`.

    Interactive sessions and `python -m` put the current directory first, where a file such as `re.py` would run in each
    new process. It stays only if this process has loaded a needed package from it.
    """
    here = working_directory()
    if here is None:
        return [entry for entry in sys.path if isinstance(entry, str) and os.path.isabs(entry)]
    current = _real(here)
    path = [entry for entry in sys.path if isinstance(entry, str) and _real(entry) != current]
    loaded = any(_home(name) == current for name in (*_NEEDED, module.partition(".")[0]))
    return [current, *path] if loaded else path


def _real(entry: str) -> str:
    return os.path.realpath(entry or os.curdir)


def _home(name: str) -> str | None:
    """Return the directory from which a package was loaded; None if it was not, or is no file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str):
        return None
    folder, base = os.path.split(_real(file))
    return os.path.dirname(folder) if base.startswith("__init__.") else folder
