"""Answers of workers, between the wait in which they came and their release."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from streamsampler.engines.base import Answered
from streamsampler.protocol.messages import Report, Ticket
from streamsampler.samplers.arrivals import Arrivals

ENGINE: Any = SimpleNamespace(n_workers=1, memory_bytes=lambda worker: 0)


def test_what_a_call_has_counted_is_not_counted_again_by_a_close():
    """It may keep some of its answers until its end, and another thread may close the sampler in between."""
    arrivals = Arrivals(ENGINE, lambda package, ticket: False)
    released: list[int] = []
    answers = [
        Answered(0, Report(Ticket(1, range(number, number + 1))), release=partial(released.append, number))
        for number in range(3)
    ]
    numbers = [arrivals.receive(answer).number for answer in answers]
    assert arrivals.uncounted.pop(numbers[0]) is answers[0]
    arrivals.uncounted.pop(numbers[1])
    arrivals.discard(numbers[1])
    assert released == [1]
    assert arrivals.report(numbers[0]) is answers[0].answer
    assert arrivals.pop_uncounted() == answers[2:]
    assert arrivals.pop_uncounted() == []
