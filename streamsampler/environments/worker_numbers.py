"""Pass the worker's number to functions that make environments."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

__all__ = ["for_worker", "lacks", "with_worker_number"]

_NAME = "worker_number"
_number: ContextVar[int] = ContextVar("streamsampler_worker_number", default=0)


@contextlib.contextmanager
def for_worker(number: int) -> Iterator[None]:
    """Let environments that are made inside the block be those of a worker.

    Args:
        number: The worker's number, 0 to n_workers-1.
    """
    token = _number.set(number)
    try:
        yield
    finally:
        _number.reset(token)


def with_worker_number(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to call a factory with: `arguments`, and the worker's number if it has a parameter for it.

    Args:
        factory: A class or another callable.
        arguments: Keyword arguments; a `worker_number` among them, or one that a `functools.partial` brings, is kept.

    Returns:
        The keyword arguments. Outside workers the number is 0.
    """
    return {**arguments, _NAME: _number.get()} if lacks(factory, arguments, _NAME) else {**arguments}


def lacks(factory: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> bool:
    """Return whether a callable has a parameter, by keyword, that neither `arguments` nor a partial function sets."""
    if name in arguments or (isinstance(factory, functools.partial) and name in factory.keywords):
        return False
    try:
        parameter = inspect.signature(factory).parameters.get(name)
    except (TypeError, ValueError):
        return False  # it has no signature to look at
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
