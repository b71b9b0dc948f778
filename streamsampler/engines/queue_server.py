"""Remove the file of the socket of `multiprocessing`'s fork server, also where the server's parent was killed.

The server is reached by a socket in the temporary directory, which its parent removes at its own end: after SIGKILL it
would stay. The server imports this module before it serves, and ends in order when its parent is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.forkserver
import os
from typing import Any


def remove_socket(server: int) -> None:
    """Remove the file and its folder, if this process is the fork server of this process number."""
    known: Any = multiprocessing.forkserver._forkserver
    address = known._forkserver_address
    # Neither in a process that an environment forked, nor in one that has a fork server instead of being one.
    if os.getpid() != server or known._forkserver_pid is not None or not isinstance(address, str):
        return
    with contextlib.suppress(OSError):  # the parent ended in order, and has removed them
        os.unlink(address)
        os.rmdir(os.path.dirname(address))


atexit.register(remove_socket, os.getpid())
