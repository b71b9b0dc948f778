"""The event loop of a worker: it runs while the worker has a ticket, and shows on the status board when it waits."""

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
"""How long what was cancelled may take to end: closing the connections of an environment, for example."""

_STOPPED = (
    "the environment or the agent has stopped the event loop, on which other trajectories are in flight: return from "
    "the coroutine, or raise"
)


class _WaitingSelector(selectors.DefaultSelector):
    """Shows on the status board while the loop waits: a worker that waits does not hang, and one that computes may.

    Args:
        worker: The worker.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def select(self, timeout: float | None = None) -> Any:
        """Wait for events of files and sockets."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        row = self._worker.row
        # A worker that closes its environments has the time to close for that.
        row.set_phase(Phase.CLOSE if self._worker.phase is Phase.CLOSE else Phase.IN_FLIGHT)
        try:
            return super().select(timeout)
        finally:
            row.count_wait()
            row.set_phase(self._worker.phase)


@contextlib.contextmanager
def outside_loop() -> Iterator[None]:
    """Let code in the block find no running event loop, as where it is called before one runs; Ctrl-C raises in it."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    has_turn.here = True
    try:
        yield
    finally:
        has_turn.here = False
        asyncio._set_running_loop(loop)


class WorkerEventLoop:
    """Runs coroutines of one worker, at one time after another, on one event loop, which is made when it is needed.

    Where a loop runs already in the calling thread, as in a notebook, this one runs in a thread of its own meanwhile.

    Args:
        worker: The worker.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._made: asyncio.SelectorEventLoop | None = None
        self.tasks: set[asyncio.Task[Any]] = set()  # those that may go on after `run`
        self._left: list[asyncio.Task[Any]] = []
        self._in_hand: asyncio.Task[Any] | None = None  # what `run` runs
        self._interrupts = 0  # that came meanwhile
        self._ending = _NONE  # can be read when the thread has ended in which the loop runs; none

    def get(self) -> asyncio.SelectorEventLoop:
        """Return asyncio's event loop, which is made when it is needed."""
        if self._made is None:
            self._made = asyncio.SelectorEventLoop(_WaitingSelector(self._worker))
        return self._made

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task, which goes on while `run` runs."""
        task = self.get().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def run(self, coroutine: Coroutine[Any, Any, ResultT], on_message: Callable[[], bool] | None = None) -> ResultT:
        """Run a coroutine to its end, and all tasks that were started meanwhile.

        Args:
            coroutine: The coroutine.
            on_message: Called when a message for the worker may have come; returns whether to call it again.

        Raises:
            UsageError: User code stopped the loop.
            BaseException: What the coroutine raises.
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
        """Wait for something, while no trajectory is in flight."""

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
        self._in_hand = task
        task.add_done_callback(self._stop)
        try:
            with self._interrupts_between_turns(task):
                while not task.done():
                    self.get().run_forever()
                    if not task.done():
                        raise UsageError(_STOPPED)
        finally:
            self._in_hand = None

    def _stop(self, task: asyncio.Task[Any]) -> None:
        if task is self._in_hand:  # of a run that an exception ended, this may be called in the next one
            self.get().stop()

    @contextlib.contextmanager
    def _interrupts_between_turns(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """Let Ctrl-C raise in code of trajectories, and where asyncio's own code runs cancel a task.

        An exception in asyncio's code may lose a wake-up, after which a trajectory would never go on.
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
        """Run the loop in a thread of its own; Ctrl-C, which comes in this one, cancels the task."""
        failures: list[BaseException] = []
        collector, context = collector_in_use(), contextvars.copy_context()
        self._wait_for_thread(signals)  # one of a call that two Ctrl-C ended
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
            # Between this line and its exceptions no signal comes: whatever else is raised, the thread runs.
            _thread.start_new_thread(context.run, (run,))
            self._wait_for_thread(signals)
        except BaseException:
            self.get().call_soon_threadsafe(task.cancel)
            self._wait_for_thread(signals)
            raise
        if failures:
            raise failures[0]

    def _wait_for_thread(self, signals: SignalPipe) -> None:
        """Wait until the thread has ended in which the loop runs, if there is one."""
        if self._ending != _NONE:
            signals.wait_for(self._ending)
            os.close(self._ending)
            self._ending = _NONE

    def cancel(self) -> set[asyncio.Task[Any]]:
        """Cancel all tasks, and let them end; return those that have not ended in `CLEANUP_SECONDS`, and may never."""
        if not self.tasks:
            return set()
        tasks = tuple(self.tasks)
        for task in tasks:
            task.cancel()
        unfinished = self.run(_unfinished(tasks))
        for task in unfinished:
            self.leave(task)
        return unfinished

    @property
    def has_left(self) -> bool:
        """Whether a task goes on for which nothing waits any more."""
        self._left = [task for task in self._left if not task.done()]
        return bool(self._left)

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Wait no more for a task that does not end although it was cancelled."""
        self.tasks.discard(task)
        self._left.append(task)
        left: Any = task
        left._log_destroy_pending = False  # or asyncio complains when the loop is closed: the warning is given already

    def close(self) -> None:
        """Close the loop, on which nothing runs."""
        loop = self._made
        if loop is not None:
            try:
                self.run(_end_all(loop))
            finally:
                self._made = None
                loop.close()


async def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what environments and agents have started and left, and let it end."""
    left = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CLEANUP_SECONDS)
    await loop.shutdown_asyncgens()


async def _unfinished(tasks: Sequence[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    return (await asyncio.wait(tasks, timeout=CLEANUP_SECONDS))[1]
