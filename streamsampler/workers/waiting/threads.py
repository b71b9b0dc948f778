"""Run plain environments on threads, so that a step that waits in C does not hold up the event loop.

Each environment has a thread of its own, on which it is made, reset, stepped and closed: some libraries allow an object
to be used on the thread that made it, and on no other. The loop's thread asks for a call and awaits its result, or
blocks until it is there, where an environment is made or closed. The process may end while a thread runs.
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
    "is asynchronous (async def reset or step), so it waits on the event loop, and needs no threads: leave threads out "
    "of worker_args"
)
_ERRORS_ARE_OF_THREADS = np.lib.NumpyVersion(np.__version__) < "2.0.0"  # later ones have np.errstate in the context


class LateCancelledError(asyncio.CancelledError):
    """A call on a thread was cancelled, and has returned all the same."""


class _ThreadCall:
    """A call of a function on a thread.

    Args:
        function: The function.
        wake: Called on the thread after the call.

    Attributes:
        context: The context variables of the caller, which the function may change.
        has_ended: Whether the result is there.
    """

    def __init__(self, function: Callable[[], Any], wake: Callable[[], object]) -> None:
        self._function, self._wake = function, wake
        self._result: Any = None
        self._error: BaseException | None = None
        self.context: Context = copy_context()
        self.has_ended = False

    @property
    def has_raised(self) -> bool:
        """Whether the function has raised something, and `result` has not."""
        return self._error is not None

    def run(self) -> None:
        """Call the function."""
        try:
            self._result = self.context.run(self._function)
        except BaseException as error:
            self._error = error
        self._function = _nothing  # which holds the environment
        self.has_ended = True
        self._wake()

    def result(self) -> Any:
        """Return what the function returned, or raise what it raised; once."""
        error, self._error = self._error, None
        try:
            if isinstance(error, asyncio.CancelledError):
                # The event loop would take it for the end of a trajectory that is not needed any more.
                what = "asyncio.CancelledError was raised on an environment's thread, and nothing was cancelled there"
                raise RuntimeError(what) from error  # noqa: TRY004 - no argument has a wrong type
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame
        result, self._result = self._result, None
        return result


class _MeasuresOnThread(Collector):
    """Measures on a thread what belongs to the thread that asks for calls: in its phase, and in its `timed` block.

    Blocks are those of the other thread: entries and exits of several threads do not disturb one another. Gauges do, so
    they are handed over after a call.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__([0], 0, ())

    def begin(self, caller: Collector) -> None:
        """Begin a call, on the caller's thread: the phase is the caller's as it is now."""
        self.words = [caller.words[caller.word]]
        self.outermost, self.used, self.here = caller.outermost, caller.used, caller.here

    def end(self, caller: Collector) -> None:
        """End the call, on the caller's thread."""
        caller.here = self.here
        if self.gauges:
            merge_gauges(caller.gauges, self.gauges)
            self.gauges.clear()


class EnvThread:
    """A thread that runs one call after another.

    It ends when `end` is called, and when nothing refers to this object any more.
    """

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
        """Whether a call has not ended."""
        return self._last is not None and not self._last.has_ended

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the thread, and await its result.

        A thread cannot be cancelled: where this is, it waits for the end of the call, unless that is abandoned.

        Raises:
            LateCancelledError: This was cancelled, and the function has returned.
            BaseException: What the function raises.
        """
        waiting = self._waiting = _LoopWaiting(asyncio.get_running_loop())
        call = self._put(function, waiting.wake)
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
                raise  # the environment may be in any state, and is to be replaced
            except BaseException:
                raise cancelled from None  # an interrupt would end what cancels this
        return self._taken(call)

    def call_now(self, function: Callable[[], Any]) -> Any:
        """Call a function on the thread, and block until its result is there.

        Raises:
            BaseException: What the function raises; or what a signal's handler does, and the call goes on.
        """
        with SignalPipe() as signals:
            ended, ending = os.pipe()
            try:
                # The thread closes its end. Were it this one's to close, the number might be another file's by then.
                call = self._put(function, partial(os.close, ending))
                signals.wait_for(ended)
            finally:
                os.close(ended)
        return self._taken(call)

    def end(self, last: Callable[[], object] | None = None) -> None:
        """End the thread after the calls that were asked for, and after a last one, whose exceptions nobody sees."""
        if last is not None:
            self._put(last, _nobody_waits)
        self._stop()

    def abandon(self, last: Callable[[], object]) -> None:
        """End the thread likewise, and await the call that goes on no more, which is cancelled."""
        if self._waiting is not None:
            self._waiting.give_up()
        self.end(last)

    def _put(self, function: Callable[[], Any], wake: Callable[[], object]) -> _ThreadCall:
        if _ERRORS_ARE_OF_THREADS:
            function = partial(_with_numpy_errors, np.geterr(), function)
        if not self.is_busy:  # otherwise the measures are still those of the call that goes on
            self._measures.begin(collector_in_use())
        call = self._last = _ThreadCall(function, wake)
        self._calls.put(call)
        return call

    def _taken(self, call: _ThreadCall) -> Any:
        """Return the result of a call that has ended, with what it has changed for its caller."""
        self._measures.end(collector_in_use())
        for variable, value in call.context.items():
            if variable.get(None) is not value:
                variable.set(value)
        return call.result()


class _LoopWaiting:
    """Waits on an event loop for the end of a call on a thread.

    Args:
        loop: The loop, which runs in this thread.

    Attributes:
        future: Has a result when the call has ended, or is waited for no more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._has_given_up = False
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        """Say that the call has ended, on its thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed where its worker has abandoned this environment
            self._loop.call_soon_threadsafe(self._set)

    def give_up(self) -> None:
        """Let `end_of` return, before the call has ended."""
        self._has_given_up = True
        self._set()

    def _set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    async def end_of(self, call: _ThreadCall) -> None:
        """Wait for the end of a call, however often this is cancelled; see `give_up`."""
        while not (call.has_ended or self._has_given_up):
            self.future = self._loop.create_future()  # `wake` comes after `has_ended`, so it finds this one
            try:
                await self.future
            except asyncio.CancelledError:
                continue


def _nothing() -> None:
    """Do nothing."""


def _nobody_waits() -> None:
    """Wake nobody: the caller does not wait."""


def _run_calls(calls: SimpleQueue[_ThreadCall | None], measures: Collector) -> None:
    with collecting(measures):
        while (call := calls.get()) is not None:
            call.run()
            del call  # with its result, which may be large


def _with_numpy_errors(errors: Any, function: Callable[[], Any]) -> Any:
    np.seterr(**errors)
    return function()


class ThreadedEnv:
    """An environment whose `reset` and `step` are coroutines that await its thread; all else is the environment's.

    Args:
        env: The environment.
        thread: Its thread.

    Attributes:
        given: The environment.
    """

    def __init__(self, env: AnyEnv, thread: EnvThread) -> None:
        self.given = env
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    async def reset(self, **arguments: Any) -> Any:
        """Reset the environment; the arguments are those of Gymnasium's `reset`."""
        return await self._thread.call(partial(_plain, self.given.reset, **arguments))

    async def step(self, action: Any) -> Any:
        """Step the environment."""
        return await self._thread.call(partial(_plain, self.given.step, action))

    async def call_on_thread(self, function: Callable[[AnyEnv], Any]) -> Any:
        """Call a function with the environment on its thread; see `workers.resets.carry_out`."""
        return await self._thread.call(partial(function, self.given))


def _plain(function: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
    """Return what a reset or a step returns, on its thread.

    Raises:
        UsageError: It is to be awaited.
    """
    result = function(*args, **arguments)
    if not is_awaitable(result):
        return result
    if isinstance(result, CoroutineType):
        result.close()  # or Python warns that nothing has awaited it
    raise UsageError(
        f"{getattr(function, '__qualname__', function)} returned something to be awaited: leave threads out of "
        "worker_args, and it is awaited on the event loop"
    )


class EnvsOnThreads:
    """Makes, awaits and closes environments on threads; `EnvsOnLoop` does so without.

    Attributes:
        goes_on: Why a trajectory that was cancelled may not end.
    """

    goes_on = (
        "its reset or step is on a thread, which cannot be cancelled, and takes longer than a second. Give what it "
        "waits for a time limit"
    )

    def __init__(self) -> None:
        self._threads: dict[int, tuple[AnyEnv, EnvThread]] = {}  # by the environment's `id`

    def apply(self, update: EnvUpdate, old_env: AnyEnv | None) -> AnyEnv:
        """Apply an update: on the thread of the old environment, which is closed there, or on a new one.

        Raises:
            UsageError: The environment is asynchronous.
            Exception: What the update raises; then the thread ends.
        """
        _, thread = self._threads.pop(id(old_env), (None, None))
        thread = thread or EnvThread()
        made: list[AnyEnv] = []
        try:
            thread.call_now(partial(_apply, update, old_env, made))
        except BaseException:
            # Ctrl-C may come while the environment is being made: then it is closed when it is there.
            thread.end(partial(_close_all, made))
            raise
        [env] = made
        self._threads[id(env)] = env, thread
        return env

    def awaited(self, env: AnyEnv) -> ThreadedEnv:
        """Return what resets and steps an environment on its thread."""
        return ThreadedEnv(env, self._threads[id(env)][1])

    def close(self, env: AnyEnv) -> None:
        """Close an environment on its thread, which ends."""
        _, thread = self._threads.pop(id(env), (None, None))
        if thread is None:
            return  # it was closed
        if thread.is_busy:  # Ctrl-C has ended the trajectory, and not its step
            thread.end(partial(_close_all, [env]))
            return
        try:
            thread.call_now(partial(_close, env))
        finally:
            thread.end()

    def begin_close(self, env: AnyEnv) -> None:
        """Do the same."""
        self.close(env)

    def abandon(self, env: AnyEnv) -> None:
        """Close an environment when its reset or step has ended, and do not wait for that."""
        _, thread = self._threads.pop(id(env), (None, None))
        if thread is not None:
            thread.abandon(partial(_close_all, [env]))
            _strays.append(thread)


_strays: list[EnvThread] = []


def has_strays() -> bool:
    """Return whether an environment in this process that was abandoned has not ended its reset or step.

    It may draw from the global generators, which are those of all workers in this process.
    """
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
