"""Read the Python stacks of a hung worker.

`faulthandler` writes them in the signal handler, even while native code holds the interpreter's lock. A sampler's
workers share the pipe for them: only a worker about to be killed writes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from time import monotonic
from typing import TYPE_CHECKING

from streamsampler.engines.launch.descendants import stat_of
from streamsampler.engines.launch.descriptors import readable_within
from streamsampler.engines.linked import shown_stacks

if TYPE_CHECKING:
    from streamsampler.engines.launch.worker_child import WorkerChild

_FIRST_SECONDS = 1.0
_SILENCE_SECONDS = 0.1  # handlers write without a pause, and without an end mark
_MOST_BYTES = 1 << 18


def answer_with_stacks(fd: int) -> None:
    """Write the stacks of all threads to `fd` at every SIGUSR1, in a worker."""
    os.set_blocking(fd, False)
    faulthandler.register(signal.SIGUSR1, file=fd, all_threads=True, chain=False)


def stacks_of(process: WorkerChild, fd: int) -> str:
    """Return the stacks of a worker, which may not survive it; or their absence's reason, in parentheses."""
    _read(fd)  # left by an earlier signal, perhaps of another program
    stat = stat_of(process.pid)
    state = stat.state if stat is not None else ""
    if state in ("T", "t"):
        return "(it is stopped, by SIGSTOP or by a debugger)"
    if process.ended(0):
        return "(it is gone)"
    process.kill(signal.SIGUSR1)
    written = bytearray()
    deadline = monotonic() + 2 * _FIRST_SECONDS
    wait = _FIRST_SECONDS
    while readable_within(fd, wait) and monotonic() < deadline and len(written) < _MOST_BYTES:
        written += _read(fd)
        wait = _SILENCE_SECONDS
    text = written.decode(errors="replace").strip()
    if text:
        return shown_stacks(text)
    return "(it waits in the kernel and takes no signal)" if state == "D" else "(it did not answer)"


def _read(fd: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, _MOST_BYTES)
    return b""
