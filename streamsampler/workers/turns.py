"""Let threads of this process take turns while they use what it has only once: the global generators.

A trajectory draws from the generators of `random`, `numpy.random` and torch, seeded for it. Two `LocalSampler`s in two
threads would draw from one another's. So a thread has its turn for a ticket, and others wait meanwhile. A sampler
within an environment of another one, in the same thread, has the turn already.
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
"""How long the thread that has the turn may stay at one instruction while another one waits for it."""

_DEADLOCK = (
    "this thread waits for its turn to use the global generators, which thread {!r} has, and that one has been at one "
    "place for {:g} s: it may be waiting for this thread. Let this sampler run in that thread, or in processes of its "
    "own (MultiprocessingSampler)"
)


class _TurnOfThread:
    """The turn of this process.

    Attributes:
        lock: Held by the thread that has the turn.
        holder: The number of this thread.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holder = 0

    def await_it(self) -> None:
        """Wait for the turn.

        Raises:
            SamplerError: The thread that has it stays where it is.
        """
        last: tuple[FrameType | None, int] | None = None
        while not self.lock.acquire(timeout=_LOOK_SECONDS):
            # The frame itself, not its number: that of a call which has ended would be another one's by now.
            frame = sys._current_frames().get(self.holder)
            place = frame, -1 if frame is None else frame.f_lasti
            if place == last:
                names = {thread.ident: thread.name for thread in threading.enumerate()}
                raise SamplerError(_DEADLOCK.format(names.get(self.holder, self.holder), _LOOK_SECONDS))
            last = place
        self.holder = threading.get_ident()


_turn = _TurnOfThread()


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Let this thread have the turn in the block; wait for it before.

    Raises:
        SamplerError: The thread that has the turn waits, perhaps for this one.
    """
    ours = _turn  # a forked copy of this process has another one
    ours.await_it()
    try:
        yield
    finally:
        ours.lock.release()


def _forget_holder() -> None:
    """Forget in a forked process who had the turn: threads other than this one are not there."""
    global _turn
    _turn = _TurnOfThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_holder)
