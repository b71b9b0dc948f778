"""Run the same code on plain and on awaitable results: of a `def` or an `async def` environment or agent."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

__all__ = ["Pendings", "awaited", "completed", "has_coroutines", "is_awaitable", "run_alone", "then"]

ResultT = TypeVar("ResultT")
Pendings: TypeAlias = Generator[Any, Any, ResultT]
"""Yields values, awaitable or not, and receives their results; `completed` and `awaited` drive it."""


def is_awaitable(value: Any) -> bool:
    return hasattr(value, "__await__")


def then(result: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to a result, or return an awaitable that does so."""
    return _awaited(result, function) if is_awaitable(result) else function(result)


async def _awaited(result: Awaitable[Any], function: Callable[[Any], Any]) -> Any:
    return function(await result)


def completed(steps: Pendings[ResultT]) -> ResultT:
    """Drive a generator without awaiting, and return its value."""
    result = None
    while True:
        try:
            result = steps.send(result)
        except StopIteration as stopped:
            return cast("ResultT", stopped.value)


async def awaited(steps: Pendings[ResultT], wait: Callable[[Any], Awaitable[Any]]) -> ResultT:
    """Drive a generator, await its values with `wait`, and return its value."""
    resume: Callable[[], Any] = partial(next, steps)
    while True:
        try:
            pending = resume()
        except StopIteration as stopped:
            return cast("ResultT", stopped.value)
        try:
            resume = partial(steps.send, await wait(pending))
        except BaseException as error:
            resume = partial(steps.throw, error)


def run_alone(awaitable: Awaitable[Any]) -> None:
    """Await an object on a new event loop: in a new thread if this thread runs a loop already."""

    async def run() -> None:
        await awaitable

    if asyncio._get_running_loop() is None:
        asyncio.run(run())
        return
    with ThreadPoolExecutor(1) as threads:
        threads.submit(contextvars.copy_context().run, asyncio.run, run()).result()


def has_coroutines(obj: Any, *names: str) -> bool:
    """Return whether any of these methods of an object is an `async def`."""
    return any(inspect.iscoroutinefunction(getattr(obj, name, None)) for name in names)
