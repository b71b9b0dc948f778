"""The tables of both ends, state by event, and what the ends do besides."""

from typing import Any

import pytest

from streamsampler.errors import ProtocolError
from streamsampler.protocol.messages import Continue, Exit, Failure, Phase, Report, Start, Stop, Ticket
from streamsampler.protocol.states import Happened, SamplerSide, SamplerState, WorkerSide, WorkerState, next_state

W, S = WorkerState, SamplerState
EVENTS: dict[str, Any] = {event.__name__: event for event in (Start, Continue, Stop, Exit, Report, Failure)}
EVENTS |= {event.name: event for event in Happened}
# Of each state, all events that are legal in it, each with the state after it.
LEGAL = {
    W.NEW: "Start STREAMING, Exit EXITED",
    W.STREAMING: "Continue STREAMING, Stop IDLE, NO_TICKET_LEFT IDLE, Exit EXITED",
    W.IDLE: "Start STREAMING, Continue STREAMING, Stop IDLE, Exit EXITED",
    W.EXITED: "",
    S.ABSENT: "NEW_VERSION ABSENT, LAUNCHED READY",
    S.READY: "NEW_VERSION READY, Start WORKING, Exit RETIRING, DIED ABSENT",
    S.WORKING: "NEW_VERSION STOPPING, Continue WORKING, Stop STOPPING, Report WORKING, Failure STOPPING, "
    "ALL_ANSWERED WAITING, KILLED CONDEMNED, DIED ABSENT",
    S.WAITING: "NEW_VERSION READY, Continue WORKING, Exit RETIRING, DIED ABSENT",
    S.STOPPING: "NEW_VERSION STOPPING, Report STOPPING, Failure STOPPING, ALL_ANSWERED READY, KILLED CONDEMNED, "
    "DIED ABSENT",
    S.RETIRING: "NEW_VERSION RETIRING, KILLED CONDEMNED, DIED ABSENT",
    S.CONDEMNED: "NEW_VERSION CONDEMNED, Report CONDEMNED, Failure CONDEMNED, ALL_ANSWERED CONDEMNED, DIED ABSENT",
}


@pytest.mark.parametrize("state", [*W, *S])
def test_the_whole_transition_table(state):
    legal = dict(pair.split() for pair in LEGAL[state].split(", ") if pair)
    assert legal.keys() <= EVENTS.keys()
    for name, event in EVENTS.items():
        if name in legal:
            assert next_state(state, event) is type(state)[legal[name]]
        else:
            with pytest.raises(ProtocolError, match=f"^{name} is not allowed in state {state.name}$"):
                next_state(state, event)


TICKETS = Ticket(1, range(3)), Ticket(1, range(3, 5))


def test_after_a_failure_everything_is_given_up_until_the_next_start():
    side = WorkerSide()
    side.receive(Start(1, TICKETS))
    side.next_ticket()
    assert side.fail() == TICKETS[1:]
    late = (Ticket(1, range(9, 10)),)
    assert side.receive(Continue(late)) == late
    assert side.state is W.IDLE
    side.receive(Start(2, (Ticket(2, range(1)),)))
    assert side.next_ticket() == Ticket(2, range(1))


def test_a_start_on_top_of_unanswered_tickets_is_refused():
    side = WorkerSide()
    side.receive(Start(1, TICKETS))
    assert side.receive(Stop()) == TICKETS
    side.receive(Continue(TICKETS))
    with pytest.raises(ProtocolError, match="Start"):
        side.receive(Start(2, TICKETS))


def launched(*tickets, version=1):
    side = SamplerSide(0)
    side.apply(Happened.LAUNCHED)
    side.begin_version(version)
    for indices in tickets:
        side.assign(indices)
    return side


def failure(ticket):
    return Failure(ticket, Phase.STEP, None, "boom", "")


def test_the_first_ticket_of_a_version_travels_in_a_start_and_others_in_a_continue():
    side = launched()
    assert side.room == 2
    assert side.assign(range(3), 2) == Start(1, (Ticket(1, range(3), 2),))
    assert side.assign(range(3, 5)) == Continue((Ticket(1, range(3, 5)),))
    assert side.current_tickets() == [range(3), range(3, 5)], "those that others are to run when it dies"
    assert side.room == 0
    with pytest.raises(ProtocolError, match="worker 0 has no room"):
        side.assign(range(5, 6))
    answers = [side.record_answer(Report(ticket)) for ticket in (Ticket(1, range(3), 2), Ticket(1, range(3, 5)))]
    assert (answers, side.state, side.room) == ([True, True], S.WAITING, 2)
    assert isinstance(side.assign(range(5, 6)), Continue)


@pytest.mark.parametrize("answer", [Report, failure])
def test_an_answer_to_no_ticket_is_refused(answer):
    side = launched(range(2))
    for ticket in (Ticket(1, range(1)), Ticket(2, range(2)), None):
        with pytest.raises(ProtocolError, match="which it was not sent"):
            side.record_answer(answer(ticket))


def test_a_worker_that_is_to_be_replaced_gets_no_ticket_in_any_state():
    side = launched()
    side.mark_for_replacement()
    assert side.room == 0
    side.begin_version(2)
    assert side.room == 0
    side = launched()
    side.begin_version(2)
    side.assign(range(1))
    side.assign(range(1, 2))
    side.mark_for_replacement()
    for indices in (range(1), range(1, 2)):
        side.record_answer(Report(Ticket(2, indices)))
        assert side.room == 0
    side.apply(Exit)
    assert side.room == 0


def test_a_condemned_worker_still_answers_but_gets_nothing():
    side = launched(range(1))
    side.apply(Happened.KILLED)
    assert (side.room, side.stop()) == (0, None)
    assert side.record_answer(Report(Ticket(1, range(1)))) is True
    assert (side.state, side.room) == (S.CONDEMNED, 0)


def test_a_dead_worker_must_be_launched_before_it_gets_a_ticket():
    side = SamplerSide(0, version=1)
    assert side.room == 2
    with pytest.raises(ProtocolError, match="ABSENT"):
        side.assign(range(1))
    with pytest.raises(ProtocolError, match="follow"):
        side.begin_version(1)
