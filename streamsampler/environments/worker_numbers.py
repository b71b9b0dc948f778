"""Pass the worker's number, and the environment's where several are in a worker, to functions that make them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

__all__ = ["for_worker", "lacks", "with_worker_number"]

_numbers: ContextVar[Mapping[str, int]] = ContextVar("streamsampler_numbers", default={"worker_number": 0})  # noqa: B039


@contextlib.contextmanager
def for_worker(number: int, env_number: int | None = None) -> Iterator[None]:
    """Let environments that are made inside the block be those of a worker.

    Args:
        number: The worker's number, 0 to n_workers-1.
        env_number: The environment's, where environments have numbers; None where they have none.
    """
    numbers = {"worker_number": number}
    token = _numbers.set(numbers if env_number is None else {**numbers, "env_number": env_number})
    try:
        yield
    finally:
        _numbers.reset(token)


def with_worker_number(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to call a factory with: `arguments`, and the numbers that it has a parameter for.

    Args:
        factory: A class or another callable.
        arguments: Keyword arguments; a `worker_number` or `env_number` among them, or one that a `functools.partial`
            brings, is kept.

    Returns:
        The keyword arguments. Outside workers `worker_number` is 0.
    """
    numbers = {name: number for name, number in _numbers.get().items() if lacks(factory, arguments, name)}
    return {**arguments, **numbers}


def lacks(factory: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> bool:
    """Return whether a callable has a parameter, by keyword, that neither `arguments` nor a partial function sets."""
    if name in arguments or (isinstance(factory, functools.partial) and name in factory.keywords):
        return False
    try:
        parameter = inspect.signature(factory).parameters.get(name)
    except (TypeError, ValueError):
        return False  # it has no signature to look at
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
