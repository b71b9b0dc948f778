"""Handle standard streams and signals: only the result on standard output, no traceback after Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from types import FrameType
from typing import Any

import click

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived."""


class Interrupts:
    """Raises `Interrupted` at SIGINT and SIGTERM, while entered, or for good after `install`.

    The first signal raises, unless `shield` was called before. The remaining work is then short and must complete:
    saving finished trajectories, ending the workers. Further signals are only recorded, until a signal more than
    `GRACE` seconds after the first raises again, for a user who will not wait. The grace period exists because wrappers
    pass on the Ctrl-C that the terminal sends to all processes anyway, and because users press it twice.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        received: The first signal; None before it.
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
        """The exit code that shells expect after a signal; 0 without a signal."""
        return 0 if self.received is None else 128 + self.received

    def shield(self) -> None:
        """Only record signals from now on, the first included."""
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
    """Restore a forked worker's signals: ignore Ctrl-C, which the sampler handles, and die from others."""
    if number != signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


_given_up: set[str] = set()


@contextlib.contextmanager
def stdout_reserved() -> Iterator[None]:
    """Redirect output of environments, agents and libraries to standard error, in this process and in its workers.

    Some libraries print a greeting at import, which must not enter the result of a program.
    """
    try:
        stdout = sys.stdout.fileno()
        stderr = sys.stderr.fileno()
    except (AttributeError, OSError):
        yield  # replaced by objects that no other process writes to
        return
    sys.stdout.flush()
    kept = os.dup(stdout)
    os.dup2(stderr, stdout)
    try:
        yield
    finally:
        # A closed stream is reported when the result is printed.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os.dup2(kept, stdout)
        os.close(kept)


def failure(message: str, details: str = "", notes: Iterable[str] = ()) -> click.ClickException:
    """Return an exception that ends the command with exit code 1.

    Args:
        message: The failure.
        details: A traceback of the user's code, or empty.
        notes: Advice, below the details.
    """
    return click.ClickException("\n\n".join(part for part in (message, details, "\n".join(notes)) if part))


def print_error(text: str) -> None:
    """Write lines to standard error; if this fails, continue without it, and end with exit code 1."""
    try:
        click.echo(text, err=True)
    except OSError:
        _give_up("stderr")


def print_result(text: str, kept: object = None) -> None:
    """Print the result.

    Args:
        text: The result.
        kept: The file of the result; None for none.

    Raises:
        click.ClickException: Writing fails. Click handles a pipe without a reader.
    """
    try:
        click.echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        _give_up("stdout")
        where = "" if kept is None else f". The trajectories are in {kept}"
        raise click.ClickException(_message(error) + where) from None


@contextlib.contextmanager
def stream_errors_shown() -> Iterator[None]:
    """Run the command; report a standard stream that cannot be written in one line, with exit code 1.

    Raises:
        SystemExit: With 1 in place of 0.
    """
    _given_up.clear()
    try:
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()  # here, because at the interpreter's end it would print a traceback
    except SystemExit as end:
        if not end.code and "stderr" in _given_up:
            raise SystemExit(1) from None
        raise
    except OSError as error:
        if error.filename is not None:
            raise  # about a file, not a standard stream
        _give_up("stdout")
        if error.errno != errno.EPIPE:
            print_error(f"Error: {_message(error)}")  # on standard error, unless this is the broken stream
        raise SystemExit(1) from None


def _message(error: OSError) -> str:
    return f"standard output could not be written: {error.strerror or error}"


def _give_up(name: str) -> None:
    """Redirect a standard stream to nowhere: its buffer would fail again at the interpreter's end."""
    _given_up.add(name)
    stream: Any = getattr(sys, name)
    with contextlib.suppress(AttributeError, OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
