"""The table of an environment's states; how managers go through it is explored in `exploration`."""

import pickle

import pytest

from streamsampler.errors import ProtocolError, UsageError
from streamsampler.stepping.call_errors import refuse_busy
from streamsampler.stepping.env_states import _TRANSITIONS, EnvEvent, EnvState, next_state
from streamsampler.stepping.open_requests import OpenRequests


@pytest.mark.parametrize("state", EnvState)
def test_what_the_table_lacks_raises(state):
    allowed = _TRANSITIONS[state]
    for event in EnvEvent:
        if event in allowed:
            assert next_state(state, event) is allowed[event]
        else:
            with pytest.raises(ProtocolError, match=f"{event.name} is not allowed in state {state.name}"):
                next_state(state, event)


def test_errors_name_the_environment_say_what_to_do_and_change_nothing():
    requests = OpenRequests(3)
    with pytest.raises(UsageError, match=r"environment 1 is VOID and does not wait for an action: call reset\(\)"):
        refuse_busy(requests.states, [1])
    requests.request([1], EnvEvent.RESET)
    with pytest.raises(UsageError, match=r"environment 1 is RESETTING .*: call recv\(\)"):
        refuse_busy(requests.states, [1])
    before = pickle.dumps(vars(requests))
    with pytest.raises(ProtocolError):
        requests.request([0, 1], EnvEvent.RESET)
    with pytest.raises(ProtocolError, match=r"environments \[2\] answered"):
        requests.answer([1, 2])
    with pytest.raises(ProtocolError, match=r"environments \[1\] have no result"):
        requests.close_requests([1], EnvEvent.BEGAN)
    assert pickle.dumps(vars(requests)) == before
    requests.answer([1])
    with pytest.raises(ProtocolError, match="STEPPED is not allowed in state RESETTING"):
        requests.close_requests([1], EnvEvent.STEPPED)
    assert list(requests.arrived) == [1]
