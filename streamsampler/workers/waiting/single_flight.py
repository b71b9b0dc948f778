"""Run a single trajectory while no other is in flight, for a rehearsal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from streamsampler.workers.waiting.deadlines import Deadlines, TimeLimits
from streamsampler.workers.waiting.driver import FlightDriver
from streamsampler.workers.waiting.event_loop import CLEANUP_SECONDS, WorkerEventLoop


def run_single(
    loop: WorkerEventLoop, driver: FlightDriver, trajectory: Coroutine[Any, Any, None], limits: TimeLimits,
    on_message: Callable[[], tuple[bool, bool]],
) -> bool:  # fmt: skip
    """Run a trajectory; return False if it continues after its cancellation.

    `on_message` returns whether the trajectory may go on, and whether to call it again for further messages.

    Raises:
        asyncio.CancelledError: The trajectory may not go on.
        BaseException: From the trajectory; a TimeoutError if it exceeded a limit.
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
            running.exception()  # otherwise asyncio logs an exception never retrieved, if another is raised
    if has_ended:
        running.result()
    return has_ended


async def _first_of(running: asyncio.Task[None], cancelled: asyncio.Event) -> None:
    """Wait for the end of a task, at most `CLEANUP_SECONDS` after its cancellation."""
    cancelling = asyncio.ensure_future(cancelled.wait())
    try:
        await asyncio.wait({running, cancelling}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        cancelling.cancel()
    if not running.done():
        await asyncio.wait({running}, timeout=CLEANUP_SECONDS)
