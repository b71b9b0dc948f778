"""Kill and stop processes at random instants, while something runs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from streamsampler.errors import SamplerError

__all__ = ["disturbed"]


@contextlib.contextmanager
def disturbed(
    pids: Callable[[], Iterable[int | None]],
    dice: random.Random,
    pauses: Iterable[float],
    ways: Iterable[Any] = (),
    killed: list[int] | None = None,
) -> Iterator[list[int]]:
    """Disturb processes while the block runs; yield those that were, as they are.

    Args:
        pids: Return the processes, of which those are left alone that were killed before.
        dice: Draws which one.
        pauses: Seconds before each, as many as there are to be disturbed at most.
        ways: The signal for each; SIGKILL where there are none.
        killed: The processes that were killed before, to which it adds.
    """
    over, ways = threading.Event(), iter(ways)
    killed = [] if killed is None else killed

    def disturb() -> None:
        for pause in pauses:
            if over.wait(pause):
                return
            # It is closed, or the process has ended, or the processes are just being made.
            with contextlib.suppress(SamplerError, OSError, AttributeError):
                alive = [pid for pid in pids() if pid and pid not in killed]
                if alive and os.getsid(pid := dice.choice(alive)) == os.getsid(0):
                    os.kill(pid, next(ways, signal.SIGKILL))
                    killed.append(pid)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
