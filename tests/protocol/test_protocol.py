import itertools

import pytest

from streamsampler.errors import ProtocolError
from streamsampler.protocol.messages import Continue, Exit, Start, Stop, Ticket
from streamsampler.protocol.states import NoTicketLeft, State, WorkerSide, next_state

TICKETS = (Ticket(1, range(3)), Ticket(1, range(3, 5)))
EVENTS = [Start(1, TICKETS), Continue(TICKETS), Stop(), Exit(), NoTicketLeft()]
LEGAL = {
    (State.NEW, Start): State.STREAMING,
    (State.NEW, Exit): State.EXITED,
    (State.STREAMING, Continue): State.STREAMING,
    (State.STREAMING, Stop): State.IDLE,
    (State.STREAMING, NoTicketLeft): State.IDLE,
    (State.STREAMING, Exit): State.EXITED,
    (State.IDLE, Start): State.STREAMING,
    (State.IDLE, Continue): State.STREAMING,
    (State.IDLE, Stop): State.IDLE,
    (State.IDLE, Exit): State.EXITED,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, EVENTS)))
def test_the_whole_transition_table(state, event):
    expected = LEGAL.get((state, type(event)))
    if expected is None:
        with pytest.raises(ProtocolError, match=f"{type(event).__name__} is not allowed in state {state.name}"):
            next_state(state, event)
    else:
        assert next_state(state, event) is expected


def test_tickets_are_run_in_order_and_the_last_answer_leaves_the_worker_idle():
    side = WorkerSide()
    assert side.hear(Start(1, TICKETS)) == ()
    assert side.next_ticket() is TICKETS[0]
    side.before_answer()
    assert side.state is State.STREAMING
    assert side.next_ticket() is TICKETS[1]
    side.before_answer()
    assert side.state is State.IDLE  # type: ignore[comparison-overlap]
    assert side.next_ticket() is None


def test_stop_gives_up_what_is_not_in_hand():
    side = WorkerSide()
    side.hear(Start(1, TICKETS))
    side.next_ticket()
    assert side.hear(Stop()) == TICKETS[1:]
    assert side.state is State.IDLE


def test_after_a_failure_everything_is_given_up_until_the_next_start():
    side = WorkerSide()
    side.hear(Start(1, TICKETS))
    side.next_ticket()
    assert side.fail() == TICKETS[1:]
    late = (Ticket(1, range(9, 10)),)
    assert side.hear(Continue(late)) == late
    assert side.state is State.IDLE
    side.hear(Start(2, (Ticket(2, range(1)),)))
    assert side.next_ticket() == Ticket(2, range(1))


def test_a_start_on_top_of_unanswered_tickets_is_refused():
    side = WorkerSide()
    side.hear(Start(1, TICKETS))
    side.hear(Stop())
    side.hear(Continue(TICKETS))
    with pytest.raises(ProtocolError):
        side.hear(Start(2, TICKETS))
