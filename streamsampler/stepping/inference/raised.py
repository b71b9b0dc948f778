"""Exceptions of environments that would not reach the sampler as they are: they end a process, or cannot be pickled."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from streamsampler.errors import NotReproducibleError, RemoteTraceback, RolloutError
from streamsampler.protocol.messages import Phase
from streamsampler.workers.explain import summary_of

__all__ = ["HIDDEN", "RAISED", "TOO_LONG", "EnvironmentRaisedError", "not_restored", "own", "refuse_to_end"]

HIDDEN = (
    "environment {} was lost with its process, and did something else when it was reset with its seed and its actions "
    "were applied again: it draws from something that its reset does not seed. Let it draw from self.np_random after "
    "super().reset(seed=seed)"
)
RAISED = "environment {} was lost with its process, and raised when its actions were applied again"
TOO_LONG = "environment {} was lost with its process, in an episode that is longer than can be restored"


class EnvironmentRaisedError(Exception):
    """Stands for an exception of an environment that cannot be brought from its process; says which one."""


class _Carrier(Exception):  # noqa: N818 - it carries an error
    """Carries an exception to the sampler: unpickled, it is that exception."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(summary_of(error))
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        if not isinstance(self._error, KeyboardInterrupt):  # the sampler would take that for its user's
            try:
                return pickle.loads, (cloudpickle.dumps(self._error),)
            except Exception:  # noqa: S110 - then what follows
                pass
        return EnvironmentRaisedError, self.args


def refuse_to_end(error: BaseException) -> None:
    """Raise what carries an exception to the sampler, where that one would end the process or cannot be pickled."""
    if isinstance(error, Exception) and _travels(error):
        return
    raise _Carrier(error) from error


def _travels(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def own(error: Any) -> BaseException:
    """Return what an environment raised; the error that tells of it where that did not cross the processes."""
    if not isinstance(error, RolloutError) or error.original is None:
        assert isinstance(error, BaseException)
        return error
    error.original.__cause__ = error.__cause__ if isinstance(error.__cause__, RemoteTraceback) else None
    return error.original


def not_restored(env_id: int, index: int | None, why: str) -> NotReproducibleError:
    """Return the error of an environment that cannot be restored.

    Args:
        env_id: The environment.
        index: Its trajectory.
        why: `HIDDEN`, `RAISED` or `TOO_LONG`.
    """
    return NotReproducibleError(why.format(env_id), worker_number=0, phase=Phase.STEP, trajectory=index)
