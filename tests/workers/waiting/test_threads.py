"""Plain environments on threads: the same batches as without, side by side, and an end to everything."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import functools
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import (
    LocalSampler,
    MultiprocessingSampler,
    NotReproducibleError,
    RolloutError,
    SetParameters,
    SetTaskUpdate,
    UsageError,
    timed,
)
from streamsampler.workers.waiting.threads import EnvThread
from tests.patience import closing_patiently
from tests.tiers import mostly_slow
from tests.workers.waiting.envs import Breaks, Draws, DrawsLater, Game, Waits
from tests.workers.waiting.test_async_worker import SEED, Shown, assert_same_batches, twin

SECONDS = 60.0  # after which a test that waits for a thread fails
OF_ENVIRONMENTS = "streamsampler-environment"


def make(kind: Any, agent: Any, env: Any, *, in_flight: int = 7, **options: Any) -> Any:
    """Return a sampler of workers with so many trajectories in flight, on threads."""
    if kind is MultiprocessingSampler:
        options = closing_patiently(options)
    return kind(agent, env, seed=SEED, worker_args={"in_flight": in_flight, "threads": True}, **options)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Threads that were told to end do so in their own time; one that was not ends this test."""
    yield
    for thread in threads_of_environments():
        thread.join(SECONDS)
        assert not thread.is_alive()


def threads_of_environments() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == OF_ENVIRONMENTS]


class Blocks(Game):
    """Blocks its thread, in one step for longer than in another."""

    n_waits = 0

    def _wait(self) -> None:
        self.n_waits += 1
        time.sleep(self.n_waits * 7 % 5 * 1e-4)

    def reset(self, **arguments: Any) -> Any:
        self._wait()
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self._wait()
        return super().step(action)


@pytest.mark.parametrize("in_flight", mostly_slow([7, 1, 50]))
@pytest.mark.parametrize("n_workers", mostly_slow([3, 1, 2]))
@pytest.mark.parametrize("kind", mostly_slow([LocalSampler, MultiprocessingSampler]))
def test_batches_are_those_of_the_twin(kind: Any, n_workers: int, in_flight: int) -> None:
    agent = DrawsLater() if in_flight == 7 else Draws()
    with make(kind, agent, Blocks, in_flight=in_flight, n_workers=n_workers) as sampler, twin() as expected:
        assert_same_batches(sampler, expected)


@pytest.mark.slow
def test_a_killed_worker_changes_nothing() -> None:
    with make(MultiprocessingSampler, Draws(), Blocks, n_workers=2) as sampler, twin() as expected:
        stream = sampler.stream(n_trajectories=300)
        batches = [next(stream)]
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        batches += list(stream)
        assert type(batches[0]).concatenate(batches) == expected.obtain_trajectories(300)


class Meets(Game):
    """Goes on when five are in their steps at the same time."""

    meeting = threading.Barrier(5, timeout=SECONDS)

    def reset(self, **arguments: Any) -> Any:
        result = super().reset(**arguments)
        self.length = 3
        return result

    def step(self, action: Any) -> Any:
        self.meeting.wait()
        return super().step(action)


def test_steps_run_at_the_same_time() -> None:
    with make(LocalSampler, Draws(), Meets, in_flight=5, check=None) as sampler:
        assert sampler.obtain_trajectories(5).n_timesteps == 15


class OnOneThread(Game):
    """Is used on the thread that made it, and nowhere else."""

    made: list[threading.Thread] = []  # noqa: RUF012 - of all

    def __init__(self, task: int = 0) -> None:
        self._thread, self.task = threading.current_thread(), task
        self.made.append(self._thread)

    def _look(self) -> None:
        assert threading.current_thread() is self._thread is not threading.main_thread()

    def reset(self, **arguments: Any) -> Any:
        self._look()
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self._look()
        observation, reward, *rest = super().step(action)
        return observation, reward + self.task, *rest

    def set_task(self, task: int) -> None:
        self._look()
        self.task = task

    def close(self) -> None:
        self._look()


class Set(OnOneThread):
    """Has a method of its own for parameters."""

    def set_parameters(self, parameters: dict[str, Any]) -> None:
        self._look()
        self.task = parameters["task"]


class TaskOf(Game):
    """Is told its task as `OnOneThread` is, on any thread."""

    def __init__(self, task: int = 0) -> None:
        self.task = task

    def set_task(self, task: int) -> None:
        self.task = task

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + self.task, *rest


class SetToo(TaskOf):
    def set_parameters(self, parameters: dict[str, Any]) -> None:
        self.task = parameters["task"]


def test_everything_of_an_environment_is_on_its_thread() -> None:
    """Its construction, tasks and parameters, updates and its end included."""
    OnOneThread.made.clear()
    options: dict[str, Any] = {"check": None, "in_flight": 4}
    with make(LocalSampler, Draws(), OnOneThread, **options) as sampler, twin(env=TaskOf) as expected:
        assert sampler.obtain_trajectories(20) == expected.obtain_trajectories(20)
        assert len(set(OnOneThread.made)) == len(OnOneThread.made) == 4
        assert sampler.obtain_trajectories(3, tasks=[1, 2, 3]) == expected.obtain_trajectories(3, tasks=[1, 2, 3])
        for task in (5, 6):
            updates = [SetTaskUpdate(env, task) for env in (OnOneThread, TaskOf)]
            batches = [
                each.obtain_trajectories(20, env_update=update)
                for each, update in zip((sampler, expected), updates, strict=True)
            ]
            assert batches[0] == batches[1]
        tasks = [SetParameters({"task": 7}), SetParameters({"task": 8})]
        batches = [
            each.obtain_trajectories(2, env_update=env, tasks=tasks)
            for each, env in ((sampler, Set), (expected, SetToo))
        ]
        assert batches[0] == batches[1]
        assert set(threads_of_environments()) < set(OnOneThread.made)
    assert len(set(OnOneThread.made)) > 4


@pytest.mark.parametrize("in_flight", [1, 20])
def test_hooks_drop_if_wrappers_and_limits(in_flight: int) -> None:
    """Hooks are called on the worker's own thread."""
    options: dict[str, Any] = {"drop_if": lambda info: info.get("length") == 7, "max_episode_length": 9}
    kinds: list[tuple[str, Any]] = [("Blocks", Blocks), ("Plain", Game)]
    for name, kind in kinds:
        gymnasium.register(f"ThreadsTest/{name}-v0", kind, max_episode_steps=8)
    try:
        hooks = ShownHere(threading.current_thread().name)
        blocks, plain = "ThreadsTest/Blocks-v0", "ThreadsTest/Plain-v0"
        with (
            make(LocalSampler, Draws(), blocks, in_flight=in_flight, hooks=hooks, **options) as sampler,
            twin(env=plain, hooks=hooks, **options) as expected,
        ):
            for _ in range(2):
                batch = sampler.obtain_trajectories(30, reset_options={"given": 1})
                assert batch == expected.obtain_trajectories(30, reset_options={"given": 1})
                assert "shown" in batch.episode_infos
                assert batch.truncated.any()
    finally:
        for name in ("Blocks", "Plain"):
            del gymnasium.registry[f"ThreadsTest/{name}-v0"]


class ShownHere(Shown):
    def __init__(self, thread: str) -> None:
        self._thread = thread

    def on_timestep(self, context: Any) -> None:
        assert threading.current_thread().name == self._thread
        super().on_timestep(context)


def test_within_a_running_loop() -> None:
    async def cell() -> Any:
        with make(LocalSampler, DrawsLater(), Blocks) as sampler:
            return sampler.obtain_samples(100)

    with twin() as expected:
        assert asyncio.run(cell()) == expected.obtain_samples(100)


class BreaksOnThread(Blocks, Breaks):
    """Does so on its thread."""


@pytest.mark.parametrize("in_flight", mostly_slow([1, 50]))
def test_what_raises(in_flight: int) -> None:
    """As in the twin, and with the environment's lines in the traceback; or those trajectories are left out."""
    errors = []
    for sampler in (make(LocalSampler, Draws(), BreaksOnThread, in_flight=in_flight), twin(env=Breaks)):
        with sampler, pytest.raises(RolloutError, match="broken in a trajectory of") as raised:
            sampler.obtain_trajectories(40)
        cause = raised.value.__cause__
        assert 'raise ValueError(f"broken in' in "".join(traceback.format_exception(cause))
        errors.append((raised.value.trajectory, raised.value.phase, str(cause)))
    assert errors[0] == errors[1]
    dropping = make(LocalSampler, Draws(), BreaksOnThread, in_flight=in_flight, on_failure="drop")
    with dropping as sampler, twin(env=Breaks, on_failure="drop") as expected:
        for _ in range(2):
            assert sampler.obtain_trajectories(40) == expected.obtain_trajectories(40)
        assert sampler.stats.dropped == expected.stats.dropped
        assert sampler.stats.dropped


class Raises(Game):
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def step(self, action: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (StopIteration(3), "StopIteration"),
        (SystemExit(3), "SystemExit: 3"),
        (
            asyncio.CancelledError(),
            "CancelledError was raised on an environment's thread, although nothing was cancelled",
        ),
    ],
)
@pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])
def test_what_raises_otherwise(kind: Any, error: BaseException, match: str) -> None:
    env = functools.partial(Raises, error)
    with make(kind, Draws(), env, n_workers=1) as sampler:
        with pytest.raises(RolloutError, match=match):
            sampler.obtain_trajectories(3)
        assert len(sampler.obtain_trajectories(3, env_update=Game)) == 3


def test_an_interrupt_from_a_step_passes() -> None:
    env = functools.partial(Raises, KeyboardInterrupt())
    with make(LocalSampler, Draws(), env, check=None) as sampler:
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(3)
        assert len(sampler.obtain_trajectories(3, env_update=Game)) == 3


class FailsToBeMade(Game):
    def __init__(self) -> None:
        raise OSError("no such device")


def test_a_constructor_that_raises() -> None:
    with make(LocalSampler, Draws(), FailsToBeMade) as sampler:
        with pytest.raises(RolloutError, match="no such device") as raised:
            sampler.obtain_trajectories(3)
        assert raised.value.phase == "making the environment"


class DrawsFromAll(Blocks):
    """Draws from the global generators in resets and steps."""

    def reset(self, **arguments: Any) -> Any:
        self.drawn = random.random() + np.random.rand()
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + self.drawn + random.random() + np.random.rand(), *rest


class Remembers(Blocks):
    """Begins where it ended."""

    total = 0

    def step(self, action: Any) -> Any:
        Remembers.total += 1
        observation, _, *rest = super().step(action)
        return observation, float(Remembers.total), *rest


class Returns(Game):
    """Returns a coroutine from a method that is none."""

    def step(self, action: Any) -> Any:
        async def later() -> Any:
            return Game.step(self, action)

        return later()


@pytest.mark.parametrize(
    ("env", "error", "match"),
    [
        (DrawsFromAll, RolloutError, "drew from a global generator.*while several trajectories were in flight"),
        (Returns, RolloutError, "Returns.step returned an awaitable: leave threads out"),
        (lambda: Waits(), RolloutError, "is asynchronous.*leave threads out"),
        (Remembers, NotReproducibleError, "before and after another trajectory"),
    ],
)
@pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])
def test_what_environments_may_not_do(kind: Any, env: Any, error: Any, match: str) -> None:
    options: dict[str, Any] = {"check": None if env is DrawsFromAll else "error", "n_workers": 1}
    with make(kind, Draws(), env, **options) as sampler, pytest.raises(error, match=match):
        sampler.obtain_trajectories(10)


@pytest.mark.parametrize("kind", mostly_slow([LocalSampler, MultiprocessingSampler]))
def test_with_one_in_flight_environments_may_draw_from_the_global_generators(kind: Any) -> None:
    with make(kind, Draws(), DrawsFromAll, in_flight=1, n_workers=1) as sampler, twin(env=DrawsFromAll) as expected:
        for _ in range(2):
            assert sampler.obtain_trajectories(60) == expected.obtain_trajectories(60)


def test_arguments() -> None:
    for threads in ("yes", 1, None):
        with pytest.raises(UsageError, match="threads must be True or False"):
            LocalSampler(Draws(), Game, worker_args={"in_flight": 3, "threads": threads})
    with pytest.raises(UsageError, match="leave threads out of worker_args"):
        make(LocalSampler, Draws(), Waits)
    with LocalSampler(Draws(), Meets, seed=SEED, worker_args={"threads": True}, check=None) as sampler:
        assert sampler.layout.rows == 16
        assert len(sampler.obtain_trajectories(5)) == 5
    with LocalSampler(Draws(), Game, seed=SEED, worker_args={"in_flight": 3, "threads": False}) as sampler:
        assert len(sampler.obtain_trajectories(5)) == 5
        assert not threads_of_environments()


class Counted(Blocks):
    """Counts what it was asked for: additions to lists are not lost among threads."""

    resets: list[int] = []  # noqa: RUF012 - of all
    steps: list[int] = []  # noqa: RUF012

    def reset(self, **arguments: Any) -> Any:
        self.resets.append(1)
        result = super().reset(**arguments)
        self.length = 50 if self.length % 2 else 2
        return result

    def step(self, action: Any) -> Any:
        self.steps.append(1)
        return super().step(action)


def test_what_is_cancelled_is_accounted_for() -> None:
    """A reset or a step on a thread goes on to its end, so it counts, although its trajectory is cancelled."""
    Counted.resets.clear()
    Counted.steps.clear()
    with make(LocalSampler, Draws(), Counted, n_workers=3, check=None) as sampler:
        for call in range(6):
            sampler.obtain_samples(60 + call)
            sampler.obtain_trajectories(1 + call)
        with sampler.stream() as stream:
            for _ in range(100):
                next(stream)
        assert len(sampler.obtain_exact_trajectories(1)) == 3  # all earlier answers are in then
        stats = sampler.stats
    fates = ["kept", "surplus", "stale", "abandoned"]
    assert stats.abandoned_timesteps
    assert sum(getattr(stats, f"{fate}_timesteps") for fate in fates) == len(Counted.steps)
    assert sum(getattr(stats, f"{fate}_trajectories") for fate in fates) == len(Counted.resets)


class Measures(Blocks):
    def reset(self, **arguments: Any) -> Any:
        with timed("request"):
            return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        with timed("request"):
            timed.gauge("reward", 0.0)
            with timed("answer"):
                return super().step(action)


@pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])
def test_what_is_timed_on_a_thread_is_in_the_workers_account(kind: Any) -> None:
    with make(kind, Draws(), Measures, check=None, n_workers=1, in_flight=5) as sampler:
        batch = sampler.obtain_trajectories(30)
        timers, gauge = batch.stats.timers(), batch.stats.gauges()["reward"]
    counts = {"/".join(path): timer.count for path, timer in timers.walk() if timer.count and path[-1] != "waiting"}
    assert counts.pop("step/request") == counts.pop("step/request/answer") == gauge.count == batch.n_timesteps
    assert counts == {"reset/request": 30}


NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="nobody")


class Settings(Blocks):
    """Shows which settings a step has."""

    def reset(self, **arguments: Any) -> Any:
        result = super().reset(**arguments)
        NAME.set(f"{NAME.get()} {self.length}")  # for the steps of this trajectory
        return result

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        found = [NAME.get(), str(decimal.Decimal(1) / 3), np.geterr()["over"], self.length]
        return *rest, {"found": repr(found)}


def test_threads_have_the_settings_of_the_workers_thread() -> None:
    token = NAME.set("somebody")
    with (
        decimal.localcontext(prec=3),
        np.errstate(over="raise"),
        make(LocalSampler, Draws(), Settings, check=None) as sampler,
    ):
        batch = sampler.obtain_trajectories(20)
    NAME.reset(token)
    lengths = np.repeat(batch.episode_infos["length"], batch.lengths)
    expected = [repr([f"somebody {length}", "0.333", "raise", int(length)]) for length in lengths]
    assert batch.env_infos["found"].tolist() == expected


def test_what_raises_on_a_thread_after_it_was_cancelled() -> None:
    """Its exception comes, and not the cancellation: the environment is to be replaced."""
    begun, may_raise = threading.Event(), threading.Event()

    def breaks() -> None:
        begun.set()
        may_raise.wait()
        raise OSError("broken later")

    async def call_cancelled() -> None:
        thread = EnvThread()
        call = asyncio.ensure_future(thread.call(breaks))
        await asyncio.to_thread(begun.wait)
        call.cancel()
        await asyncio.sleep(0)
        may_raise.set()
        try:
            await call
        finally:
            thread.end()

    with pytest.raises(OSError, match="broken later"):
        asyncio.run(call_cancelled())
