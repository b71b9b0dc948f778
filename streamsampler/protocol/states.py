"""Both ends of the conversation between sampler and worker, as state machines. Pure: no I/O, no clock.

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

The sampler's end (`SamplerSide`); a worker that dies is ABSENT from any state, and one that is killed is CONDEMNED
until it is dead:

```text
           launched          Start             all answered
  ABSENT ───────────▶ READY ───────▶ WORKING ◀─────────────▶ WAITING
                      │ ▲               │        Continue       │
                 Exit │ │ all answered  │ Stop | Failure |      │ new version: READY
                      ▼ │               ▼ new version           ▼ Exit: RETIRING
               RETIRING └─────────── STOPPING
```

*Tickets are the flow control.* A ticket names trajectories of one agent version, and is answered exactly once: by a
`Report` (with the rollouts, or without them where the ticket was given up) or by a `Failure`. As a worker never has
more than `CAPACITY` unanswered tickets, no more answers are ever on the way back: the way back can be bounded, and a
worker never blocks on sending.

*A new version starts clean.* `Start` goes only to a worker without unanswered tickets, and `Stop` only to one with
unanswered tickets of the current version. So at most `CAPACITY` messages with tickets, two `Stop` (the last version's
may be unread) and one `Exit` are ever on their way to a worker, however slow it is: the way there can be bounded, too.

*Old versions end within a step.* Between environment steps a worker also reads one shared word, the oldest version
that is not abandoned. A rollout of an older version ends there. `Stop` says the same as a message, for engines
without shared memory, and empties the worker's tickets.

*A worker that failed stops working until the next `Start`.* After a `Failure` the worker gives up every ticket until
then: its agent or environment may be half updated, and the `Start` brings new ones. That `Start` may be of the same
version, since a call continues while it is open whether it needs the trajectory that failed.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any, TypeVar

from streamsampler.core.errors import ProtocolError
from streamsampler.protocol.messages import Answer, Continue, Exit, Failure, Message, Report, Start, Stop, Ticket

CAPACITY = 2
"""Unanswered tickets that a worker may have: one in hand, and the next before the worker finishes that one."""


class WorkerState(Enum):
    """The states of a worker's end."""

    __hash__ = object.__hash__  # quicker in a dict: that of enums is a function in Python

    NEW = "new"
    STREAMING = "streaming"
    IDLE = "idle"
    EXITED = "exited"


class SamplerState(Enum):
    """What the sampler knows of a worker."""

    __hash__ = object.__hash__

    ABSENT = "absent"  # not started, or dead
    READY = "ready"  # no unanswered ticket; the next one travels in a Start
    WORKING = "working"  # unanswered tickets of the current version; the next one travels in a Continue
    WAITING = "waiting"  # the same without an unanswered ticket
    STOPPING = "stopping"  # unanswered tickets of an older version, or from before a Stop or a failure
    RETIRING = "retiring"  # was sent Exit
    CONDEMNED = "condemned"  # is being killed


class Happened(Enum):
    """Events that are no messages."""

    __hash__ = object.__hash__

    NO_TICKET_LEFT = "the worker is about to answer its last ticket"
    LAUNCHED = "the worker was started"
    ALL_ANSWERED = "the answer that came was the last one"
    NEW_VERSION = "the next agent version begins"
    KILLED = "the engine was asked to kill the worker"
    DIED = "the worker is dead"


_W, _S = WorkerState, SamplerState
State = TypeVar("State", WorkerState, SamplerState)

# All legal transitions of both ends. What is not here raises.
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
    """Return the state after `event`: a message or an answer was sent or received, or something else happened."""
    try:
        following: State = _TRANSITIONS[state][event]
    except KeyError:
        name = event.name if isinstance(event, Happened) else event.__name__
        raise ProtocolError(f"{name} is not allowed in state {state.name}") from None
    return following


class SamplerSide:
    """The sampler's end of the conversation with one worker, from one start of the worker to its death."""

    def __init__(self, worker: int, version: int = 0, capacity: int = CAPACITY) -> None:
        self.worker = worker
        self.state = SamplerState.ABSENT
        self.version = version  # the current agent version
        self.unanswered: list[Ticket] = []  # oldest first; two at most: a deque takes ten times as much memory
        self.room = capacity  # how many more tickets the worker may be sent now; if it is ABSENT, after its start
        self.is_to_be_replaced = False  # gets no more tickets, and is to end when it has answered all
        self._capacity = capacity

    def apply(self, event: type[Message | Answer] | Happened) -> None:
        """Take the transition of an event; what `assign`, `record_answer` and `stop` return is applied already."""
        self.state = next_state(self.state, event)
        takes_tickets = self.state in _TAKES_TICKETS and not self.is_to_be_replaced
        self.room = self._capacity - len(self.unanswered) if takes_tickets else 0

    def begin_version(self, version: int) -> None:
        """Begin an agent version: answers for older ones are stale from now on."""
        if version <= self.version:
            raise ProtocolError(f"agent version {version} does not follow {self.version}")
        self.version = version
        self.apply(Happened.NEW_VERSION)

    def assign(self, indices: range, block: int = 1) -> Start | Continue:
        """Add a ticket, and return the message that carries it; see `messages.Ticket`.

        A `Start` is without updates, which the caller adds.
        """
        if self.room <= 0:
            raise ProtocolError(f"worker {self.worker} has no room for another ticket")
        tickets = (Ticket(self.version, indices, block),)
        message = Start(self.version, tickets) if self.state is SamplerState.READY else Continue(tickets)
        self.unanswered.extend(tickets)
        self.apply(type(message))
        return message

    def record_answer(self, answer: Answer) -> bool:
        """Remove the ticket that was answered; return whether it is of the current version, and not stale."""
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
        """Return the message that makes the worker give up its tickets; None where it has none, or was sent it."""
        if self.state is not SamplerState.WORKING:
            return None
        self.apply(Stop)
        return Stop()

    def mark_for_replacement(self) -> None:
        """Give the worker no more tickets."""
        self.is_to_be_replaced = True
        self.room = 0

    def current_tickets(self) -> list[range]:
        """Return the indices of the unanswered tickets of the current version: if the worker dies, others run them."""
        return [ticket.indices for ticket in self.unanswered if ticket.version == self.version]


class WorkerSide:
    """One worker's end of the conversation: its state, the version in hand and the unanswered tickets.

    The worker loop reports each message and failure to it and does what it says; the processes of the exhaustive
    exploration do, too.
    """

    def __init__(self) -> None:
        self.state = WorkerState.NEW
        self.version = -1
        self._tickets: deque[Ticket] = deque()
        self._failed = False

    def receive(self, message: Message) -> tuple[Ticket, ...]:
        """Receive a message; return the tickets that are given up by it.

        Each is to be answered with `Report(ticket, given_up=True)`, except after `Exit`, which ends the conversation.
        """
        self.state = next_state(self.state, type(message))
        match message:
            case Start(version=version, tickets=tickets):
                if self._tickets:
                    raise ProtocolError("Start came while tickets were unanswered")
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
        """Return the ticket to run now; None if there is none."""
        return self._tickets.popleft() if self._tickets else None

    def later_ticket(self, number: int) -> Ticket | None:
        """Return the ticket of a number after the one that runs, 1 for the next; None if it has not come yet."""
        return self._tickets[number - 1] if number <= len(self._tickets) else None

    def before_answer(self) -> None:
        """Become idle if the ticket that is about to be answered is the last one.

        Before, not after: with its last answer the worker has no ticket left, and the sampler's next message may be a
        `Start`, which only an idle worker can receive.
        """
        if not self._tickets and self.state is WorkerState.STREAMING:
            self.state = next_state(self.state, Happened.NO_TICKET_LEFT)

    def fail(self) -> tuple[Ticket, ...]:
        """Give up this version after a failure: to be called before the failure is sent.

        Return the tickets that are given up by it, besides those that arrive before the next `Start`.
        """
        self._failed = True
        dropped = self._drop_all()
        self.before_answer()
        return dropped

    def _drop_all(self) -> tuple[Ticket, ...]:
        dropped = tuple(self._tickets)
        self._tickets.clear()
        return dropped
