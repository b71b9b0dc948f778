"""Find methods of environments, in themselves or under their wrappers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, cast

import gymnasium

from streamsampler.errors import UsageError

__all__ = ["find_method", "task_setter"]


def find_method(env: gymnasium.Env[Any, Any], name: str) -> Callable[[Any], Any] | None:
    """Return a method of an environment, of itself or under its wrappers; None if it has none."""
    of_wrappers = getattr(env, "get_wrapper_attr", functools.partial(getattr, env))  # vector environments lack it
    for find in (of_wrappers, functools.partial(getattr, env.unwrapped)):
        with contextlib.suppress(AttributeError):
            method = find(name)
            if callable(method):
                return cast("Callable[[Any], Any]", method)
    return None


def task_setter(env: gymnasium.Env[Any, Any]) -> Callable[[Any], Any]:
    """Return the method that sets an environment's task.

    Raises:
        UsageError: There is none.
    """
    if (method := find_method(env, "set_task")) is not None:
        return method
    raise UsageError(
        f"a task needs an environment with a method set_task(task); {type(env.unwrapped).__qualname__} has "
        "none, and neither have its wrappers"
    )
