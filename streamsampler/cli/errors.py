"""Turn exceptions into messages and exit codes, with the user's frames of tracebacks and none of this package's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import click

from streamsampler.errors import ProtocolError, SamplerError, StorageError, UsageError, WorkerError
from streamsampler.workers.explain import traceback_of

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
