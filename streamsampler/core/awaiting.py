"""Results that have to be awaited, in code that is written for results."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["has_coroutines", "is_awaitable", "run_alone", "then"]


def is_awaitable(value: Any) -> bool:
    """Return whether a value has to be awaited."""
    return hasattr(value, "__await__")


def then(result: Any, function: Callable[[Any], Any]) -> Any:
    """Return what a function makes of a result; of one that is to be awaited, an awaitable of that."""
    return _awaited(result, function) if is_awaitable(result) else function(result)


async def _awaited(result: Awaitable[Any], function: Callable[[Any], Any]) -> Any:
    return function(await result)


def run_alone(awaitable: Awaitable[Any]) -> None:
    """Await something on an event loop of its own."""

    async def run() -> None:
        await awaitable

    asyncio.run(run())


def has_coroutines(obj: Any, *names: str) -> bool:
    """Return whether one of an object's methods, those of these names that it has, is an `async def`."""
    return any(inspect.iscoroutinefunction(getattr(obj, name, None)) for name in names)
