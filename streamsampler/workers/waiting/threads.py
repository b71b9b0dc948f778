"""Run plain environments on threads, so that a step waiting in C does not block the event loop.

Each environment has its own thread for constructor, resets, steps and closing: some libraries allow an object only on
its constructor's thread. The loop's thread awaits resets and steps, and blocks for constructors and closing. A running
thread does not keep the process alive, and cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from types import CoroutineType
from typing import Any

import numpy as np

from streamsampler.core.awaiting import is_awaitable, run_alone
from streamsampler.core.errors import UsageError
from streamsampler.core.timing import Collector, collecting, collector_in_use, merge_gauges
from streamsampler.environments.asynchronous import is_asynchronous
from streamsampler.environments.closing import closing_with
from streamsampler.environments.updates import AnyEnv, EnvUpdate, apply_env_update, describe
from streamsampler.workers.waiting.signals import SignalPipe

__all__ = ["LEAVE_OUT_THREADS", "EnvThread", "EnvsOnThreads", "LateCancelledError", "ThreadedEnv", "has_strays"]

LEAVE_OUT_THREADS = (
    "is asynchronous (async def reset or step), and runs on the event loop without threads: leave threads out of "
    "worker_args"
)
_ERRORS_ARE_OF_THREADS = np.lib.NumpyVersion(np.__version__) < "2.0.0"  # later versions have np.errstate in the context


class LateCancelledError(asyncio.CancelledError):
    """A call on a thread was cancelled, but its function has returned."""


class _ThreadCall:
    """A function call on a thread, which calls `wake` after it.

    `context` has the caller's context variables, which the function may change.
    """

    def __init__(self, function: Callable[[], Any], wake: Callable[[], object]) -> None:
        self._function, self._wake = function, wake
        self._result: Any = None
        self._error: BaseException | None = None
        self.context: Context = copy_context()
        self.has_ended = False

    @property
    def has_raised(self) -> bool:
        return self._error is not None

    def run(self) -> None:
        try:
            self._result = self.context.run(self._function)
        except BaseException as error:
            self._error = error
        self._function = _nothing  # the function holds the environment
        self.has_ended = True
        self._wake()

    def result(self) -> Any:
        """Return the function's result, or raise its exception; once."""
        error, self._error = self._error, None
        try:
            if isinstance(error, asyncio.CancelledError):
                # The event loop would take it for a cancelled trajectory.
                what = (
                    "asyncio.CancelledError was raised on an environment's thread, although nothing was cancelled there"
                )
                raise RuntimeError(what) from error  # noqa: TRY004 - no argument has a wrong type
            if error is not None:
                raise error
        finally:
            del error  # the traceback refers to this frame
        result, self._result = self._result, None
        return result


class _MeasuresOnThread(Collector):
    """Measures on a thread for the calling thread: in its phase, and in its `timed` block.

    Several threads may enter and leave blocks independently. Gauges are merged after each call.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__([0], 0, ())

    def begin(self, caller: Collector) -> None:
        """Begin a call with the caller's current phase; on the caller's thread."""
        self.words = [caller.words[caller.word]]
        self.outermost, self.used, self.here = caller.outermost, caller.used, caller.here

    def end(self, caller: Collector) -> None:
        """End the call, on the caller's thread."""
        caller.here = self.here
        if self.gauges:
            merge_gauges(caller.gauges, self.gauges)
            self.gauges.clear()


class EnvThread:
    """A thread that runs calls in order; it ends after `end`, or with the last reference to this object."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._measures = _MeasuresOnThread()
        self._last: _ThreadCall | None = None
        self._waiting: _LoopWaiting | None = None
        self._stop = weakref.finalize(self, self._calls.put, None)
        self._stop.atexit = False
        target = partial(_run_calls, self._calls, self._measures)
        threading.Thread(target=target, name="streamsampler-environment", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        return self._last is not None and not self._last.has_ended

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the thread, and await its result.

        A cancelled call waits for the function's end, unless the thread is abandoned. If the function then returns, it
        raises LateCancelledError.
        """
        waiting = self._waiting = _LoopWaiting(asyncio.get_running_loop())
        call = self._enqueue(function, waiting.wake)
        try:
            await waiting.future
        except asyncio.CancelledError as cancelled:
            await waiting.end_of(call)
            if not call.has_ended:
                raise
            if not call.has_raised:
                raise LateCancelledError from cancelled
            try:
                call.result()
            except Exception:
                raise  # the environment may be in any state, so it is replaced
            except BaseException:
                raise cancelled from None  # an interrupt would end the cancelling code
        return self._finished(call)

    def call_now(self, function: Callable[[], Any]) -> Any:
        """Call a function on the thread, and block until its result is there.

        A signal handler's exception ends the wait; the function runs on.
        """
        with SignalPipe() as signals:
            ended, ending = os.pipe()
            try:
                # The thread closes its end itself: if this thread did, the number might belong to another file by then.
                call = self._enqueue(function, partial(os.close, ending))
                signals.wait_for(ended)
            finally:
                os.close(ended)
        return self._finished(call)

    def end(self, last: Callable[[], object] | None = None) -> None:
        """End the thread after all calls, and after a last function; its exceptions are ignored."""
        if last is not None:
            self._enqueue(last, _nobody_waits)
        self._stop()

    def abandon(self, last: Callable[[], object]) -> None:
        """End the thread likewise; a cancelled call stops waiting for its function."""
        if self._waiting is not None:
            self._waiting.stop_waiting()
        self.end(last)

    def _enqueue(self, function: Callable[[], Any], wake: Callable[[], object]) -> _ThreadCall:
        if _ERRORS_ARE_OF_THREADS:
            function = partial(_with_numpy_errors, np.geterr(), function)
        if not self.is_busy:  # a running call still uses the measures
            self._measures.begin(collector_in_use())
        call = self._last = _ThreadCall(function, wake)
        self._calls.put(call)
        return call

    def _finished(self, call: _ThreadCall) -> Any:
        """Return the result of an ended call, and apply its changes of context variables."""
        self._measures.end(collector_in_use())
        for variable, value in call.context.items():
            if variable.get(None) is not value:
                variable.set(value)
        return call.result()


class _LoopWaiting:
    """Waits on the running event loop for the end of a call on a thread.

    `future` is done when the call has ended, or the wait was abandoned.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_abandoned = False
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed if the environment was abandoned
            self._loop.call_soon_threadsafe(self._set)

    def stop_waiting(self) -> None:
        """End the wait before the call ends."""
        self._is_abandoned = True
        self._set()

    def _set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    async def end_of(self, call: _ThreadCall) -> None:
        """Wait for the end of a call, in spite of cancellations; see `stop_waiting`."""
        while not (call.has_ended or self._is_abandoned):
            self.future = self._loop.create_future()  # `wake` runs after `has_ended` is set, so it finds this future
            try:
                await self.future
            except asyncio.CancelledError:
                continue


def _nothing() -> None: ...


def _nobody_waits() -> None:
    """Do nothing: the caller does not wait."""


def _run_calls(calls: SimpleQueue[_ThreadCall | None], measures: Collector) -> None:
    with collecting(measures):
        while (call := calls.get()) is not None:
            call.run()
            del call  # frees the result, which may be large


def _with_numpy_errors(errors: Any, function: Callable[[], Any]) -> Any:
    np.seterr(**errors)
    return function()


class ThreadedEnv:
    """An environment with `reset` and `step` as coroutines, which await its thread; all other attributes are its own.

    Attributes:
        given: The environment.
    """

    def __init__(self, env: AnyEnv, thread: EnvThread) -> None:
        self.given = env
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    async def reset(self, **arguments: Any) -> Any:
        return await self._thread.call(partial(_plain, self.given.reset, **arguments))

    async def step(self, action: Any) -> Any:
        return await self._thread.call(partial(_plain, self.given.step, action))

    async def call_on_thread(self, function: Callable[[AnyEnv], Any]) -> Any:
        return await self._thread.call(partial(function, self.given))


def _plain(function: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
    """Return the result of a reset or step, on its thread; raise a UsageError for an awaitable."""
    result = function(*args, **arguments)
    if not is_awaitable(result):
        return result
    if isinstance(result, CoroutineType):
        result.close()  # or Python warns that nothing has awaited it
    raise UsageError(
        f"{getattr(function, '__qualname__', function)} returned an awaitable: leave threads out of worker_args, "
        "so that the event loop awaits it"
    )


class EnvsOnThreads:
    """Makes, awaits and closes environments on threads; `EnvsOnLoop` is the counterpart.

    Attributes:
        why_still_running: Why a cancelled trajectory may not end, for a warning.
    """

    why_still_running = (
        "its reset or step is on a thread, which cannot be cancelled, and takes longer than a second. Set a time limit "
        "for its waits"
    )

    def __init__(self) -> None:
        self._threads: dict[int, tuple[AnyEnv, EnvThread]] = {}  # by the environment's `id`

    def apply(self, update: EnvUpdate, old_env: AnyEnv | None) -> AnyEnv:
        """Apply an update on the old environment's thread, or on a new thread, which ends if the update raises."""
        _, thread = self._threads.pop(id(old_env), (None, None))
        thread = thread or EnvThread()
        made: list[AnyEnv] = []
        try:
            thread.call_now(partial(_apply, update, old_env, made))
        except BaseException:
            # After Ctrl-C the constructor may still run: the environment is closed after it.
            thread.end(partial(_close_all, made))
            raise
        [env] = made
        self._threads[id(env)] = env, thread
        return env

    def awaited(self, env: AnyEnv) -> ThreadedEnv:
        return ThreadedEnv(env, self._threads[id(env)][1])

    def close(self, env: AnyEnv) -> None:
        _, thread = self._threads.pop(id(env), (None, None))
        if thread is None:
            return  # already closed
        if thread.is_busy:  # Ctrl-C has ended the trajectory, but not its step
            thread.end(partial(_close_all, [env]))
            return
        try:
            thread.call_now(partial(_close, env))
        finally:
            thread.end()

    def begin_close(self, env: AnyEnv) -> None:
        self.close(env)

    def abandon(self, env: AnyEnv) -> None:
        _, thread = self._threads.pop(id(env), (None, None))
        if thread is not None:
            thread.abandon(partial(_close_all, [env]))
            _strays.append(thread)


_strays: list[EnvThread] = []


def has_strays() -> bool:
    """Return whether an abandoned environment of this process still runs: it may draw from the global generators."""
    _strays[:] = [thread for thread in _strays if thread.is_busy]
    return bool(_strays)


def _apply(update: EnvUpdate, old_env: AnyEnv | None, made: list[AnyEnv]) -> None:
    with closing_with(run_alone):  # no loop runs on this thread
        env = apply_env_update(update, old_env, several=True, waits=True)
    if is_asynchronous(env):
        _close(env)
        raise UsageError(f"{describe(update)} {LEAVE_OUT_THREADS}")
    made.append(env)


def _close(env: AnyEnv) -> None:
    closing: Any = env.close()  # type: ignore[func-returns-value]
    if is_awaitable(closing):
        run_alone(closing)


def _close_all(envs: list[AnyEnv]) -> None:
    for env in envs:
        _close(env)
