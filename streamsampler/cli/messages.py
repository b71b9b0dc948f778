"""Turn the library's errors into messages of the command, with options in place of Python arguments."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import click

from streamsampler.cli.streams import failure
from streamsampler.core.errors import ProtocolError, SamplerError, StorageError, UsageError, WorkerError
from streamsampler.workers.explain import traceback_of

_QUOTAS = {"max_restarts": "--max-restarts", "limits.max_lifetime_restarts": "ten times --max-restarts"}


@contextlib.contextmanager
def translated(ctx: click.Context) -> Iterator[None]:
    """Turn the library's errors into the command's.

    Raises:
        click.UsageError: For a `UsageError`, with options in place of arguments.
        click.ClickException: For the library's other errors.
    """
    try:
        yield
    except UsageError as error:
        details = traceback_of(error.__cause__)
        message = _in_options(str(error), ctx)
        raise click.UsageError("\n\n".join(part for part in (message, details) if part)) from None
    except ProtocolError:
        raise  # a bug in this package: its traceback is needed
    except ImportError as error:
        raise failure(str(error)) from None  # a library is missing; the message says how to install it
    except (SamplerError, OSError, MemoryError) as error:
        message = _message_of(error)
        if isinstance(error, MemoryError):
            message = f"not enough memory{message and f': {message}'}"
        elif not isinstance(error, SamplerError):
            about = None if error.filename is None else f"{error.filename} could not be read or written"
            message = f"{about or 'the operating system refused'}: {error.strerror or error}"
        # A damaged file is not the user's code: the place where reading failed says nothing.
        by_user = isinstance(error, SamplerError) and not isinstance(error, StorageError)
        details = traceback_of(error.__cause__) if by_user else ""
        notes = [_in_options(note, ctx) for note in getattr(error, "__notes__", ())]
        raise failure(message, details, notes) from None


_OTHER_NAMES = {
    "n_trajectories": "--num-trajectories",
    "n_timesteps": "--num-samples",
    "n_workers": "--workers",
    "worker_args": "--vec",
    "VecWorker": "--vec",
    "sample_to_folder": "--shard-size",
}
_PLAIN_WORDS = {"bounds", "guarantee", "margin"}
"""Arguments that are recognised by name alone; other single words are recognised by a value after them."""
_NAMED = re.compile(
    r"(?P<verb>\b[Pp]ass )?\b(?:limits\.)?(?P<name>[A-Za-z]\w*)"
    r"(?P<value>=(?:True|…|'[^']*'|\"[^\"]*\"|\([^)]*\)|\[[^]]*\])?)?"
)


def _in_options(text: str, ctx: click.Context) -> str:
    """Replace Python arguments in a message of the library by options of the command."""
    text = re.sub(r'worker_args=\{"in_flight": (\d+)\}', r"--in-flight \1", text).replace(
        ", without a worker_class,", ""
    )
    names = dict(_OTHER_NAMES)
    for param in ctx.command.params:
        names |= {str(param.name): each for each in param.opts if each.startswith("--")}

    def as_option(match: re.Match[str]) -> str:
        verb, name, value = match["verb"] or "", match["name"], match["value"]
        if name not in names or not (value or "_" in name or name in _PLAIN_WORDS or name in _OTHER_NAMES):
            return match[0]
        shown = "" if value in (None, "=True") else value.strip('=…"()[]')
        if value and value[1:2] == "(":  # names of several values
            shown = shown.replace(",", "").upper()
        verb = verb.replace("Pass", "Give").replace("pass", "give")
        return f"{verb}{names[name]}{shown and ' '}{shown}"

    return _NAMED.sub(as_option, text)


def _message_of(error: BaseException) -> str:
    """Return an error's message, with the option that sets a quota, and nothing about a sampler's next call."""
    if not isinstance(error, WorkerError):
        return str(error)
    quota = error.quota
    return error.worded(quota and quota._replace(argument=_QUOTAS[quota.argument]))
