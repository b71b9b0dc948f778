"""Let a signal end a wait, whenever it comes.

Python records a signal at once, but runs its handler only between its own instructions. A signal just before the main
thread begins to wait would be handled after the wait, maybe never. So signals also write to a pipe, and waits include
it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
from types import TracebackType

__all__ = ["SignalPipe"]

_NONE = -1


class SignalPipe:
    """A pipe to which signals write in the block; in threads without signals nothing does.

    Attributes:
        descriptor: The end to read from; see `read`.
    """

    def __init__(self) -> None:
        self.descriptor, self._writing = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writing, False)
        self._before = _NONE
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> SignalPipe:
        if self._is_main:
            self._before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_main:
            signal.set_wakeup_fd(self._before)
        os.close(self.descriptor)
        os.close(self._writing)

    def read(self) -> None:
        """Read all signals, and pass them on to the previous wakeup descriptor."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.descriptor, 1 << 12)
            if self._before != _NONE:
                with contextlib.suppress(OSError):
                    os.write(self._before, data)

    def wait_for(self, descriptor: int) -> None:
        """Wait until a descriptor is readable; an exception of a signal's handler ends the wait."""
        with selectors.DefaultSelector() as selector:  # `select.select` takes no descriptor above 1023
            for each in (descriptor, self.descriptor):
                selector.register(each, selectors.EVENT_READ)
            while descriptor not in [key.fd for key, _ in selector.select()]:
                self.read()
