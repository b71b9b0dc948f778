"""Errors of calls that come too early, too late or twice, which can be caught as those of Gymnasium's `AsyncVectorEnv`.

A script that is written against Gymnasium, and catches its exceptions, catches those of a manager's `vector_env()`.
"""

import multiprocessing
from typing import Any

from gymnasium import error

from streamsampler.core.errors import ClosedError, UsageError

__all__ = [
    "CallPendingError",
    "DifferentSpacesError",
    "EnvsClosedError",
    "NoCallPendingError",
    "ResetFirstError",
    "ResultsTimeoutError",
]


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
