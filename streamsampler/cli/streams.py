"""Keep standard output for the result, and report a standard stream that cannot be written in one line."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

_given_up: set[str] = set()


@contextlib.contextmanager
def stdout_reserved() -> Iterator[None]:
    """Send what environments, agents and libraries print to standard error, in this process and in its workers.

    Some print a greeting when they are imported, which must not get into the result that a program reads.
    """
    try:
        stdout = sys.stdout.fileno()
        stderr = sys.stderr.fileno()
    except (AttributeError, OSError, io.UnsupportedOperation):
        yield  # replaced by objects that no other process writes to
        return
    sys.stdout.flush()
    kept = os.dup(stdout)
    os.dup2(stderr, stdout)
    try:
        yield
    finally:
        # A stream that is not read any more is found when the result is printed.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os.dup2(kept, stdout)
        os.close(kept)


def failure(message: str, details: str = "", notes: Iterable[str] = ()) -> click.ClickException:
    """Return what ends the command with exit code 1.

    Args:
        message: What went wrong.
        details: A traceback of the user's code, if there is one.
        notes: What to do now, below the details.
    """
    return click.ClickException("\n\n".join(part for part in (message, details, "\n".join(notes)) if part))


def print_error(text: str) -> None:
    """Write lines to standard error; if that fails, continue without it, and end with exit code 1."""
    try:
        click.echo(text, err=True)
    except OSError:
        _give_up("stderr")


def print_result(text: str, kept: object = None) -> None:
    """Print the result.

    Args:
        text: The result.
        kept: The file that has what the result is about; None if there is none.

    Raises:
        click.ClickException: It cannot be written. Click handles a pipe without a reader.
    """
    try:
        click.echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        _give_up("stdout")
        where = "" if kept is None else f". What was sampled is in {kept}"
        raise click.ClickException(_message(error) + where) from None


@contextlib.contextmanager
def stream_errors_shown() -> Iterator[None]:
    """Run the command; report a standard stream that cannot be written in one line, with exit code 1.

    Raises:
        SystemExit: With 1 in the place of 0.
    """
    _given_up.clear()
    try:
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()  # here and not when the interpreter ends, which would print a traceback
    except SystemExit as end:
        if not end.code and "stderr" in _given_up:
            raise SystemExit(1) from None
        raise
    except OSError as error:
        if error.filename is not None:
            raise  # about a file, not a standard stream
        _give_up("stdout")
        if error.errno != errno.EPIPE:
            print_error(f"Error: {_message(error)}")  # on standard error, unless that is what cannot be written
        raise SystemExit(1) from None


def _message(error: OSError) -> str:
    return f"standard output could not be written: {error.strerror or error}"


def _give_up(name: str) -> None:
    """Redirect a standard stream to nowhere: its buffer would fail again when the interpreter ends."""
    _given_up.add(name)
    stream: Any = getattr(sys, name)
    with contextlib.suppress(AttributeError, OSError, io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
