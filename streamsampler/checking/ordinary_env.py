"""Await the results of asynchronous environments and agents in turn, and measure their waits."""

from __future__ import annotations

import asyncio
import selectors
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, thread_time
from typing import Any

import gymnasium

from streamsampler.core.awaiting import is_awaitable
from streamsampler.core.errors import UsageError
from streamsampler.environments.asynchronous import is_asynchronous
from streamsampler.workers.waiting.awaited_env import AwaitedEnv

__all__ = ["MeasuredLoop", "OrdinaryEnv", "ordinary", "seconds_waited"]


class _MeasuringSelector(selectors.DefaultSelector):
    """Measures the waits of an event loop, and the turns between them, in which the loop runs code.

    Attributes:
        waited: Seconds of waits.
        longest_turn: The longest turn, in seconds of processor time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waited = self.longest_turn = self._turn_began = 0.0

    def begin_turn(self) -> None:
        self._turn_began = thread_time()

    def end_turn(self) -> None:
        # Processor time: other programs on the core do not make a turn longer.
        self.longest_turn = max(self.longest_turn, thread_time() - self._turn_began)

    def select(self, timeout: float | None = None) -> Any:
        self.end_turn()
        began = perf_counter()
        try:
            return super().select(timeout)
        finally:
            if timeout is None or timeout > 0:
                self.waited += perf_counter() - began
            self.begin_turn()


class MeasuredLoop:
    """Runs an event loop until a result arrives, and measures its waits.

    If a loop already runs in the calling thread, as in a notebook, this loop runs in another thread.
    """

    def __init__(self) -> None:
        self._selector, self._ran = _MeasuringSelector(), 0.0
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._loop.set_exception_handler(lambda _loop, _about: None)  # for tasks without an end

    @property
    def waited(self) -> float:
        """Seconds of waits, in which other trajectories in flight would have continued."""
        return self._selector.waited

    @property
    def longest_turn(self) -> float:
        """The longest turn in seconds of processor time, in which other trajectories would have stood still."""
        return self._selector.longest_turn

    def result_of(self, result: Any) -> Any:
        """Return a result, or the result of an awaitable."""
        if not is_awaitable(result):
            return result
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run(result)
        began = perf_counter()
        try:
            with ThreadPoolExecutor(1) as executor:
                return executor.submit(self._run, result).result()
        finally:  # the start of a thread belongs to neither environment nor agent
            self._selector.waited += perf_counter() - began - self._ran

    def _run(self, awaitable: Any) -> Any:
        began = perf_counter()
        self._selector.begin_turn()
        try:
            return self._loop.run_until_complete(awaitable)
        finally:
            self._selector.end_turn()
            self._ran = perf_counter() - began

    def close(self) -> None:
        self._loop.close()


class OrdinaryEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives an asynchronous environment ordinary methods, which return complete results.

    Args:
        env: The environment.
        loop: Runs its coroutines; None for a new loop, which is closed with the environment.

    Attributes:
        loop: The same.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], loop: MeasuredLoop | None = None) -> None:
        super().__init__(env)
        self.loop, self._owns_loop = loop or MeasuredLoop(), loop is None
        self._awaited: AwaitedEnv | None = None
        self._is_closed = False

    @property
    def awaited(self) -> AwaitedEnv:
        """The environment with `reset` and `step` as coroutines.

        Raises:
            UsageError: A wrapper would take a coroutine for a result.
        """
        if self._awaited is None:
            self._awaited = AwaitedEnv(self.env)
        return self._awaited

    @property
    def refusal(self) -> str:
        """Why samplers refuse its wrappers; empty if they accept them."""
        try:
            return str(self.awaited and "")
        except UsageError as error:
            return str(error)

    def without_wrappers(self) -> OrdinaryEnv:
        """Return the environment below all wrappers, with ordinary methods."""
        return OrdinaryEnv(self.env.unwrapped, self.loop)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment with the arguments that are not None."""
        given: dict[str, Any] = {"seed": seed, "options": options}
        arguments = {name: value for name, value in given.items() if value is not None}
        return self.loop.result_of(self.awaited.reset(**arguments))

    def step(self, action: Any) -> Any:
        return self.loop.result_of(self.awaited.step(action))

    def close(self) -> None:
        """Close the environment, once."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.loop.result_of(self.env.close())  # type: ignore[func-returns-value]
        finally:
            if self._owns_loop:
                self.loop.close()


def ordinary(env: Any) -> Any:
    """Return an asynchronous environment with ordinary methods, and any other environment unchanged."""
    return OrdinaryEnv(env) if is_asynchronous(env) else env


def seconds_waited(env: Any) -> float:
    """Return an environment's seconds of waits so far; 0 if they are not measured."""
    return env.loop.waited if isinstance(env, OrdinaryEnv) else 0.0
