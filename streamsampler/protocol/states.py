"""Define both ends of the conversation between sampler and worker, as state machines. Pure: no I/O, no clock.

Theory of operation
-------------------

The worker's end (`WorkerSide`):

```text
            Start                Stop | no ticket left
  NEW ──────────────▶ STREAMING ───────────────────────▶ IDLE
   │                    │    ▲                             │
   │                    │    └─────── Start | Continue ────┘
   └──────── Exit ──────┴───────────────── Exit ───────────┴────▶ EXITED
```

The sampler's end (`SamplerSide`). A dead worker is ABSENT; a killed worker is CONDEMNED until it is dead:

```text
           launched          Start             all answered
  ABSENT ───────────▶ READY ───────▶ WORKING ◀─────────────▶ WAITING
                      │ ▲               │        Continue       │
                 Exit │ │ all answered  │ Stop | Failure |      │ new version: READY
                      ▼ │               ▼ new version           ▼ Exit: RETIRING
               RETIRING └─────────── STOPPING
```

*Tickets are the flow control.* A ticket is answered exactly once: by a `Report` (without rollouts if abandoned) or by a
`Failure`. A worker never has more than `CAPACITY` unanswered tickets, so the queue of answers can be bounded, and a
worker never blocks on sending.

*A new version starts clean.* `Start` goes only to workers without unanswered tickets, `Stop` only to workers with
unanswered tickets of the current version. So at most `CAPACITY` messages with tickets, two `Stop` (that of the last
version may be unread) and one `Exit` are on their way to a worker: that queue can be bounded, too.

*Old versions end within a step.* Between environment steps a worker reads a shared word, the oldest version not
abandoned, and abandons older rollouts. `Stop` is the same as a message, for engines without shared memory, and discards
the worker's tickets.

*After a `Failure` a worker abandons every ticket until the next `Start`:* its agent or environment may be half updated,
and the `Start` brings new ones. That `Start` may have the same version, if the call may not need the failed trajectory.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any, TypeVar

from streamsampler.core.errors import ProtocolError
from streamsampler.protocol.messages import Answer, Continue, Exit, Failure, Message, Report, Start, Stop, Ticket

CAPACITY = 2
"""Most unanswered tickets of a worker: the current, and the next."""


class WorkerState(Enum):
    """States of the worker's end."""

    __hash__ = object.__hash__  # faster in a dict: the hash of enums is a Python function

    NEW = "new"
    STREAMING = "streaming"
    IDLE = "idle"
    EXITED = "exited"


class SamplerState(Enum):
    """States of the sampler's end."""

    __hash__ = object.__hash__

    ABSENT = "absent"  # not started, or dead
    READY = "ready"  # no unanswered ticket; the next travels in a Start
    WORKING = "working"  # unanswered tickets of the current version; the next travels in a Continue
    WAITING = "waiting"  # the same without an unanswered ticket
    STOPPING = "stopping"  # unanswered tickets of an older version, or from before a Stop or a failure
    RETIRING = "retiring"  # was sent Exit
    CONDEMNED = "condemned"  # is being killed


class Happened(Enum):
    """Events other than messages."""

    __hash__ = object.__hash__

    NO_TICKET_LEFT = "the worker is about to answer its last ticket"
    LAUNCHED = "the worker was started"
    ALL_ANSWERED = "the answer that came was the last one"
    NEW_VERSION = "the next agent version begins"
    KILLED = "the engine was asked to kill the worker"
    DIED = "the worker is dead"


_W, _S = WorkerState, SamplerState
State = TypeVar("State", WorkerState, SamplerState)

# All legal transitions of both ends; any other raises.
_TRANSITIONS: dict[Any, dict[Any, Any]] = {
    _W.NEW: {Start: _W.STREAMING, Exit: _W.EXITED},
    _W.STREAMING: {Continue: _W.STREAMING, Stop: _W.IDLE, Happened.NO_TICKET_LEFT: _W.IDLE, Exit: _W.EXITED},
    # Stop reaches an IDLE worker when its last answer and the sampler's Stop cross.
    _W.IDLE: {Start: _W.STREAMING, Continue: _W.STREAMING, Stop: _W.IDLE, Exit: _W.EXITED},
    _W.EXITED: {},
    _S.ABSENT: {Happened.LAUNCHED: _S.READY, Happened.NEW_VERSION: _S.ABSENT},
    _S.READY: {Start: _S.WORKING, Exit: _S.RETIRING, Happened.NEW_VERSION: _S.READY, Happened.DIED: _S.ABSENT},
    _S.WORKING: {
        Continue: _S.WORKING,
        Report: _S.WORKING,
        Happened.ALL_ANSWERED: _S.WAITING,
        Failure: _S.STOPPING,
        Stop: _S.STOPPING,
        Happened.NEW_VERSION: _S.STOPPING,
        Happened.KILLED: _S.CONDEMNED,
        Happened.DIED: _S.ABSENT,
    },
    _S.WAITING: {Continue: _S.WORKING, Exit: _S.RETIRING, Happened.NEW_VERSION: _S.READY, Happened.DIED: _S.ABSENT},
    _S.STOPPING: {
        Report: _S.STOPPING,
        Failure: _S.STOPPING,
        Happened.ALL_ANSWERED: _S.READY,
        Happened.NEW_VERSION: _S.STOPPING,
        Happened.KILLED: _S.CONDEMNED,
        Happened.DIED: _S.ABSENT,
    },
    _S.RETIRING: {Happened.NEW_VERSION: _S.RETIRING, Happened.KILLED: _S.CONDEMNED, Happened.DIED: _S.ABSENT},
    _S.CONDEMNED: {
        Report: _S.CONDEMNED,
        Failure: _S.CONDEMNED,
        Happened.ALL_ANSWERED: _S.CONDEMNED,
        Happened.NEW_VERSION: _S.CONDEMNED,
        Happened.DIED: _S.ABSENT,
    },
}

_TAKES_TICKETS = {SamplerState.ABSENT, SamplerState.READY, SamplerState.WORKING, SamplerState.WAITING}


def next_state(state: State, event: type[Message | Answer] | Happened) -> State:
    """Return the state after `event`; raise a ProtocolError if it is illegal."""
    try:
        following: State = _TRANSITIONS[state][event]
    except KeyError:
        name = event.name if isinstance(event, Happened) else event.__name__
        raise ProtocolError(f"{name} is not allowed in state {state.name}") from None
    return following


class SamplerSide:
    """The sampler's end of the conversation with a worker."""

    def __init__(self, worker: int, version: int = 0, capacity: int = CAPACITY) -> None:
        self.worker = worker
        self.state = SamplerState.ABSENT
        self.version = version  # the current agent version
        self.unanswered: list[Ticket] = []  # oldest first; a list, since a deque takes ten times as much memory
        self.room = capacity  # how many more tickets fit; if ABSENT, after its start
        self.is_to_be_replaced = False  # gets no more tickets, and ends after all answers
        self._capacity = capacity

    def apply(self, event: type[Message | Answer] | Happened) -> None:
        """Apply an event outside of `assign`, `record_answer` and `stop`."""
        self.state = next_state(self.state, event)
        takes_tickets = self.state in _TAKES_TICKETS and not self.is_to_be_replaced
        self.room = self._capacity - len(self.unanswered) if takes_tickets else 0

    def begin_version(self, version: int) -> None:
        """Start an agent version; older answers are stale from now on."""
        if version <= self.version:
            raise ProtocolError(f"agent version {version} does not follow {self.version}")
        self.version = version
        self.apply(Happened.NEW_VERSION)

    def assign(self, indices: range, block: int = 1) -> Start | Continue:
        """Add a ticket; return its message, without the updates of a `Start`."""
        if self.room <= 0:
            raise ProtocolError(f"worker {self.worker} has no room for another ticket")
        tickets = (Ticket(self.version, indices, block),)
        message = Start(self.version, tickets) if self.state is SamplerState.READY else Continue(tickets)
        self.unanswered.extend(tickets)
        self.apply(type(message))
        return message

    def record_answer(self, answer: Answer) -> bool:
        """Remove the answered ticket; return whether it is of the current version, and not stale."""
        ticket = answer.ticket
        try:
            self.unanswered.remove(ticket)  # type: ignore[arg-type]
        except ValueError:
            text = f"worker {self.worker} answered {ticket}, which it was not sent, or answered before"
            raise ProtocolError(text) from None
        assert ticket is not None
        self.apply(type(answer))
        if not self.unanswered:
            self.apply(Happened.ALL_ANSWERED)
        return ticket.version == self.version

    def stop(self) -> Stop | None:
        """Return a `Stop`; None if the worker has no tickets or was stopped before."""
        if self.state is not SamplerState.WORKING:
            return None
        self.apply(Stop)
        return Stop()

    def mark_for_replacement(self) -> None:
        self.is_to_be_replaced = True
        self.room = 0

    def current_tickets(self) -> list[range]:
        """Return the unanswered tickets of the current version."""
        return [ticket.indices for ticket in self.unanswered if ticket.version == self.version]


class WorkerSide:
    """The worker's end of the conversation."""

    def __init__(self) -> None:
        self.state = WorkerState.NEW
        self.version = -1
        self._tickets: deque[Ticket] = deque()
        self._failed = False

    def receive(self, message: Message) -> tuple[Ticket, ...]:
        """Receive a message; return the tickets to answer with `Report(ticket, abandoned=True)`."""
        self.state = next_state(self.state, type(message))
        match message:
            case Start(version=version, tickets=tickets):
                if self._tickets:
                    raise ProtocolError("received Start while tickets were unanswered")
                self.version = version
                self._failed = False
                self._tickets.extend(tickets)
            case Continue(tickets=tickets):
                if self._failed:
                    self.before_answer()
                    return tickets
                self._tickets.extend(tickets)
            case Stop():
                return self._drop_all()
            case Exit():
                self._drop_all()
        return ()

    def next_ticket(self) -> Ticket | None:
        return self._tickets.popleft() if self._tickets else None

    def later_ticket(self, number: int) -> Ticket | None:
        """Return a ticket after the current, 1 for the next; None before it is received."""
        return self._tickets[number - 1] if number <= len(self._tickets) else None

    def before_answer(self) -> None:
        """Become idle if the ticket about to be answered is the last.

        Before, not after: the last answer allows the sampler to send a `Start`, which only an idle worker can receive.
        """
        if not self._tickets and self.state is WorkerState.STREAMING:
            self.state = next_state(self.state, Happened.NO_TICKET_LEFT)

    def fail(self) -> tuple[Ticket, ...]:
        """Return the tickets abandoned by a failure; call before sending it."""
        self._failed = True
        dropped = self._drop_all()
        self.before_answer()
        return dropped

    def _drop_all(self) -> tuple[Ticket, ...]:
        dropped = tuple(self._tickets)
        self._tickets.clear()
        return dropped
