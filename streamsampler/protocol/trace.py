"""Record the last calls of a scheduler, for an exact replay of its decisions. Pure.

A trace is a line of text, then pickles: first a scheduler, or its arguments, then *entries*:

- a call of the scheduler, as a tuple of the method's name and arguments;
- its instructions, as a list, where they are recorded;
- the text of the `ProtocolError` at the end of a sampler's call.

Recording costs one append: events and plans are values, pickled only on request. A full part ends with a pickle of the
scheduler, as the start of the next part: 0.3 ms with two workers and 20 ms with 1,000, hence longer parts with more
workers. The last full part is kept, too.
"""

from __future__ import annotations

import copyreg
import pickle
from collections import deque
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO, Protocol

from streamsampler.core.errors import ProtocolError
from streamsampler.core.version import __version__
from streamsampler.protocol.losses import Policy

N_EVENTS = 10_000
"""Least number of recorded events."""

_BYTES_OF_STATE = 20  # of a pickled scheduler, for each event of a part

LENGTHS_SHIFT = 6
"""2 to this power lengths of trajectories take about the memory of an event, and count as an event."""

HEADER = b"streamsampler trace 1, version "
"""Start of a trace, followed by the package's version."""


class Entries(Protocol):
    """A list, or a stand-in that discards."""

    def append(self, entry: Any, /) -> None: ...


class SchedulerTrace:
    """The last calls of a scheduler, which appends them itself."""

    def __init__(self) -> None:
        self.calls: Entries = []  # calls in the current part
        self.returned: Entries = deque[Any](maxlen=0)  # instructions of these calls
        self.room = N_EVENTS  # how many more events fit in the part
        self._parts: deque[tuple[bytes, list[Any]]] = deque(maxlen=2)

    def begin_part(self, state: object) -> None:
        pickled_state, entries = pickled(state), list[Any]()
        self.room = max(N_EVENTS, len(pickled_state) // _BYTES_OF_STATE)
        self.calls = entries
        self._parts.append((pickled_state, entries))

    def ended_with(self, error: ProtocolError) -> bytes:
        """Add the error that ended a sampler's call; return the trace."""
        self.calls.append(text_of(error))
        state = self._parts[0][0]
        entries = [entry for _, part in self._parts for entry in part]
        return b"".join([HEADER, __version__.encode(), b"\n", state, *map(pickled, entries)])


def text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def pickled(value: object) -> bytes:
    """Pickle an entry or a scheduler, with exception types by name."""
    buffer = BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return buffer.getvalue()


def unpickled(file: BinaryIO) -> Iterator[Any]:
    """Yield the pickles of a trace; a killed process may have left the last incomplete."""
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return
        except pickle.UnpicklingError as error:
            if "truncated" not in str(error):
                raise
            return


def _reduced(policy: Policy) -> tuple[Any, ...]:
    names = [(kind.__module__, kind.__qualname__) for kind in policy.restart_on]
    return _policy_of, ({**vars(policy), "restart_on": ()}, names)


def _policy_of(values: dict[str, Any], names: list[tuple[str, str]]) -> Policy:
    """Return a policy with stand-ins for exception types of these names."""
    types = [type("Named", (Exception,), {"__module__": module, "__qualname__": name}) for module, name in names]
    return Policy(**{**values, "restart_on": tuple(types)})


_REDUCERS = copyreg.dispatch_table | {Policy: _reduced}
