import pytest

from streamsampler.errors import ProtocolError
from streamsampler.protocol.messages import Continue, Report, Start, Ticket
from streamsampler.scheduling.dispatch import Dispatcher


def test_the_first_ticket_of_a_version_travels_in_a_start():
    dispatcher = Dispatcher(2)
    dispatcher.begin(1)
    assert dispatcher.hand(0, range(3)) == Start(1, (Ticket(1, range(3)),))
    assert dispatcher.hand(0, range(3, 5)) == Continue((Ticket(1, range(3, 5)),))
    assert dispatcher.room(0) == 0
    assert dispatcher.room(1) == 2
    with pytest.raises(ProtocolError, match="room"):
        dispatcher.hand(0, range(5, 6))


def test_a_worker_that_owes_an_older_answer_gets_nothing_new():
    dispatcher = Dispatcher(1)
    dispatcher.begin(1)
    dispatcher.hand(0, range(1))
    dispatcher.begin(2)
    assert dispatcher.room(0) == 0
    assert dispatcher.owing() == []
    assert dispatcher.settle(0, Report(Ticket(1, range(1)))) is False
    assert dispatcher.room(0) == 2
    assert isinstance(dispatcher.hand(0, range(1)), Start)
    assert dispatcher.owing() == [0]
    assert dispatcher.settle(0, Report(Ticket(2, range(1)))) is True


def test_an_answer_to_nothing_is_refused():
    dispatcher = Dispatcher(1)
    dispatcher.begin(1)
    with pytest.raises(ProtocolError, match="did not owe"):
        dispatcher.settle(0, Report(Ticket(1, range(1))))


def test_versions_only_grow():
    dispatcher = Dispatcher(1)
    dispatcher.begin(3)
    with pytest.raises(ProtocolError, match="follow"):
        dispatcher.begin(3)


def test_what_a_dead_worker_held_comes_back_and_its_successor_gets_a_start():
    dispatcher = Dispatcher(1)
    dispatcher.begin(1)
    dispatcher.hand(0, range(2))
    dispatcher.hand(0, range(2, 4))
    assert dispatcher.lost(0) == [range(2), range(2, 4)]
    assert isinstance(dispatcher.hand(0, range(2)), Start)


def test_what_a_dead_worker_held_of_an_older_version_does_not_come_back():
    dispatcher = Dispatcher(1)
    dispatcher.begin(1)
    dispatcher.hand(0, range(2))
    dispatcher.begin(2)
    assert dispatcher.lost(0) == []
    assert dispatcher.owes(0) == ()
