"""Run one trajectory apart from all others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from streamsampler.workers.waiting.deadlines import Deadlines, TimeLimits
from streamsampler.workers.waiting.driver import FlightDriver
from streamsampler.workers.waiting.event_loop import CLEANUP_SECONDS, WorkerEventLoop


def run_apart(
    loop: WorkerEventLoop, driver: FlightDriver, trajectory: Coroutine[Any, Any, None], limits: TimeLimits,
    on_message: Callable[[], tuple[bool, bool]],
) -> bool:  # fmt: skip
    """Run a trajectory; return False if it goes on although it was cancelled.

    Args:
        loop: The event loop.
        driver: Drives the trajectory.
        trajectory: Runs it.
        limits: How long it may take.
        on_message: Returns whether the trajectory may go on, and whether to be called when more messages come.

    Raises:
        asyncio.CancelledError: It may not go on.
        BaseException: What it raises; TimeoutError if it exceeded a limit.
    """
    running, cancelled = loop.start(trajectory), asyncio.Event()

    def cancel(_: Any = None) -> None:
        driver.is_cancelled = True
        running.cancel()
        cancelled.set()

    def look() -> bool:
        may_go_on, goes_on = on_message()
        if not may_go_on:
            cancel()
        return goes_on

    driver.clock.began = perf_counter()
    deadlines = Deadlines(limits, lambda: [driver], loop.get, cancel)
    deadlines.begin()
    try:
        loop.run(_first_of(running, cancelled), look)
    finally:
        deadlines.end()
        driver.is_cancelled = True
        has_ended = not loop.cancel()
        if has_ended and not running.cancelled():
            running.exception()  # or asyncio complains that nothing has asked for it, where something else is raised
    if has_ended:
        running.result()
    return has_ended


async def _first_of(running: asyncio.Task[None], cancelled: asyncio.Event) -> None:
    """Wait until a task has ended, or has had the time to end since it was cancelled."""
    cancelling = asyncio.ensure_future(cancelled.wait())
    try:
        await asyncio.wait({running, cancelling}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        cancelling.cancel()
    if not running.done():
        await asyncio.wait({running}, timeout=CLEANUP_SECONDS)
