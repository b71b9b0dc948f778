"""Which start methods there are, and whether this system has worker processes. Imports nothing that only POSIX has."""

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
    """Whether this system has what engine "processes" needs: Linux, with pidfds, anonymous memory and a fork server."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an older kernel, or one that does not allow it
        return False
    return True


def default_start_method() -> StartMethod:
    """Return "forkserver", safe with threads and quick, for engine "processes"; "spawn" where that cannot run."""
    return "forkserver" if has_processes() else "spawn"


def check_start_method(method: str | None) -> StartMethod:
    """Return a valid start method; None is the default one.

    Raises:
        UsageError: There is no such method.
    """
    if method is None:
        return default_start_method()
    for known in START_METHODS:
        if method == known:
            return known
    raise UsageError(f"start_method must be one of {', '.join(START_METHODS)}, got {method!r}")


# ----------------------------------------------------------------------
# Choose where new processes look for modules.


_NEEDED = ("streamsampler", "numpy", "gymnasium", "cloudpickle", "setproctitle")
"""What a fork server and a new worker import before a worker is given its sampler's own `sys.path`."""


def import_path(module: str) -> list[str]:
    """Return this process's `sys.path` without the current directory, for a process that is to run a module's function.

    Interactive sessions and `python -m` put the current directory first. A file in it that is called like a module,
    such as `re.py`, would run in each process that is started there. The directory stays, and comes first, only where
    this process has loaded a package from it that the new process needs: that is to be the same package there.

    Args:
        module: The module's name.
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
    """Return the directory that a package was loaded from; None for one that is not loaded, or is no file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str):
        return None
    folder, base = os.path.split(_real(file))
    return os.path.dirname(folder) if base.startswith("__init__.") else folder
