"""Handle Ctrl-C and SIGTERM: keep what is complete, and print no traceback."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived."""


class Interrupts:
    """Raise `Interrupted` at SIGINT and SIGTERM, while entered, or for good after `install`.

    The first signal raises, unless `shield` was called before. After that the remaining work is short and must not be
    interrupted: saving what is complete, ending the workers. Further signals are only noted, until one arrives more
    than `GRACE` seconds after the first, which raises again, so that a user can give up waiting. The grace period is
    there because wrappers pass on the Ctrl-C that the terminal sends to all processes anyway, and because users press
    it twice.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        received: The first signal; None while there is none.
    """

    GRACE = 1.0

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.received: signal.Signals | None = None
        self._clock = clock
        self._shielded = False
        self._first = 0.0
        self._before: dict[signal.Signals, Any] = {}
        self._owner = os.getpid()

    @property
    def exit_code(self) -> int:
        """The exit code that shells expect after a signal; 0 without one."""
        return 0 if self.received is None else 128 + self.received

    def shield(self) -> None:
        """Only note the first signal, too, from now on."""
        self._shielded = True

    def install(self) -> None:
        """Handle the signals from now on."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # Ignored signals stay ignored: the command runs in the background, or with nohup.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)

    def __enter__(self) -> Interrupts:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            _as_if_never_handled(number)
            return
        first = self.received is None
        if first:
            self.received = signal.Signals(number)
            self._first = self._clock()
        late = not first and self._clock() - self._first > self.GRACE
        if late or (first and not self._shielded):
            self._shielded = True
            raise Interrupted


def _as_if_never_handled(number: int) -> None:
    """Handle a signal in a forked worker: ignore Ctrl-C, which the sampler handles, and die of others."""
    if number != signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
