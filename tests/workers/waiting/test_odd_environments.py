"""What asynchronous environments and agents may do besides waiting, and what they may not: no call ends in a hang."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RolloutError, SetTaskUpdate, UsageError, timed
from streamsampler.environments.filming import check_renders
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.messages import Ticket
from tests.patience import closing_patiently
from tests.workers.waiting.envs import BreaksLater, Draws, DrawsLater, Game, Told, Waits
from tests.workers.waiting.test_async_worker import interrupt_after

SEED = 5


def make(kind: Any, agent: Any, env: Any, in_flight: int = 4, **options: Any) -> Any:
    if kind is MultiprocessingSampler:
        options = closing_patiently(options)
    return kind(agent, env, seed=SEED, worker_args={"in_flight": in_flight}, **options)


def twin(agent: Any = None, env: Any = Game, **options: Any) -> LocalSampler:
    return LocalSampler(agent or Draws(), env, seed=SEED, **options)


class Odd(Waits):
    """Does something in the third step of long trajectories."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self.t == 2 and self.length % 4 == 0:
            await self.odd()
        return await super().step(action)

    async def odd(self) -> None:
        raise NotImplementedError


class RaisesCancelled(Odd):
    async def odd(self) -> None:
        raise asyncio.CancelledError


class CancelsItself(Odd):
    async def odd(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)


class AwaitsWhatIsCancelled(Odd):
    async def odd(self) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(1e3))
        inner.cancel()
        await inner


class ExecutorShutDown(Odd):
    async def odd(self) -> None:
        pool, blocks = ThreadPoolExecutor(1), threading.Event()
        pool.submit(blocks.wait)
        pending = asyncio.get_running_loop().run_in_executor(pool, int)
        pool.shutdown(wait=False, cancel_futures=True)
        blocks.set()
        await pending


class RaisesGeneratorExit(Odd):
    async def odd(self) -> None:
        raise GeneratorExit


class RaisesStopIteration(Odd):
    async def odd(self) -> None:
        raise StopIteration("over")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (RaisesCancelled, "RuntimeError: step of RaisesCancelled, at timestep 2, raised asyncio.CancelledError"),
        (CancelsItself, "RuntimeError: .* raised asyncio.CancelledError, although nothing cancelled it"),
        (AwaitsWhatIsCancelled, "RuntimeError: .* raised asyncio.CancelledError"),
        (ExecutorShutDown, "RuntimeError: .* raised asyncio.CancelledError"),
        (RaisesGeneratorExit, "RuntimeError: GeneratorExit was raised"),
        (RaisesStopIteration, "StopIteration: over"),
    ],
)
def test_exceptions_that_asyncio_and_python_use(env: Any, words: str) -> None:
    """They are failures of the trajectory, which is left out, or ends the call."""
    with make(LocalSampler, Draws(), env) as sampler, pytest.raises(RolloutError, match=f"stepping the env.*{words}"):
        sampler.obtain_trajectories(30)
    with make(LocalSampler, Draws(), env, on_failure="drop") as sampler, twin() as expected:
        batch = sampler.obtain_trajectories(20)
        everything = expected.obtain_trajectories(int(batch.indices[-1]) + 1)
        kept = [it for it in everything if it.env_infos is None or it.lengths[0] % 4]
        assert batch == type(batch).concatenate(kept)


class BadlyRecorded(Waits):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        result = await super().step(action)
        return (np.zeros(4), *result[1:]) if self.t == 3 else result


class BadlyRecordedTwin(Game):
    def step(self, action: Any) -> Any:
        result = super().step(action)
        return (np.zeros(4), *result[1:]) if self.t == 3 else result


class ResetsBadly(Draws):
    def reset(self, seed: int) -> None:
        super().reset(seed)
        if seed % 4 == 0:
            raise ValueError("no memory")


@pytest.mark.parametrize(
    ("agent", "env", "env_of_twin"), [(Draws(), BadlyRecorded, BadlyRecordedTwin), (ResetsBadly(), Waits, Game)]
)
@pytest.mark.parametrize("in_flight", [1, 4])
def test_errors_have_the_phase_and_the_text_of_the_twin(agent: Any, env: Any, env_of_twin: Any, in_flight: int) -> None:
    errors = []
    for sampler in (make(LocalSampler, agent, env, in_flight), twin(agent, env_of_twin)):
        with sampler, pytest.raises(RolloutError) as error:
            sampler.obtain_trajectories(30)
        errors.append(str(error.value).replace("Twin", ""))
    assert errors[0] == errors[1]


class OneTooMany(Waits):
    """Cannot be made for a third time."""

    n_made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).n_made += 1
        if type(self).n_made > 2:
            raise ValueError("no third one")


def test_a_constructor_that_raises_later() -> None:
    OneTooMany.n_made = 0
    error = pytest.raises(RolloutError, match="while making the environment of agent version 1: ValueError: no third")
    with make(LocalSampler, Draws(), OneTooMany) as sampler, error:
        sampler.obtain_trajectories(30)


class Connects(Waits):
    """Runs an event loop of its own in its constructor."""

    def __init__(self) -> None:
        super().__init__()
        asyncio.run(asyncio.sleep(0))


def test_a_constructor_with_an_event_loop() -> None:
    with make(LocalSampler, Draws(), Connects, in_flight=6) as sampler, twin() as expected:
        assert sampler.obtain_trajectories(30) == expected.obtain_trajectories(30)


class Endless(Game):
    """Never ends, and waits for nothing, while there is a note; tells at its hundredth timestep."""

    def __init__(self, folder: Path) -> None:
        self._note, self._told = folder / "note", Told(folder)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.t == 100:
            self._told.tell("t")
        return observation, reward, terminated and not (self._note.exists() and self.length > 1), truncated, info


class EndlessLater(Endless):
    """Could wait."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return super().step(action)


@pytest.mark.parametrize("env", [Endless, EndlessLater])
def test_a_trajectory_that_waits_for_nothing_is_called_off(env: Any, tmp_path: Path) -> None:
    note, told = tmp_path / "note", Told(tmp_path)
    note.touch()
    with make(MultiprocessingSampler, Draws(), lambda: env(tmp_path), n_workers=2, check=None) as sampler:
        with interrupt_after(2, told), pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(30)
        note.unlink()
        with twin() as expected:
            expected.obtain_trajectories(1)
            assert sampler.obtain_trajectories(30) == expected.obtain_trajectories(30)
    told.close()


class DrawsGlobally(Game):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + random.random() + np.random.random(), *rest


class DrawsGloballyLater(DrawsGlobally):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(action)


def test_one_in_flight_has_the_global_generators_for_itself() -> None:
    """Also where one ticket follows on another."""
    with (
        make(MultiprocessingSampler, Draws(), DrawsGloballyLater, in_flight=1, check=None) as sampler,
        twin(env=DrawsGlobally, check=None) as expected,
    ):
        for _ in range(5):
            assert sampler.obtain_samples(300) == expected.obtain_samples(300)


class Scribbles(Draws):
    """Remembers in an array that it was given."""

    def set_param_values(self, values: Any) -> None:
        self.memory = values["memory"]

    def get_action(self, observation: Any) -> Any:
        if hasattr(self, "memory"):
            self.memory[0] += 1
        return super().get_action(observation)


def test_what_agents_share_is_read_only() -> None:
    error = pytest.raises(RolloutError, match=r"choosing an action .*read-only")
    with make(LocalSampler, Scribbles(), Waits) as sampler, error:
        sampler.obtain_trajectories(9, agent_update={"memory": np.zeros(1)})


class AsyncReset(Draws):
    async def reset(self, seed: int) -> None:  # type: ignore[override]
        super().reset(seed)


class AsyncTask(Waits):
    async def set_task(self, task: Any) -> None:
        self.task = task


class AsyncHooks:
    async def on_timestep(self, context: Any) -> None: ...


def test_what_is_not_awaited_is_refused() -> None:
    with pytest.raises(UsageError, match="AsyncReset has async def reset, which is never awaited"):
        LocalSampler(AsyncReset(), Waits)
    with pytest.raises(UsageError, match="hooks are not awaited"):
        LocalSampler(Draws(), Waits, hooks=AsyncHooks())
    refused = pytest.raises((RolloutError, UsageError), match="set_task of AsyncTask is an async def")
    with LocalSampler(Draws(), AsyncTask) as sampler, refused:
        sampler.obtain_trajectories(3, env_update=SetTaskUpdate(AsyncTask, 3))


class Accounts(Waits):
    """Counts environments, and raises in some."""

    made: list[Accounts]

    def __init__(self) -> None:
        super().__init__()
        self.task, self.n_closed, self.broken = 0, 0, False
        self.made.append(self)

    def set_task(self, task: int) -> None:
        self.task = task

    async def reset(self, **arguments: Any) -> Any:  # type: ignore[override]
        assert not self.broken
        assert not self.n_closed
        return await super().reset(**arguments)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self.t == 2 and self.length % 4 == 0:
            self.broken = True
            raise ValueError("broken")
        return await super().step(action)

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.n_closed += 1


@pytest.mark.parametrize("in_flight", [2, 4])
def test_environments_that_raised_are_closed_once_and_not_used_again(in_flight: int) -> None:
    Accounts.made = []
    with make(LocalSampler, Draws(), Accounts, in_flight, on_failure="drop") as sampler:
        for task in range(8):
            assert len(sampler.obtain_trajectories(9, env_update=SetTaskUpdate(Accounts, task // 2))) == 9
    assert len(Accounts.made) > in_flight
    assert {env.n_closed for env in Accounts.made} == {1}


class Stays(Waits):
    """Goes on although it is cancelled, in some trajectories."""

    let_go: list[asyncio.Event]

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self.t == 2 and self.length % 4 == 0:
            self.let_go.append(event := asyncio.Event())
            while not event.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await event.wait()
        return await super().step(action)


class OwnSums:
    """Hooks that keep something of a trajectory in themselves: each environment has hooks of its own."""

    def on_trajectory_start(self, context: Any) -> None:
        self.sum = 0.0

    def on_timestep(self, context: Any) -> None:
        self.sum += context.reward
        context.metrics["sum"] = self.sum


@pytest.mark.slow
def test_hooks_of_an_environment_that_is_left() -> None:
    Stays.let_go = []
    options: dict[str, Any] = {"hooks": OwnSums(), "on_failure": "drop"}
    with make(LocalSampler, Draws(), Stays, in_flight=3, trajectory_timeout=0.2, **options) as sampler:
        batches = [sampler.obtain_trajectories(20) for _ in range(3)]
    assert Stays.let_go
    Stays.let_go = []  # which hold what waits for them
    for batch in batches:
        assert batch.episode_infos["sum"].tolist() == batch.returns.tolist()


class Times(Waits):
    """Times what it does in tasks that it starts."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        async def ask() -> None:
            with timed("request"):
                await asyncio.sleep(0)
                with timed("answer"):
                    await asyncio.sleep(0)

        with timed("all"):
            await asyncio.gather(ask(), ask())
        return await super().step(action)


def test_blocks_that_are_timed_in_tasks() -> None:
    with make(LocalSampler, DrawsLater(), Times, in_flight=7, check=None) as sampler:
        sampler.obtain_trajectories(40)
        sampler.close()
        found = {"/".join(path): it.count for path, it in sampler.stats.timers().walk() if it.count}
        n = sum(sampler.stats.worker_timesteps)
    assert {name: number for name, number in found.items() if "waiting" not in name} == {
        "step/all": n, "step/all/request": 2 * n, "step/all/request/answer": 2 * n,
    }  # fmt: skip


class Beats(Waits):
    """Starts a task that goes on."""

    ends: list[int]

    async def reset(self, **arguments: Any) -> Any:  # type: ignore[override]
        if not hasattr(self, "beating"):
            self.beating = asyncio.ensure_future(self._beat())
        return await super().reset(**arguments)

    async def _beat(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ends.append(1)


def test_tasks_that_an_environment_leaves_end_with_the_sampler() -> None:
    Beats.ends = []
    with make(LocalSampler, Draws(), Beats, in_flight=3) as sampler:
        sampler.obtain_trajectories(9)
    assert len(Beats.ends) == 3


class SlowToMake(Waits):
    """Takes longer to be made than a trajectory may take."""

    def __init__(self) -> None:
        super().__init__()
        threading.Event().wait(0.15)


@pytest.mark.slow
def test_a_constructor_takes_no_time_from_trajectories() -> None:
    with make(LocalSampler, Draws(), SlowToMake, in_flight=6, trajectory_timeout=0.3, check=None) as sampler:
        with twin() as expected:
            assert sampler.obtain_trajectories(12) == expected.obtain_trajectories(12)
        assert sampler.stats.timed_out == 0


def test_what_is_cancelled_before_it_begins_gives_its_place_back() -> None:
    with make(LocalSampler, Draws(), Waits, in_flight=4, check=None) as sampler:
        sampler.obtain_trajectories(8)
        worker = sampler._life.session.engine._loops[0]._worker
        for _ in range(2):
            worker._flights.make_current(Ticket(1, range(4)), [1, 2, 3, 4])
            worker._flights.begin_more()
            assert worker._slots.take(0) is None
            assert worker._flights.cancel() == (0, 0)
        with twin() as expected:
            expected.obtain_trajectories(1)
            assert sampler.obtain_trajectories(8) == expected.obtain_trajectories(8)


class StaysLate(Waits):
    """Goes on although it is cancelled, until it is let go, in the second step of every third trajectory, once."""

    let_go: list[asyncio.Event]
    was_late: set[int]

    async def reset(self, *, seed: int | None = None, **arguments: Any) -> Any:  # type: ignore[override]
        assert seed is not None
        self.drawn_seed = seed
        return await super().reset(seed=seed, **arguments)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self.t == 1 and self.drawn_seed % 3 == 0 and self.drawn_seed not in self.was_late:
            self.was_late.add(self.drawn_seed)
            self.let_go.append(event := asyncio.Event())
            while not event.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await event.wait()
        if self.t == 2 and self.drawn_seed % 5 == 0:
            raise ValueError("broken")
        return await super().step(action)


@pytest.mark.slow
def test_a_ticket_that_fails_while_a_late_trajectory_goes_on() -> None:
    """The trajectory's environment is left once, and its time-out is no matter of the next call."""
    StaysLate.let_go, StaysLate.was_late = [], set()
    with make(LocalSampler, Draws(), StaysLate, in_flight=4, trajectory_timeout=0.2, check=None) as sampler:
        for _ in range(3):
            with pytest.raises(RolloutError, match="ValueError: broken"):
                sampler.obtain_trajectories(40)
        assert sampler.obtain_trajectories(3, env_update=Waits).stats.timed_out == 0
    StaysLate.let_go = []


class AllStay(Waits):
    """Goes on although it is cancelled, where the process made it among the first."""

    n_made = 0
    let_go: list[asyncio.Event]

    def __init__(self) -> None:
        super().__init__()
        type(self).n_made += 1
        self._stays = type(self).n_made <= 3

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self._stays:
            self.let_go.append(event := asyncio.Event())
            while not event.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await event.wait()
        return await super().step(action)


@pytest.mark.slow
def test_all_environments_of_a_worker_may_be_left() -> None:
    AllStay.n_made, AllStay.let_go = 0, []
    with make(LocalSampler, Draws(), AllStay, in_flight=3, trajectory_timeout=0.2, check=None) as sampler:
        with twin() as expected:
            assert sampler.obtain_trajectories(9) == expected.obtain_trajectories(9)
        assert sampler.stats.timed_out >= len(AllStay.let_go) == 3
    AllStay.let_go = []


class ClosesWithOthers(Waits):
    """Is closed when others are being closed, too."""

    n_together = 0
    closing: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self._all = asyncio.Event()

    async def close(self) -> None:  # type: ignore[override]
        self.closing.append(self)
        if len(self.closing) >= self.n_together:
            for env in self.closing:
                env._all.set()
        await asyncio.wait_for(self._all.wait(), 30)


@pytest.mark.parametrize("fragments", [False, True])
def test_environments_are_closed_together(fragments: bool) -> None:
    """Of fragments all but the first, which is the worker's own."""
    ClosesWithOthers.n_together = 4 if fragments else 5
    ClosesWithOthers.closing.clear()
    with make(LocalSampler, Draws(), ClosesWithOthers, 5, check=None) as sampler:
        if fragments:
            sampler.obtain_fragments(4, 5)
        else:
            sampler.obtain_trajectories(20)
    assert len(ClosesWithOthers.closing) == 5


class ClosesLate(Waits):
    """Takes longer to close than a worker has that has not begun to."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(1.2)
        (self._folder / f"{os.getpid()}-{id(self)}").touch()


def test_a_worker_has_the_time_to_close_for_what_is_awaited(tmp_path: Path) -> None:
    env = functools.partial(ClosesLate, tmp_path)
    with make(MultiprocessingSampler, Draws(), env, 3, n_workers=1, check=None) as sampler:
        sampler.obtain_trajectories(12)
    assert len(list(tmp_path.iterdir())) == 3


class KnowsItsLoop(Waits):
    """Is reset and closed on one event loop, and renders."""

    closed_on: ClassVar[list[bool]] = []
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - Gymnasium's own is no ClassVar

    def __init__(self, render_mode: str = "rgb_array") -> None:
        super().__init__()
        self.render_mode = render_mode

    async def reset(self, **arguments: Any) -> Any:  # type: ignore[override]
        self.loop = asyncio.get_running_loop()
        return await super().reset(**arguments)

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)

    async def close(self) -> None:  # type: ignore[override]
        self.closed_on.append(self.loop is asyncio.get_running_loop())


class RendersLater(KnowsItsLoop):
    async def render(self) -> Any:  # type: ignore[override]
        return super().render()


def test_whether_an_environment_can_be_filmed_is_tried_on_one_event_loop() -> None:
    KnowsItsLoop.closed_on.clear()
    check_renders(as_env_update(KnowsItsLoop))
    with pytest.raises(UsageError, match="returned a coroutine: let reset and step make the picture"):
        check_renders(as_env_update(RendersLater))
    assert KnowsItsLoop.closed_on == [True, True]


def test_tracebacks_begin_with_what_was_raised() -> None:
    with make(LocalSampler, Draws(), BreaksLater) as sampler, pytest.raises(RolloutError) as raised:
        sampler.obtain_trajectories(20)
    assert "no running event loop" not in "".join(traceback.format_exception(raised.value))
