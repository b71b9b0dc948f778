"""Results that have to be awaited, in code that is written for results."""

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
"""Yields what may have to be awaited, and receives the results: `completed` and `awaited` drive it."""


def is_awaitable(value: Any) -> bool:
    """Return whether a value has to be awaited."""
    return hasattr(value, "__await__")


def then(result: Any, function: Callable[[Any], Any]) -> Any:
    """Return what a function makes of a result; of one that is to be awaited, an awaitable of that."""
    return _awaited(result, function) if is_awaitable(result) else function(result)


async def _awaited(result: Awaitable[Any], function: Callable[[Any], Any]) -> Any:
    return function(await result)


def completed(steps: Pendings[ResultT]) -> ResultT:
    """Drive a generator where nothing has to be awaited; return what it returns."""
    result = None
    while True:
        try:
            result = steps.send(result)
        except StopIteration as stopped:
            return cast("ResultT", stopped.value)


async def awaited(steps: Pendings[ResultT], wait: Callable[[Any], Awaitable[Any]]) -> ResultT:
    """Drive a generator, and await what it yields with a function; return what it returns."""
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
    """Await something on an event loop of its own: in a thread of its own, where one runs already in this thread."""

    async def run() -> None:
        await awaitable

    if asyncio._get_running_loop() is None:
        asyncio.run(run())
        return
    with ThreadPoolExecutor(1) as threads:
        threads.submit(contextvars.copy_context().run, asyncio.run, run()).result()


def has_coroutines(obj: Any, *names: str) -> bool:
    """Return whether one of an object's methods, those of these names that it has, is an `async def`."""
    return any(inspect.iscoroutinefunction(getattr(obj, name, None)) for name in names)
