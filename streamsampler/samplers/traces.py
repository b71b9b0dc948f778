"""Write the schedulers' events and instructions to the file named by the variable `STREAMSAMPLER_TRACE`."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

from streamsampler.core.errors import UsageError
from streamsampler.core.version import __version__
from streamsampler.protocol.trace import HEADER, Entries, SchedulerTrace, pickled

_VARIABLE = "STREAMSAMPLER_TRACE"


def trace_of_environment() -> SchedulerTrace:
    """Return a trace, written to a file if the variable names one.

    Raises:
        UsageError: The file cannot be made.
    """
    name = os.environ.get(_VARIABLE)
    return WrittenTrace(_made_file(name)) if name else SchedulerTrace()


def _made_file(name: str) -> str:
    path, numbers = name, count(2)
    while os.path.exists(path):
        path = f"{name}.{next(numbers)}"
    try:
        with open(path, "xb") as file:
            file.write(HEADER + __version__.encode() + b"\n")
    except OSError as error:
        raise UsageError(f"{_VARIABLE}: {error}") from error
    return path


class WrittenTrace(SchedulerTrace):
    """A trace that is also in a file, from the first call on."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._has_first_part = False

    def begin_part(self, state: object) -> None:
        super().begin_part(state)
        self.calls = self.returned = entries = _WrittenEntries(self._path, self.calls)
        if not self._has_first_part:
            self._has_first_part = True
            entries.write(state)


class _WrittenEntries:
    """Writes each entry at once, so that a killed process loses none."""

    def __init__(self, path: str, kept: Entries) -> None:
        self._path, self._kept, self._owner = path, kept, os.getpid()

    def append(self, entry: Any, /) -> None:
        self._kept.append(entry)
        self.write(entry)

    def write(self, value: object) -> None:
        if os.getpid() == self._owner:  # a forked process may end the stream of a sampler that it cannot use
            with open(self._path, "ab", buffering=0) as file:
                file.write(pickled(value))
