"""Wait for child processes of the sampler's process, and reap them."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable
from functools import partial

from streamsampler.engines.launch.child import END_SECONDS
from streamsampler.engines.launch.descriptors import own_fd

__all__ = ["end_server", "forget_or_reap", "open_pidfd", "reap_strays"]


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor of a process; None where the kernel has or allows no such thing, or the process is gone."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return own_fd(os.pidfd_open(pid))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM, errno.ESRCH):
            return None
        raise


_strays: list[Callable[[], bool]] = []  # processes that were given up: whether one still runs, reaped if it does not


def reap_strays() -> None:
    """Reap processes that were given up and have ended since, so that none stays a zombie."""
    for is_running in list(_strays):
        if not is_running():
            with contextlib.suppress(ValueError):  # another thread was quicker
                _strays.remove(is_running)


def _is_running(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False  # other code of this process has waited for all children


def forget_or_reap(pid: int, *, ended: bool) -> None:
    """Reap a child of this process; if it has not ended, later.

    Args:
        pid: Its process id.
        ended: Whether it has ended, or is about to.
    """
    if ended:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    elif _is_running(pid):
        _strays.append(partial(_is_running, pid))


def end_server(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the end of a server; kill it if it takes too long. If it hangs in the kernel, it is reaped later.

    Args:
        process: The server.
        seconds: How long it may take.
    """
    for patience in (seconds, END_SECONDS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return
        process.kill()
    _strays.append(lambda: process.poll() is None)
