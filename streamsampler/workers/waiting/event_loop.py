"""The event loop of a worker, which runs while the worker has a ticket, and shows on the status board when it waits.

Ctrl-C raises in user code; inside asyncio's own code it cancels the task, since an exception there may lose a wake-up.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
import os
import selectors
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from streamsampler.core.errors import UsageError
from streamsampler.core.timing import collecting, collector_in_use
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import Worker
from streamsampler.workers.waiting.signals import SignalPipe
from streamsampler.workers.waiting.turns import has_turn

ResultT = TypeVar("ResultT")

_NONE = -1

CLEANUP_SECONDS = 1.0
"""Seconds for cancelled tasks to end, for example to close an environment's connections."""

_STOPPED = (
    "the environment or the agent has stopped the event loop, on which other trajectories are in flight: return from "
    "the coroutine, or raise an exception, instead"
)


class _WaitingSelector(selectors.DefaultSelector):
    """Shows on the status board when the loop waits: a waiting worker does not hang, a computing worker may."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        row = self._worker.row
        # While a worker closes its environments, the time limit for closing applies.
        row.set_phase(Phase.CLOSE if self._worker.phase is Phase.CLOSE else Phase.IN_FLIGHT)
        try:
            return super().select(timeout)
        finally:
            row.count_wait()
            row.set_phase(self._worker.phase)


@contextlib.contextmanager
def outside_loop() -> Iterator[None]:
    """Hide the running event loop from the code in the block, which may run loops of its own; Ctrl-C raises in it."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    has_turn.here = True
    try:
        yield
    finally:
        has_turn.here = False
        asyncio._set_running_loop(loop)


class WorkerEventLoop:
    """Runs a worker's coroutines on an event loop, which exists from its first use, and runs only during `run`.

    If another loop runs in the calling thread, as in a notebook, this loop runs in its own thread meanwhile.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._made: asyncio.SelectorEventLoop | None = None
        self.tasks: set[asyncio.Task[Any]] = set()  # these may continue after `run`
        self._abandoned: list[asyncio.Task[Any]] = []
        self._current: asyncio.Task[Any] | None = None  # the task of `run`
        self._interrupts = 0  # Ctrl-C during `run`
        self._ending = _NONE  # becomes readable when the loop's thread ends

    def get(self) -> asyncio.SelectorEventLoop:
        if self._made is None:
            self._made = asyncio.SelectorEventLoop(_WaitingSelector(self._worker))
        return self._made

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task, which runs during `run`."""
        task = self.get().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def run(self, coroutine: Coroutine[Any, Any, ResultT], on_message: Callable[[], bool] | None = None) -> ResultT:
        """Run a coroutine to its end, and meanwhile all tasks.

        `on_message` is called when a message for the worker may have come; it returns whether to call it again.

        Raises:
            UsageError: User code stopped the loop.
            BaseException: From the coroutine.
        """
        descriptor = self._worker.descriptor
        if on_message is not None and descriptor is not None:
            self.get().add_reader(descriptor, self._read, descriptor, on_message)
        task = self.get().create_task(coroutine)
        try:
            self._run(task)
        except BaseException:
            task.cancel()
            raise
        finally:
            if on_message is not None and descriptor is not None:
                self.get().remove_reader(descriptor)
        return task.result()

    def complete(self, awaitable: Any) -> None:

        async def complete() -> None:
            await awaitable

        self.run(complete())

    def _read(self, descriptor: int, on_message: Callable[[], bool]) -> None:
        if not on_message():
            self.get().remove_reader(descriptor)

    def _run(self, task: asyncio.Task[Any]) -> None:
        with SignalPipe() as signals:
            if asyncio._get_running_loop() is not None:
                self._run_in_thread(task, signals)
                return
            self.get().add_reader(signals.descriptor, signals.read)
            try:
                self._run_here(task)
            finally:
                self.get().remove_reader(signals.descriptor)

    def _run_here(self, task: asyncio.Task[Any]) -> None:
        self._current = task
        task.add_done_callback(self._stop)
        try:
            with self._interrupts_between_turns(task):
                while not task.done():
                    self.get().run_forever()
                    if not task.done():
                        raise UsageError(_STOPPED)
        finally:
            self._current = None

    def _stop(self, task: asyncio.Task[Any]) -> None:
        if task is self._current:  # after a run with an exception, the next run may call this for the old task
            self.get().stop()

    @contextlib.contextmanager
    def _interrupts_between_turns(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """Let Ctrl-C raise in code of trajectories, and cancel the task elsewhere.

        An exception in asyncio's code may lose a wake-up: a trajectory would wait for ever.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        self._interrupts = 0

        def interrupt(*_: Any) -> None:
            self._interrupts += 1
            if has_turn.here or self._interrupts > 1:
                raise KeyboardInterrupt
            task.cancel()

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._interrupts:
            raise KeyboardInterrupt

    def _run_in_thread(self, task: asyncio.Task[Any], signals: SignalPipe) -> None:
        """Run the loop in its own thread; Ctrl-C in this thread cancels the task."""
        failures: list[BaseException] = []
        collector, context = collector_in_use(), contextvars.copy_context()
        self._wait_for_thread(signals)  # a thread of a call ended by two Ctrl-C
        self._ending, ending = os.pipe()

        def run() -> None:
            try:
                with collecting(collector):
                    self._run_here(task)
            except BaseException as error:
                failures.append(error)
            finally:
                os.close(ending)

        try:
            # No signal is handled inside this call: after any exception but its own, the thread runs.
            _thread.start_new_thread(context.run, (run,))
            self._wait_for_thread(signals)
        except BaseException:
            self.get().call_soon_threadsafe(task.cancel)
            self._wait_for_thread(signals)
            raise
        if failures:
            raise failures[0]

    def _wait_for_thread(self, signals: SignalPipe) -> None:
        """Wait for the end of the loop's thread, if any."""
        if self._ending != _NONE:
            signals.wait_for(self._ending)
            os.close(self._ending)
            self._ending = _NONE

    def cancel(self) -> set[asyncio.Task[Any]]:
        """Cancel all tasks; return those that have not ended after `CLEANUP_SECONDS`, and may never."""
        if not self.tasks:
            return set()
        tasks = tuple(self.tasks)
        for task in tasks:
            task.cancel()
        unfinished = self.run(_unfinished(tasks))
        for task in unfinished:
            self.abandon(task)
        return unfinished

    @property
    def has_abandoned(self) -> bool:
        """Whether an abandoned task still runs."""
        self._abandoned = [task for task in self._abandoned if not task.done()]
        return bool(self._abandoned)

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Abandon a task that does not end after its cancellation."""
        self.tasks.discard(task)
        self._abandoned.append(task)
        left: Any = task
        left._log_destroy_pending = False  # the worker has warned already; asyncio would again when the loop closes

    def close(self) -> None:
        loop = self._made
        if loop is not None:
            try:
                self.run(_end_all(loop))
            finally:
                self._made = None
                loop.close()


async def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the remaining tasks of environments and agents, and wait for them."""
    left = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CLEANUP_SECONDS)
    await loop.shutdown_asyncgens()


async def _unfinished(tasks: Sequence[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    return (await asyncio.wait(tasks, timeout=CLEANUP_SECONDS))[1]
