"""Exceptions as messages and exit codes: what went wrong, where in the user's code, and nothing of this package's."""

from __future__ import annotations

import contextlib
import importlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import click
from gymnasium.envs import registration

from streamsampler.cli.streams import tell
from streamsampler.errors import ProtocolError, RemoteTraceback, SamplerError, StorageError, UsageError

__all__ = ["Failure", "UsageFailure", "traceback_of", "translated", "without_own_frames"]

# Not the user's: this package, and what it calls to get at the user's code.
_OWN_FRAMES = (
    f"{Path(__file__).parents[1]}/",
    *(str(module.__file__) for module in (registration, importlib, contextlib)),
    "<frozen importlib",
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+')


# What is said of a sampler's arguments, and of its later calls, which a command does not have.
_OPTIONS = {
    "; the next call starts a new one in its place": "",
    "max_restarts is ": "--max-restarts is ",
    "max_lifetime_restarts is ": "ten times --max-restarts is ",
    'on_failure="drop"': "--on-failure drop",
    "n_workers=": "--workers ",
}


class Failure(click.ClickException):
    """Ends the command with exit code 1.

    Args:
        message: What went wrong.
        details: A traceback of the user's code, if there is one.
    """

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.details = details

    def show(self, file: object = None) -> None:
        """Print the message, the details, and the notes that were added on the way."""
        del file
        notes = "\n".join(getattr(self, "__notes__", ()))
        tell("\n\n".join(part for part in (f"Error: {self.message}", self.details, notes) if part))


class UsageFailure(click.UsageError):
    """Ends the command with exit code 2, like any usage error.

    Args:
        message: What cannot work.
        details: A traceback of the user's code, if there is one.
    """

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.details = details

    def show(self, file: object = None) -> None:
        """Print all of it on standard error."""
        del file
        super().show()
        if self.details:
            tell(f"\n{self.details}")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the library's errors into the command's.

    Raises:
        UsageFailure: For a `UsageError`.
        Failure: For what else the library foresees.
    """
    try:
        yield
    except UsageError as error:
        raise UsageFailure(str(error), details=traceback_of(error.__cause__)) from None
    except ProtocolError:
        raise  # a bug in this package: its traceback is wanted
    except SamplerError as error:
        # A damaged file is no code of the user's: where reading it failed tells nothing.
        details = "" if isinstance(error, StorageError) else traceback_of(error.__cause__)
        failure = Failure(_as_options(str(error)), details=details)
        for note in getattr(error, "__notes__", ()):
            failure.add_note(note)
        raise failure from None
    except MemoryError as error:
        raise Failure(f"there is not enough memory{f': {error}' if str(error) else ''}") from None
    except OSError as error:
        raise Failure(f"the operating system refused: {error}") from None


def _as_options(message: str) -> str:
    """Return what the library says, in the words of the command line."""
    for words, option in _OPTIONS.items():
        message = message.replace(words, option)
    return message


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
    return "\n".join(_without_own_frames(text.split("\n")))


def _without_own_frames(lines: list[str]) -> Iterator[str]:
    own = False
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            own = frame["file"].startswith(_OWN_FRAMES)
        elif not line.startswith("    "):  # a frame's lines of code are indented more than its heading
            own = False
        if not own:
            yield line
