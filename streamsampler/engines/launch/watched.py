"""Let a process of `multiprocessing` end with its parent even during its first imports.

Imports nothing that only POSIX has.
"""

from __future__ import annotations

import importlib
import os
import threading
from multiprocessing.connection import Connection, wait
from typing import Any

from streamsampler.engines.launch.child import can_kill_at_end, kill_at_end_of


class WatchedMain:
    """The target of a process, which watches the pipe `alive` from the moment it is unpickled.

    It is unpickled before the process's arguments, with classes that take a second to import; the function's module is
    imported at the call. The process ends when the parent's end of `alive` closes.
    """

    def __init__(self, module: str, name: str, alive: Connection[Any, Any]) -> None:
        self._module, self._name, self._alive = module, name, alive

    def __reduce__(self) -> tuple[Any, ...]:
        return _watched, (self._module, self._name, self._alive)

    def __call__(self, *arguments: Any, **options: Any) -> None:
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
