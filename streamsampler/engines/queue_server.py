"""Remove the socket's file of `multiprocessing`'s fork server after its parent was killed.

The parent removes it only at its own regular end. The server imports this module before it serves, and ends regularly
when its parent is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.forkserver
import os
from typing import Any


def remove_socket(server: int) -> None:
    """Remove the file and its folder in the fork server with process id `server`."""
    known: Any = multiprocessing.forkserver._forkserver
    address = known._forkserver_address
    # Neither in a process forked by an environment, nor in a process that has a fork server instead of being it.
    if os.getpid() != server or known._forkserver_pid is not None or not isinstance(address, str):
        return
    with contextlib.suppress(OSError):  # the parent ended regularly, and has removed them
        os.unlink(address)
        os.rmdir(os.path.dirname(address))


atexit.register(remove_socket, os.getpid())
