"""Replay a recorded trace of scheduler events: a bug report becomes a test.

    python -m streamsampler.testing.trace FILE

A trace comes from `ProtocolError.save_trace`, or from a program run with `STREAMSAMPLER_TRACE=FILE`. It is a pickle:
load only traces from sources you trust.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from os import PathLike
from typing import Any

from streamsampler.core.errors import ProtocolError, StorageError
from streamsampler.core.version import __version__
from streamsampler.protocol.scheduler import Scheduler
from streamsampler.protocol.trace import HEADER, text_of, unpickled

_ANSWERED = {"begin", "handle", "stop", "end", "prefetch"}  # methods that return instructions


@dataclass
class TraceReplay:
    """The result of a replay.

    Attributes:
        calls: How often each method of the scheduler was called.
        n_events: The number of events it handled.
        n_instructions: The number of instructions it returned.
        n_compared: The number of results compared with the trace.
        difference: A description of the first difference; None if all are equal.
        error: The last error raised by the scheduler; None if it raised none.
    """

    calls: Counter[str] = field(default_factory=Counter)
    n_events: int = 0
    n_instructions: int = 0
    n_compared: int = 0
    difference: str | None = None
    error: Exception | None = None

    def __str__(self) -> str:
        counted = ", ".join(f"{n} {name}" for name, n in self.calls.items())
        text = f"{self.calls.total()} calls ({counted}), {self.n_events} events, {self.n_instructions} instructions"
        if self.error is not None:
            text += f"\n{''.join(traceback.format_exception(self.error)).rstrip()}"
        if self.difference is not None:
            return f"{text}\nDIFFERENT: {self.difference}"
        return f"{text}\nthe same as in the trace, in {self.n_compared} results"


def replay(path: str | PathLike[str]) -> TraceReplay:
    """Replay a trace through the scheduler, up to the first difference.

    Instructions are compared if the trace has them, as with `STREAMSAMPLER_TRACE`.

    Args:
        path: The trace, which is unpickled.

    Raises:
        StorageError: The file is no trace, or has another version.
        OSError: It cannot be read.
    """
    state, *entries = _read(path)
    replayer = _Replayer(Scheduler(**state) if isinstance(state, dict) else state)
    n_until_last_call = max((n for n, entry in enumerate(entries) if isinstance(entry, tuple)), default=0)
    for number, entry in enumerate(entries):
        replayer.replay(entry, is_last=number >= n_until_last_call)
        if replayer.result.difference is not None:
            break
    return replayer.result


def _read(path: str | PathLike[str]) -> list[Any]:
    with open(path, "rb") as file:
        header = file.readline(len(HEADER) + 100)
        if not header.startswith(HEADER):
            raise StorageError(f"{path} is no trace of a scheduler")
        version = header.removeprefix(HEADER).strip().decode(errors="replace")
        if version != __version__:
            raise StorageError(f"{path} was recorded by streamsampler {version}, but this is {__version__}")
        try:
            found = list(unpickled(file))
        except Exception as error:  # unpickling may raise anything
            raise StorageError(f"{path} cannot be read: {text_of(error)}") from error
    if not found:
        raise StorageError(f"{path} ends before the first call")
    return found


class _Replayer:
    """Processes the entries of a trace, in order; see `protocol.trace`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.result = TraceReplay()
        self._scheduler = scheduler
        self._call = ""
        self._answer: list[Any] | str | None = None  # the last call's result: instructions, or an error

    def replay(self, entry: Any, *, is_last: bool) -> None:
        answer, self._answer = self._answer, None
        if isinstance(entry, str):
            # If the trace already has the last call's result, the error came from elsewhere.
            self._compare(entry, entry if answer is None else answer if isinstance(answer, str) else "no error")
        elif isinstance(entry, list):
            found = answer if isinstance(answer, list) else self._scheduler.pop_instructions()
            # An interrupt may have come before the last instructions.
            self._compare(entry, found[: len(entry)] if is_last else found)
        elif isinstance(answer, str) and isinstance(self.result.error, ProtocolError):
            self._compare("no error", answer)
        else:
            self._run(*entry)

    def _run(self, name: str, *arguments: Any) -> None:
        result, options = self.result, {}
        if arguments and isinstance(arguments[-1], dict):
            *arguments, options = arguments  # type: ignore[assignment]
        result.calls[name] += 1
        result.n_events += len(arguments[0]) if name == "handle" else 0
        self._call = f"call {result.calls.total()}, {name}{tuple(arguments)}"
        try:
            answer = getattr(self._scheduler, name)(*arguments, **options)
        except Exception as error:
            result.error, self._answer = error, text_of(error)
            return
        if name in _ANSWERED:
            self._answer = answer
            result.n_instructions += len(answer)

    def _compare(self, before: list[Any] | str, now: list[Any] | str) -> None:
        self.result.n_compared += 1
        if before == now:
            return
        if isinstance(before, list) and isinstance(now, list):
            n_equal = next(n for n, (one, other) in enumerate(zip_longest(before, now)) if one != other)
            before, now = before[n_equal:], now[n_equal:]
        self.result.difference = f"{self._call}\n  trace: {before}\n  now:   {now}"


def main(arguments: list[str] | None = None) -> int:
    """Replay the trace that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m streamsampler.testing.trace",
        description="Replay a recorded trace of scheduler events. A trace is a pickle: load only traces from sources "
        "you trust.",
        epilog="Exit status: 0 if the scheduler returns the same as in the trace, 1 if not, 2 if FILE is no trace.",
    )
    parser.add_argument("file", help="from ProtocolError.save_trace, or STREAMSAMPLER_TRACE")
    path = parser.parse_args(arguments).file
    try:
        result = replay(path)
    except (OSError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(result)
    return 0 if result.difference is None else 1


if __name__ == "__main__":
    sys.exit(main())
