"""Let a process of `multiprocessing` end with its parent also while it still imports what it is to run.

Imports next to nothing, and nothing that only POSIX has.
"""

from __future__ import annotations

import importlib
import os
import threading
from multiprocessing.connection import Connection, wait
from typing import Any

from streamsampler.engines.launch.child import can_kill_at_end, kill_at_end_of


class WatchedMain:
    """A function for a process to run, which watches a pipe from the moment in which it is unpickled.

    As the target of a process it is unpickled before the process's arguments, whose classes take a second to import.

    Args:
        module: The function's module, which is imported when it is called.
        name: The function.
        alive: Nothing is ever written there: the process ends when the parent's end closes.
    """

    def __init__(self, module: str, name: str, alive: Connection[Any, Any]) -> None:
        self._module, self._name, self._alive = module, name, alive

    def __reduce__(self) -> tuple[Any, ...]:
        return _watched, (self._module, self._name, self._alive)

    def __call__(self, *arguments: Any, **options: Any) -> None:
        """Import the function, and call it."""
        getattr(importlib.import_module(self._module), self._name)(*arguments, **options)


def _watched(module: str, name: str, alive: Connection[Any, Any]) -> WatchedMain:
    if can_kill_at_end():
        kill_at_end_of(alive.fileno(), os.getpid())
    else:
        threading.Thread(target=_end_with, args=(alive,), name="streamsampler-parent", daemon=True).start()
    if wait([alive], 0):
        os._exit(1)
    return WatchedMain(module, name, alive)


def _end_with(alive: Connection[Any, Any]) -> None:
    wait([alive])
    os._exit(1)
