"""Turn exceptions into messages and exit codes, with the user's frames of tracebacks and none of this package's."""

from __future__ import annotations

import contextlib
import importlib
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from gymnasium.envs import registration

from streamsampler.errors import ProtocolError, RemoteTraceback, SamplerError, StorageError, UsageError, WorkerError

__all__ = ["failure", "traceback_of", "translated", "without_own_frames"]

# Not the user's: this package, and what it calls to get at the user's code.
_OWN_FRAMES = (
    f"{Path(__file__).parents[1]}/",
    *(str(module.__file__) for module in (registration, importlib, contextlib)),
    "<frozen importlib",
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+')


_OPTIONS = {"max_restarts": "--max-restarts", "max_lifetime_restarts": "ten times --max-restarts"}


def failure(message: str, details: str = "", notes: Iterable[str] = ()) -> click.ClickException:
    """Return what ends the command with exit code 1.

    Args:
        message: What went wrong.
        details: A traceback of the user's code, if there is one.
        notes: What to do now, below the details.
    """
    return click.ClickException("\n\n".join(part for part in (message, details, "\n".join(notes)) if part))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the library's errors into the command's.

    Raises:
        click.UsageError: For a `UsageError`.
        click.ClickException: For what else the library foresees.
    """
    try:
        yield
    except UsageError as error:
        details = traceback_of(error.__cause__)
        raise click.UsageError("\n\n".join(part for part in (str(error), details) if part)) from None
    except ProtocolError:
        raise  # a bug in this package: its traceback is needed
    except (SamplerError, OSError, MemoryError) as error:
        message = _message_of(error)
        if isinstance(error, MemoryError):
            message = f"there is not enough memory{message and f': {message}'}"
        elif not isinstance(error, SamplerError):
            about = None if error.filename is None else f"{error.filename} could not be read or written"
            message = f"{about or 'the operating system refused'}: {error.strerror or error}"
        # A damaged file is no code of the user's: where reading it failed says nothing.
        by_user = isinstance(error, SamplerError) and not isinstance(error, StorageError)
        details = traceback_of(error.__cause__) if by_user else ""
        raise failure(message, details, getattr(error, "__notes__", ())) from None


def _message_of(error: BaseException) -> str:
    """Return an error's message, with the option that sets a quota, and nothing about a sampler's next call."""
    if not isinstance(error, WorkerError):
        return str(error)
    quota = error.quota
    return error.worded(quota and quota._replace(argument=_OPTIONS[quota.argument]))


def traceback_of(error: BaseException | None) -> str:
    """Return the traceback of user code, without the frames of this package that lead there.

    Args:
        error: An exception, or the traceback that came from a worker in its place, or None.

    Returns:
        The text; empty where all of it happened in this package.
    """
    if error is None:
        return ""
    text = error.text if isinstance(error, RemoteTraceback) else "".join(traceback.format_exception(error))
    text = without_own_frames(text.strip("\n"))
    return text if any(_FRAME.match(line) for line in text.split("\n")) else ""


def without_own_frames(text: str) -> str:
    """Return a text without what tracebacks and stacks in it have of this package."""
    kept, own = [], False
    for line in text.split("\n"):
        frame = _FRAME.match(line)
        if frame is not None:
            own = frame["file"].startswith(_OWN_FRAMES)
        elif not line.startswith("    "):  # a frame's lines of code are indented more than its heading
            own = False
        if not own:
            kept.append(line)
    return "\n".join(kept)
