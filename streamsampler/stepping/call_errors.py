"""Errors of calls made too early, too late or twice, which Gymnasium's `AsyncVectorEnv` raises too."""

import multiprocessing
from collections.abc import Iterable, Sequence
from typing import Any

from gymnasium import error

from streamsampler.core.errors import ClosedError, UsageError
from streamsampler.stepping.env_states import EnvState

_READY = EnvState.READY  # an enum's member costs 100 ns to look up on Python 3.11
_WHAT_TO_DO = {
    EnvState.VOID: "call reset() first, to start its episode",
    EnvState.RESETTING: "call recv() first, for the result of its reset",
    EnvState.STEPPING: "call recv() first, for the result of its last action",
    EnvState.NEEDS_RESET: "its episode has ended, so call reset(env_ids=[{}])",
    EnvState.FINISHED: "it has run max_episodes episodes; reset(env_ids=[{}]) lets it run as many again",
    EnvState.FAILED: "it failed, so call reset(env_ids=[{}])",
    EnvState.CLOSED: "call launch() first",
}


class EnvsClosedError(ClosedError, error.ClosedEnvironmentError):
    """The environments are closed."""


class ResetFirstError(UsageError, error.ResetNeeded):
    """An environment has no current episode: it needs a reset."""


class DifferentSpacesError(UsageError, RuntimeError):
    """Environments lack the spaces a call needs; a RuntimeError in Gymnasium."""


class ResultsTimeoutError(TimeoutError, multiprocessing.TimeoutError):
    """Results did not arrive in time. `multiprocessing.TimeoutError` is not derived from Python's TimeoutError."""


class _CallError(UsageError):
    """Has Gymnasium's arguments: the message, and the name of the call."""

    def __init__(self, message: str, name: str = "") -> None:  # pickle calls it with the message alone
        super().__init__(message)
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.name)


class CallPendingError(_CallError, error.AlreadyPendingCallError):
    """Results of another call have not been received."""


class NoCallPendingError(_CallError, error.NoAsyncCallError):
    """No call is open."""


def refuse_busy(states: Sequence[EnvState], env_ids: Iterable[int]) -> None:
    """Raise, also as Gymnasium's exception, for the first environment that is not READY."""
    for env_id in () if states.count(_READY) == len(states) else env_ids:
        state = states[env_id]
        if state is not _READY:
            what_to_do = _WHAT_TO_DO[state].format(env_id)
            message = f"environment {env_id} is {state.name} and does not wait for an action: {what_to_do}"
            is_open = state in (EnvState.RESETTING, EnvState.STEPPING)
            raise CallPendingError(message, "send") if is_open else ResetFirstError(message)
