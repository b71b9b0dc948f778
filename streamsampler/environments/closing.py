"""Close environments, with a plain or an asynchronous `close`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from streamsampler.core.awaiting import is_awaitable, run_alone
from streamsampler.core.errors import SamplerError

__all__ = ["EnvCloseError", "close_env", "close_error", "close_replaced", "closing_together", "closing_with"]


class EnvCloseError(SamplerError):
    """The old environment's `close` raised (the cause), before the new environment was made."""


_run_to_end: ContextVar[Callable[[Any], None]] = ContextVar("streamsampler_run_to_end", default=run_alone)


@contextlib.contextmanager
def closing_with(run_to_end: Callable[[Any], None]) -> Iterator[None]:
    """Await asynchronous `close` calls within the block by a function, on its own event loop."""
    token = _run_to_end.set(run_to_end)
    try:
        yield
    finally:
        _run_to_end.reset(token)


@contextlib.contextmanager
def closing_together(run_to_end: Callable[[Any], None]) -> Iterator[None]:
    """Await asynchronous `close` calls together at the end of the block; then raise their first exception."""
    pending: list[Any] = []

    async def all_of_them() -> None:
        for error in await asyncio.gather(*pending, return_exceptions=True):
            if error is not None:
                raise error

    try:
        with closing_with(pending.append):
            yield
    finally:
        if pending:
            run_to_end(all_of_them())


def close_env(env: Any) -> None:
    """Close an environment, and wait for an asynchronous `close`; see `closing_with`."""
    closing: Any = env.close()
    if is_awaitable(closing):
        _run_to_end.get()(closing)


def close_replaced(env: Any, close: Callable[[Any], None] = close_env) -> None:
    """Close an environment, or None, before another takes its place; raise EnvCloseError if `close` raises."""
    if env is None:
        return
    try:
        close(env)
    except Exception as error:
        raise close_error(env, error) from error


def close_error(env: Any, error: Exception) -> EnvCloseError:
    """Return the error for an environment whose `close` raised."""
    name = type(env.unwrapped).__qualname__
    return EnvCloseError(f"closing the environment {name} raised {type(error).__name__}: {error}")
