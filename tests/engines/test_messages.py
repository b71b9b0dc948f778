import numpy as np
import pytest

from streamsampler.engines.processes.messages import decode_answer, decode_command, encode_answer, encode_command
from streamsampler.engines.processes.shared_memory import Region
from streamsampler.protocol.messages import Continue, Exit, Failure, Phase, Report, Start, Stop, Ticket

TICKETS = (Ticket(3, range(5)), Ticket(3, range(7, 40, 3)))


@pytest.mark.parametrize(
    "answer",
    [
        Report(TICKETS[1], False, 11, 120, 0, 0, (0.5, 1e-9, 3.0, 0.0, 2.0)),
        Report(TICKETS[0], given_up=True),
        Report(TICKETS[0], False, np.int64(3), 20, 0, 0, (np.float64(0.5),)),
        Failure(TICKETS[0], Phase.STEP, 4, "boom", "Traceback …\nboom", b"pickle"),
        Failure(None, Phase.CLOSE, None, "boom", ""),
    ],
)
def test_answers_come_out_as_they_went_in(answer):
    assert decode_answer(memoryview(encode_answer(answer))) == answer


@pytest.mark.parametrize(
    "message", [Start(3, TICKETS, agent=b"agent"), Continue(TICKETS), Continue(TICKETS[:1]), Stop(), Exit()]
)
@pytest.mark.parametrize("released", [[], [Region(0, 10), Region(1 << 40, 1 << 33)]])
def test_commands_come_out_as_they_went_in(message, released):
    data = encode_command(message, released)
    assert decode_command(data) == (message, released)
    assert all(isinstance(region, Region) for region in decode_command(data)[1])
