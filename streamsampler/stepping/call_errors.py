"""Errors of calls that come too early, too late or twice, which can be caught as those of Gymnasium's `AsyncVectorEnv`.

A script that is written against Gymnasium, and catches its exceptions, catches those of a manager's `vector_env()`.
"""

import multiprocessing
from collections.abc import Iterable, Sequence
from typing import Any

from gymnasium import error

from streamsampler.core.errors import ClosedError, UsageError
from streamsampler.stepping.env_states import EnvState

_READY = EnvState.READY  # an enum's member costs 100 ns to look up on Python 3.11
_WHAT_TO_DO = {
    EnvState.VOID: "call reset() first, which begins its episode",
    EnvState.RESETTING: "call recv() for the result of its reset first",
    EnvState.STEPPING: "its last action has no result yet: call recv() first",
    EnvState.NEEDS_RESET: "its episode has ended: call reset(env_ids=[{}])",
    EnvState.FINISHED: "it has run max_episodes episodes: reset(env_ids=[{}]) lets it run as many again",
    EnvState.FAILED: "it failed: call reset(env_ids=[{}])",
    EnvState.CLOSED: "call launch() first",
}


class EnvsClosedError(ClosedError, error.ClosedEnvironmentError):
    """The environments are closed."""


class ResetFirstError(UsageError, error.ResetNeeded):
    """An environment has no episode that an action could continue: it needs a reset."""


class DifferentSpacesError(UsageError, RuntimeError):
    """Environments have not the spaces that are needed together; Gymnasium's raise a RuntimeError."""


class ResultsTimeoutError(TimeoutError, multiprocessing.TimeoutError):
    """Results are not there in time. Python's own TimeoutError is not a base class of `multiprocessing`'s."""


class _CallError(UsageError):
    """Has Gymnasium's arguments: the message, and the name of the call."""

    def __init__(self, message: str, name: str = "") -> None:  # pickle calls it with the message alone
        super().__init__(message)
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.name)


class CallPendingError(_CallError, error.AlreadyPendingCallError):
    """The results of another call have not been received."""


class NoCallPendingError(_CallError, error.NoAsyncCallError):
    """There is no call whose results could be received."""


def refuse_busy(states: Sequence[EnvState], env_ids: Iterable[int]) -> None:
    """Raise UsageError, and Gymnasium's, for the first environment that awaits no action, with what to do."""
    for env_id in () if states.count(_READY) == len(states) else env_ids:
        state = states[env_id]
        if state is not _READY:
            message = f"environment {env_id} awaits no action, it is {state.name}: {_WHAT_TO_DO[state].format(env_id)}"
            is_open = state in (EnvState.RESETTING, EnvState.STEPPING)
            raise CallPendingError(message, "send") if is_open else ResetFirstError(message)
