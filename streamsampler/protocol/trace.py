"""Keep the last calls of a scheduler, from which all that it decided can be decided again. Pure.

A trace is a line of text and then pickles. The first has the arguments of the scheduler, or is a scheduler in the state
that it had. Each other one is an *entry*:

- a call of the scheduler, as a tuple: the name of the method, and its arguments;
- the instructions that the call returned, as a list, where they are kept;
- the text of a `ProtocolError` that ended a call of the sampler.

*An entry costs one append.* Events and plans are values, so the trace keeps them as they are, and pickles nothing until
somebody asks. Instructions follow from them, and are not kept in memory. Reports have the lengths of trajectories: they
count, too, so that the memory of a trace is bounded.

*The first calls are forgotten in parts.* A replay needs the state before the first call that is kept, and that state is
in no event. So when a part is full, the scheduler is pickled once, and its state begins the next part: .3 ms with two
workers and 20 ms with 1,000, which is why more workers have longer parts. The last full part is kept, too.
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
from streamsampler.protocol.restarts import Policy

N_EVENTS = 10_000
"""How many of the last events are kept, at least."""

_BYTES_OF_STATE = 20  # of a pickled scheduler, for each event of a part

LENGTHS_SHIFT = 6
"""2 to the power of this many lengths of trajectories take about as much memory as an event, and count as one."""

HEADER = b"streamsampler trace 1, version "
"""What a trace begins with; the version of the package follows."""


class Entries(Protocol):
    """What takes the entries of a part."""

    def append(self, entry: Any, /) -> None:
        """Add an entry."""


class SchedulerTrace:
    """The last calls of a scheduler, which adds them itself: without a function that would do it."""

    def __init__(self) -> None:
        self.calls: Entries = []  # takes the calls of the part that grows
        self.returned: Entries = deque[Any](maxlen=0)  # takes the instructions that they return
        self.room = N_EVENTS  # how many more events the part takes
        self._parts: deque[tuple[bytes, list[Any]]] = deque(maxlen=2)

    def begin_part(self, state: object) -> None:
        """Begin a part with the scheduler, or with the arguments that it is made with."""
        pickled_state, entries = pickled(state), list[Any]()
        self.room = max(N_EVENTS, len(pickled_state) // _BYTES_OF_STATE)
        self.calls = entries
        self._parts.append((pickled_state, entries))

    def ended_with(self, error: ProtocolError) -> bytes:
        """Add the error that ended a call of the sampler, and return the trace as it stands in files."""
        self.calls.append(text_of(error))
        state = self._parts[0][0]
        entries = [entry for _, part in self._parts for entry in part]
        return b"".join([HEADER, __version__.encode(), b"\n", state, *map(pickled, entries)])


def text_of(error: BaseException) -> str:
    """Return the entry of an error."""
    return f"{type(error).__name__}: {error}"


def pickled(value: object) -> bytes:
    """Pickle an entry, or a scheduler; of exception types only the names, by which schedulers know them."""
    buffer = BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return buffer.getvalue()


def unpickled(file: BinaryIO) -> Iterator[Any]:
    """Yield what follows the first line of a trace; a process that was killed may have left a part of an entry."""
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
    """Return a policy with exception types of these names; users' own ones need not exist here."""
    types = [type("Named", (Exception,), {"__module__": module, "__qualname__": name}) for module, name in names]
    return Policy(**{**values, "restart_on": tuple(types)})


_REDUCERS = copyreg.dispatch_table | {Policy: _reduced}
