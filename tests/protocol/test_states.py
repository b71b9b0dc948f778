"""The tables of both ends, state by event, and what the ends do besides."""

import itertools
from typing import Any

import pytest

from streamsampler.errors import ProtocolError
from streamsampler.protocol.messages import Continue, Exit, Failure, Phase, Report, Start, Stop, Ticket
from streamsampler.protocol.states import Happened, SamplerSide, SamplerState, WorkerSide, WorkerState, next_state

EVENTS = [Start, Continue, Stop, Exit, Report, Failure, *Happened]

W, S = WorkerState, SamplerState
LEGAL: dict[Any, Any] = {
    **{(W.NEW, event): state for event, state in [(Start, W.STREAMING), (Exit, W.EXITED)]},
    (W.STREAMING, Continue): W.STREAMING,
    (W.STREAMING, Stop): W.IDLE,
    (W.STREAMING, Happened.NO_TICKET_LEFT): W.IDLE,
    (W.STREAMING, Exit): W.EXITED,
    (W.IDLE, Start): W.STREAMING,
    (W.IDLE, Continue): W.STREAMING,
    (W.IDLE, Stop): W.IDLE,
    (W.IDLE, Exit): W.EXITED,
    # A new version, by what is unanswered.
    **{(state, Happened.NEW_VERSION): state for state in (S.ABSENT, S.READY, S.STOPPING, S.RETIRING, S.CONDEMNED)},
    (S.WORKING, Happened.NEW_VERSION): S.STOPPING,
    (S.WAITING, Happened.NEW_VERSION): S.READY,
    # Coming and going.
    (S.ABSENT, Happened.LAUNCHED): S.READY,
    (S.READY, Exit): S.RETIRING,
    (S.WAITING, Exit): S.RETIRING,
    **{(state, Happened.KILLED): S.CONDEMNED for state in (S.WORKING, S.STOPPING, S.RETIRING)},
    **{(state, Happened.DIED): S.ABSENT for state in S if state is not S.ABSENT},
    # Tickets.
    (S.READY, Start): S.WORKING,
    (S.WORKING, Continue): S.WORKING,
    (S.WAITING, Continue): S.WORKING,
    (S.WORKING, Stop): S.STOPPING,
    # Answers.
    **{(state, Report): state for state in (S.WORKING, S.STOPPING, S.CONDEMNED)},
    (S.WORKING, Failure): S.STOPPING,
    **{(state, Failure): state for state in (S.STOPPING, S.CONDEMNED)},
    (S.WORKING, Happened.ALL_ANSWERED): S.WAITING,
    (S.STOPPING, Happened.ALL_ANSWERED): S.READY,
    (S.CONDEMNED, Happened.ALL_ANSWERED): S.CONDEMNED,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product([*WorkerState, *SamplerState], EVENTS)))
def test_the_whole_transition_table(state, event):
    expected = LEGAL.get((state, event))
    if expected is None:
        name = event.name if isinstance(event, Happened) else event.__name__
        with pytest.raises(ProtocolError, match=f"^{name} is not allowed in state {state.name}$"):
            next_state(state, event)
    else:
        assert next_state(state, event) is expected


# ---------------------------------------------------------------------- the worker's end

TICKETS = (Ticket(1, range(3)), Ticket(1, range(3, 5)))


def test_tickets_are_run_in_order_and_the_last_answer_leaves_the_worker_idle():
    side = WorkerSide()
    assert side.receive(Start(1, TICKETS)) == ()
    assert side.next_ticket() is TICKETS[0]
    side.before_answer()
    assert side.state is WorkerState.STREAMING
    assert side.next_ticket() is TICKETS[1]
    side.before_answer()
    assert side.state is WorkerState.IDLE  # type: ignore[comparison-overlap]
    assert side.next_ticket() is None


def test_stop_gives_up_what_is_not_in_hand():
    side = WorkerSide()
    side.receive(Start(1, TICKETS))
    side.next_ticket()
    assert side.receive(Stop()) == TICKETS[1:]
    assert side.state is WorkerState.IDLE


def test_after_a_failure_everything_is_given_up_until_the_next_start():
    side = WorkerSide()
    side.receive(Start(1, TICKETS))
    side.next_ticket()
    assert side.fail() == TICKETS[1:]
    late = (Ticket(1, range(9, 10)),)
    assert side.receive(Continue(late)) == late
    assert side.state is WorkerState.IDLE
    side.receive(Start(2, (Ticket(2, range(1)),)))
    assert side.next_ticket() == Ticket(2, range(1))


def test_a_start_on_top_of_unanswered_tickets_is_refused():
    side = WorkerSide()
    side.receive(Start(1, TICKETS))
    side.receive(Stop())
    side.receive(Continue(TICKETS))
    with pytest.raises(ProtocolError):
        side.receive(Start(2, TICKETS))


# ---------------------------------------------------------------------- the sampler's end


def launched(version=1):
    side = SamplerSide(0)
    side.apply(Happened.LAUNCHED)
    side.begin_version(version)
    return side


def failure(ticket):
    return Failure(ticket, Phase.STEP, None, "boom", "")


def test_the_first_ticket_of_a_version_travels_in_a_start():
    side = launched()
    assert side.room == 2
    assert side.assign(range(3), 2) == Start(1, (Ticket(1, range(3), 2),))
    assert side.assign(range(3, 5)) == Continue((Ticket(1, range(3, 5)),))
    assert side.room == 0
    with pytest.raises(ProtocolError, match="worker 0 has no room"):
        side.assign(range(5, 6))


def test_all_answered_the_next_ticket_of_the_version_travels_in_a_continue():
    side = launched()
    side.assign(range(1))
    assert side.record_answer(Report(Ticket(1, range(1)))) is True
    assert (side.state, side.room) == (SamplerState.WAITING, 2)
    assert isinstance(side.assign(range(1, 2)), Continue)


def test_a_worker_with_an_unanswered_older_ticket_gets_no_new_one():
    side = launched()
    side.assign(range(1))
    side.begin_version(2)
    assert (side.room, side.stop()) == (0, None)
    assert side.record_answer(Report(Ticket(1, range(1)))) is False
    assert side.room == 2
    assert isinstance(side.assign(range(1)), Start)
    assert side.record_answer(Report(Ticket(2, range(1)))) is True


def test_a_worker_is_stopped_once_and_only_if_it_works():
    side = launched()
    assert side.stop() is None
    side.assign(range(1))
    assert side.stop() == Stop()
    assert (side.stop(), side.room) == (None, 0)
    side.record_answer(Report(Ticket(1, range(1)), given_up=True))
    assert side.state is SamplerState.READY


def test_a_worker_that_failed_gets_a_start_when_it_has_answered_all():
    side = launched()
    side.assign(range(1))
    side.assign(range(1, 2))
    side.record_answer(failure(Ticket(1, range(1))))
    assert side.room == 0
    side.record_answer(Report(Ticket(1, range(1, 2)), given_up=True))
    assert side.room == 2
    assert side.assign(range(1)) == Start(1, (Ticket(1, range(1)),))


@pytest.mark.parametrize("answer", [Report, failure])
@pytest.mark.parametrize("ticket", [Ticket(1, range(1)), Ticket(2, range(2)), None], ids=str)
def test_an_answer_to_no_ticket_is_refused(answer, ticket):
    side = launched()
    side.assign(range(2))
    with pytest.raises(ProtocolError, match="which it was not sent"):
        side.record_answer(answer(ticket))


def test_versions_only_grow():
    with pytest.raises(ProtocolError, match="follow"):
        launched(3).begin_version(3)


def test_tickets_of_the_current_version_are_those_that_others_are_to_run():
    side = launched()
    side.assign(range(2))
    side.assign(range(2, 4))
    assert side.current_tickets() == [range(2), range(2, 4)]
    side.begin_version(2)
    assert side.current_tickets() == []


def test_a_worker_that_is_to_be_replaced_gets_no_ticket_in_any_state():
    side = launched()
    side.mark_for_replacement()
    assert side.room == 0
    side.begin_version(2)
    assert side.room == 0
    side.mark_for_replacement(marked=False)
    assert side.room == 2
    side.assign(range(1))
    side.assign(range(1, 2))
    side.mark_for_replacement()
    side.record_answer(Report(Ticket(2, range(1))))
    assert side.room == 0
    side.record_answer(Report(Ticket(2, range(1, 2))))
    side.apply(Exit)
    assert side.room == 0


def test_a_condemned_worker_still_answers_but_gets_nothing():
    side = launched()
    side.assign(range(1))
    side.apply(Happened.KILLED)
    assert (side.room, side.stop()) == (0, None)
    assert side.record_answer(Report(Ticket(1, range(1)))) is True
    assert (side.state, side.room) == (SamplerState.CONDEMNED, 0)


def test_a_dead_worker_must_be_launched_before_it_gets_a_ticket():
    side = SamplerSide(0, version=1)
    assert side.room == 2
    with pytest.raises(ProtocolError, match="ABSENT"):
        side.assign(range(1))
