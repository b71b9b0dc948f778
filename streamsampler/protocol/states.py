"""What sampler and worker say to each other, and when: no I/O, no clock.

Theory of operation
-------------------

```text
            Start                Stop | no ticket left
  NEW ──────────────▶ STREAMING ───────────────────────▶ IDLE
   │                    │    ▲                             │
   │                    │    └─────── Start | Continue ────┘
   └──────── Exit ──────┴───────────────── Exit ───────────┴────▶ EXITED
```

*Tickets are the flow control.* A ticket names trajectories of one agent version, and is answered exactly once: by a
`Report` (with the rollouts, or without them where the ticket was given up) or by a `Failure`. A sampler that never has
more than `c` unanswered tickets with a worker therefore never finds more than `c` answers on the way back: the way
back can be bounded, and a worker never blocks on sending.

*A new version starts clean.* `Start` goes only to a worker that owes no answer, and `Stop` only to one that owes an
answer for the version in hand. So at most `c` messages with tickets, two `Stop` (the last version's may be unread)
and one `Exit` are ever on their way to a worker, however slow it is: the way there can be bounded, too.

*Old versions die within a step.* Beside the messages a worker reads one word, the oldest version still wanted, between
environment steps. A rollout of an older version is abandoned there. `Stop` says the same as a message, for engines
without shared memory, and empties the worker's tickets.

*A worker that failed stops working until it is started again.* After a `Failure` it gives up every ticket until the
next `Start`: its agent or environment may be half of something, and the `Start` brings it new ones. That `Start` may be
of the same version, since a call goes on while it is open whether it needs the trajectory that failed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from streamsampler.errors import ProtocolError
from streamsampler.protocol.messages import Continue, Exit, Message, Start, Stop, Ticket

__all__ = ["NoTicketLeft", "State", "WorkerSide", "next_state"]


@dataclass(frozen=True, slots=True)
class NoTicketLeft:
    """Not a message: the worker is about to answer its last ticket."""


class State(Enum):
    """The states of a worker."""

    NEW = "new"
    STREAMING = "streaming"
    IDLE = "idle"
    EXITED = "exited"


# The whole of what is legal. What is not here raises.
# Stop reaches an IDLE worker when its last answer and the sampler's Stop cross.
_TRANSITIONS: dict[State, dict[type, State]] = {
    State.NEW: {Start: State.STREAMING, Exit: State.EXITED},
    State.STREAMING: {
        Continue: State.STREAMING,
        Stop: State.IDLE,
        NoTicketLeft: State.IDLE,
        Exit: State.EXITED,
    },
    State.IDLE: {Start: State.STREAMING, Continue: State.STREAMING, Stop: State.IDLE, Exit: State.EXITED},
    State.EXITED: {},
}


def next_state(state: State, event: Message | NoTicketLeft) -> State:
    """Return the state after `event`.

    Raises:
        ProtocolError: The event is not allowed in this state.
    """
    try:
        return _TRANSITIONS[state][type(event)]
    except KeyError:
        raise ProtocolError(f"{type(event).__name__} is not allowed in state {state.name}") from None


class WorkerSide:
    """One worker's end of the conversation: its state, the version in hand and the tickets it owes an answer for.

    The worker loop tells it what was heard and does what it says; the exhaustive exploration of the protocol drives
    the very same object.
    """

    def __init__(self) -> None:
        self.state = State.NEW
        self.version = -1
        self._tickets: deque[Ticket] = deque()
        self._broken = False

    def hear(self, message: Message) -> tuple[Ticket, ...]:
        """Take note of a message.

        Returns:
            The tickets that are given up by it: each is to be answered with `Report(ticket, given_up=True)`, except
            after `Exit`, which ends the conversation.
        """
        self.state = next_state(self.state, message)
        match message:
            case Start(version=version, tickets=tickets):
                if self._tickets:
                    raise ProtocolError("Start came while tickets were unanswered")
                self.version = version
                self._broken = False
                self._tickets.extend(tickets)
            case Continue(tickets=tickets):
                if self._broken:
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

    def before_answer(self) -> None:
        """Take note that the ticket in hand is about to be answered.

        Before, not after: with its last answer the worker owes nothing, and the sampler's next word may be a `Start`,
        which a worker must be idle to hear.
        """
        if not self._tickets and self.state is State.STREAMING:
            self.state = next_state(self.state, NoTicketLeft())

    def fail(self) -> tuple[Ticket, ...]:
        """Break off this version after a failure: to be called before the failure is sent.

        Returns:
            The tickets that are given up by it, those that still arrive before the next `Start` apart.
        """
        self._broken = True
        dropped = self._drop_all()
        self.before_answer()
        return dropped

    def _drop_all(self) -> tuple[Ticket, ...]:
        dropped = tuple(self._tickets)
        self._tickets.clear()
        return dropped
