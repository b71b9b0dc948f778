"""Let threads of this process take turns in using the global generators.

A trajectory draws from generators seeded for it; two `LocalSampler`s in two threads would draw from each other's. A
thread holds the turn during a ticket. A sampler inside another sampler's environment, in the same thread, already holds
it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from streamsampler.core.errors import SamplerError

__all__ = ["turn"]

_LOOK_SECONDS = 60.0
"""How long the holder's thread may stay at the same instruction while another thread waits."""

_DEADLOCK = (
    "this thread waits for the global generators, which thread {!r} uses without any progress for {:g} s: it may be "
    "waiting for this thread. Use this sampler in that thread, or use MultiprocessingSampler"
)


class _TurnLock:
    """Holds this process's turn; `holder` is the id of the thread with the lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holder = 0

    def wait(self) -> None:
        """Wait for the turn; raise if the holder makes no progress."""
        last: tuple[FrameType | None, int] | None = None
        while not self.lock.acquire(timeout=_LOOK_SECONDS):
            # The frame itself, not its id: the id of an ended call's frame may belong to another frame by now.
            frame = sys._current_frames().get(self.holder)
            place = frame, -1 if frame is None else frame.f_lasti
            if place == last:
                names = {thread.ident: thread.name for thread in threading.enumerate()}
                raise SamplerError(_DEADLOCK.format(names.get(self.holder, self.holder), _LOOK_SECONDS))
            last = place
        self.holder = threading.get_ident()


_turn = _TurnLock()


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Hold the turn for this thread inside the block; wait for it first.

    Raises:
        SamplerError: The holder makes no progress, and may be waiting for this thread.
    """
    ours = _turn  # a fork inside the block replaces the global
    ours.wait()
    try:
        yield
    finally:
        ours.lock.release()


def _forget_holder() -> None:
    """Replace the turn in a forked process, since its holder's thread does not exist in it."""
    global _turn
    _turn = _TurnLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_holder)
