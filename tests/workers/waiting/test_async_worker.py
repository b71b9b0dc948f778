"""Environments and agents that wait: the same batches as those of their twins, and an end to everything."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit, TransformReward

from streamsampler import (
    DefaultWorker,
    LocalSampler,
    MultiprocessingSampler,
    NotReproducibleError,
    RolloutError,
    SetParameters,
    UsageError,
    VecWorker,
)
from streamsampler.environments import Uniform
from streamsampler.workers.waiting.worker import AsyncWorker
from tests.patience import closing_patiently
from tests.tiers import mostly_slow
from tests.workers.waiting.envs import Breaks, BreaksLater, Draws, DrawsLater, Game, Stuck, Told, Waits

SEED = 5
ENGINES = [
    pytest.param(LocalSampler, {}, id="local"),
    pytest.param(MultiprocessingSampler, {}, id="processes"),
    pytest.param(MultiprocessingSampler, {"engine": "queues"}, id="queues", marks=pytest.mark.slow),
]


def make(kind: Any, agent: Any, env: Any, *, in_flight: int = 7, **options: Any) -> Any:
    """Return a sampler of workers with so many trajectories in flight."""
    if kind is MultiprocessingSampler:
        options = closing_patiently(options)
    return kind(agent, env, seed=SEED, worker_args={"in_flight": in_flight}, **options)


def twin(agent: Any = None, env: Any = Game, **options: Any) -> LocalSampler:
    return LocalSampler(agent or Draws(), env, seed=SEED, **options)


def assert_same_batches(sampler: Any, expected: Any) -> None:
    """Check that two samplers give the same in several calls."""
    for call in range(3):
        assert sampler.obtain_samples(300 + call) == expected.obtain_samples(300 + call)
        assert sampler.obtain_trajectories(20) == expected.obtain_trajectories(20)
    seeds = list(range(9))
    assert sampler.obtain_trajectories(seeds=seeds) == expected.obtain_trajectories(seeds=seeds)


@pytest.mark.parametrize("agent", mostly_slow([Draws(), DrawsLater()]), ids=["plain", "waits"])
@pytest.mark.parametrize("in_flight", mostly_slow([7, 1, 200]))
@pytest.mark.parametrize("n_workers", mostly_slow([3, 1, 2]))
@pytest.mark.parametrize(("kind", "options"), mostly_slow(ENGINES))
def test_batches_are_those_of_the_twin(
    kind: Any, options: dict[str, Any], n_workers: int, in_flight: int, agent: Any
) -> None:
    with make(kind, agent, Waits, in_flight=in_flight, n_workers=n_workers, **options) as sampler, twin() as expected:
        assert_same_batches(sampler, expected)


def test_progress_says_how_many_are_in_flight() -> None:
    notes = []

    def show(snapshot: Any) -> None:
        notes.append(snapshot.note)

    show.interval = 0.0  # type: ignore[attr-defined]
    with make(LocalSampler, DrawsLater(), Waits) as sampler:
        sampler.obtain_trajectories(30, progress=show)
        assert sampler.stats.gauges()["in_flight"].maximum <= 7
    assert notes[-1] == "0 in flight"
    assert "7 in flight" in notes
    with twin() as sampler:
        sampler.obtain_trajectories(3, progress=show)
        assert notes[-1] == ""


def test_a_killed_worker_changes_nothing() -> None:
    with make(MultiprocessingSampler, DrawsLater(), Waits, n_workers=2) as sampler, twin() as expected:
        stream = sampler.stream(n_trajectories=300)
        batches = [next(stream)]
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        batches += list(stream)
        assert type(batches[0]).concatenate(batches) == expected.obtain_trajectories(300)


@pytest.mark.parametrize("in_flight", mostly_slow([1, 50]))
def test_what_raises(in_flight: int) -> None:
    """The first trajectory that raises, in their order, ends the call; or all are left out that do."""
    errors = []
    waits = make(LocalSampler, DrawsLater(), BreaksLater, in_flight=in_flight)
    for sampler in (waits, twin(env=Breaks)):
        with sampler, pytest.raises(RolloutError, match="broken in a trajectory of") as raised:
            sampler.obtain_trajectories(40)
        errors.append((raised.value.trajectory, raised.value.phase, str(raised.value.__cause__)))
    assert errors[0] == errors[1]
    dropping = make(LocalSampler, DrawsLater(), BreaksLater, in_flight=in_flight, on_failure="drop")
    with dropping as sampler, twin(env=Breaks, on_failure="drop") as expected:
        for _ in range(2):
            assert sampler.obtain_trajectories(40) == expected.obtain_trajectories(40)
        assert sampler.stats.dropped == expected.stats.dropped
        assert sampler.stats.dropped


class Shown:
    """Keeps what it is shown in the metrics."""

    def on_trajectory_start(self, context: Any) -> None:
        context.memory["shown"] = []

    def on_timestep(self, context: Any) -> None:
        shown = context.timestep, int(context.action), context.reward, context.truncated, context.agent_info["value"]
        context.memory["shown"].append(shown)

    def on_trajectory_end(self, context: Any) -> None:
        context.metrics["shown"] = repr(context.memory["shown"]), context.index, context.seed, context.truncated


@pytest.mark.parametrize("in_flight", [1, 20])
def test_hooks_drop_if_tasks_and_limits(in_flight: int) -> None:
    options: dict[str, Any] = {
        "hooks": Shown(),
        "drop_if": lambda info: info.get("length") == 7,
        "max_episode_length": 9,
    }
    with make(LocalSampler, Draws(), Waits, in_flight=in_flight, **options) as sampler, twin(**options) as expected:
        for _ in range(2):
            batch = sampler.obtain_trajectories(30, reset_options={"given": 1})
            assert batch == expected.obtain_trajectories(30, reset_options={"given": 1})
            assert "shown" in batch.episode_infos
            assert 7 not in batch.episode_infos["length"]


def test_wrappers_of_gymnasium(recwarn: pytest.WarningsRecorder) -> None:
    """With the checker, whose warning of an observation comes as it does without waiting."""
    kinds: list[tuple[str, Any]] = [("Plain-v0", Game), ("Waits-v0", Waits)]
    for name, kind in kinds:
        gymnasium.register(f"WaitingTest/{name}", kind, max_episode_steps=4)
    try:
        made = [functools.partial(gymnasium.make, f"WaitingTest/{name}") for name in ("Waits-v0", "Plain-v0")]
        for waits, plain in (("WaitingTest/Waits-v0", "WaitingTest/Plain-v0"), made):
            with (
                make(LocalSampler, Draws(), waits, hooks=Shown()) as sampler,
                twin(env=plain, hooks=Shown()) as expected,
            ):
                batch = sampler.obtain_trajectories(30)
                assert batch == expected.obtain_trajectories(30)
                assert batch.truncated.any()
                assert batch.lengths.max() == 4
    finally:
        for name in ("Plain-v0", "Waits-v0"):
            del gymnasium.registry[f"WaitingTest/{name}"]
    assert not list(recwarn)


class Scaled(gymnasium.Wrapper[Any, Any, Any, Any]):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        observation, reward, *ends, info = await self.env.step(action)  # type: ignore[misc]
        return observation, 10 * reward, *ends, info


def test_wrappers_that_wait_and_others() -> None:
    plain = twin(env=lambda: TimeLimit(TransformReward(Game(), lambda reward: 10 * float(reward)), 5))
    with make(LocalSampler, Draws(), lambda: TimeLimit(Scaled(Waits()), 5)) as sampler, plain as expected:
        assert sampler.obtain_trajectories(20) == expected.obtain_trajectories(20)
    records = []

    class Notes(Waits):
        async def reset(self, **arguments: Any) -> Any:  # type: ignore[override]
            records.append(arguments)
            return await super().reset(**arguments)

    for wrapped, name in (
        (lambda: TransformReward(Notes(), float), "TransformReward"),
        (lambda: Scaled(TimeLimit(Notes(), 3)), "TimeLimit"),
    ):
        error = pytest.raises(
            RolloutError, match=f"the (reset|step) of its wrapper {name} is not: it would take a coroutine"
        )
        with make(LocalSampler, Draws(), wrapped) as sampler, error:
            sampler.obtain_trajectories(1)
    assert not records


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    told = Told(tmp_path)
    yield told
    told.close()


def test_what_no_trajectory_needs_is_cancelled_and_all_is_closed(tmp_path: Path, told: Told) -> None:
    """Steps that do not end are cancelled; environments are closed where `close` waits, too."""
    env = functools.partial(Stuck, tmp_path)
    with make(MultiprocessingSampler, Draws(), env, n_workers=1, check=None) as sampler:
        with interrupt_after(5, told), pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(5)
        assert told.wait_for(10) == "cccccxxxxx"  # without a further call
        assert len(sampler.obtain_trajectories(2, reset_options={"ends": True})) == 2
    assert told.wait_for(2) == "xx"


def test_an_environment_that_ignores_that_it_is_cancelled(
    tmp_path: Path, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    env = functools.partial(Stuck, tmp_path, heeds=False)
    with make(LocalSampler, Draws(), env, check=None) as sampler:
        with interrupt_after(2, told), pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(2)
        assert len(sampler.obtain_trajectories(3, env_update=Waits)) == 3
    assert "catches asyncio.CancelledError" in caplog.text


@contextlib.contextmanager
def interrupt_after(n: int, told: Told) -> Iterator[None]:
    """Let Ctrl-C come when n trajectories wait."""

    def interrupt() -> None:
        told.wait_for(n)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize("interrupted", [False, True])
def test_within_a_running_loop(interrupted: bool, tmp_path: Path, told: Told) -> None:
    """As in a notebook: the loop runs in a thread of its own, and Ctrl-C ends the call."""
    stuck = functools.partial(Stuck, tmp_path)

    async def cell() -> Any:
        with make(LocalSampler, DrawsLater(), Waits, check=None) as sampler:
            if interrupted:
                with interrupt_after(3, told), pytest.raises(KeyboardInterrupt):
                    sampler.obtain_trajectories(3, env_update=stuck)
                assert told.wait_for(3) == "ccc"
                sampler.obtain_trajectories(1, env_update=Waits)
            return sampler.obtain_samples(100)

    loop = asyncio.new_event_loop()  # not asyncio.run, at whose first Ctrl-C nothing is raised
    batch = loop.run_until_complete(cell())
    loop.close()
    with twin() as expected:
        if interrupted:
            for _ in range(2):
                expected.obtain_trajectories(1)
        assert batch == expected.obtain_samples(100)


class Remembers(Waits):
    """Begins where it ended."""

    total = 0

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        Remembers.total += 1
        observation, _, *rest = await super().step(action)
        return observation, float(Remembers.total), *rest


class DrawsFromAll(Waits):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        random.random()
        return await super().step(action)


class Nothing(Game):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        async def again() -> Any:
            return None

        return again()


class Parts(Game):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        async def reward() -> float:
            return 1.0

        return self._drawn(), reward(), False, False, {}


class PartOfInfo(Game):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return *super().step(action)[:-1], {"cost": asyncio.sleep(0)}


class Stops(Game):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return super().step(action)


@pytest.mark.parametrize(
    ("env", "error", "match"),
    [
        (DrawsFromAll, RolloutError, "drew from a global generator.*while several trajectories were in flight"),
        (Nothing, RolloutError, "awaiting step returned another awaitable"),
        (Parts, RolloutError, "a part of the result of step is a coroutine"),
        (PartOfInfo, RolloutError, "'cost' in the result of step is a coroutine"),
        (Stops, RolloutError, "has stopped the event loop"),
        (Remembers, NotReproducibleError, "before and after another trajectory"),
    ],
)
def test_what_environments_may_not_do(env: Any, error: Any, match: str) -> None:
    with make(LocalSampler, Draws(), env, check="error") as sampler, pytest.raises(error, match=match):
        sampler.obtain_trajectories(10)


def test_with_one_in_flight_environments_may_draw_from_the_global_generators() -> None:
    class Plain(Game):
        def reset(self, **arguments: Any) -> Any:
            self.drawn = random.random()
            return super().reset(**arguments)

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, self.drawn + random.random() + np.random.rand(), *rest

    class Later(Plain):
        async def reset(self, **arguments: Any) -> Any:  # type: ignore[override]
            result = super().reset(**arguments)
            await asyncio.sleep(0)
            return result

        async def step(self, action: Any) -> Any:  # type: ignore[override]
            await asyncio.sleep(0)
            return super().step(action)

    with make(LocalSampler, Draws(), Later, in_flight=1) as sampler, twin(env=Plain) as expected:
        assert sampler.obtain_trajectories(60) == expected.obtain_trajectories(60)


NOT_FOR_IT: list[dict[str, Any]] = [{}, {"worker_class": VecWorker}]


def test_which_worker_it_is() -> None:
    """An asynchronous environment, as far as that is known before it is made, or `in_flight`, makes it."""
    kind: Any = Waits
    gymnasium.register("WaitingTest/Waits-v1", kind)
    try:
        given: list[Any] = [
            Waits,
            functools.partial(Waits, 1e-3),
            Waits(),
            "WaitingTest/Waits-v1",
            TimeLimit(Waits(), 3),
        ]
        for env in given:
            with LocalSampler(Draws(), env, seed=SEED) as sampler:
                assert sampler.layout.rows == 16
                assert len(sampler.obtain_trajectories(2)) == 2
    finally:
        del gymnasium.registry["WaitingTest/Waits-v1"]
    for options in NOT_FOR_IT:
        error = pytest.raises(RolloutError, match=r'asynchronous.*pass worker_args={"in_flight": 100}')
        with LocalSampler(Draws(), lambda: Waits(), **options) as sampler, error:
            sampler.obtain_trajectories(1)
    with pytest.raises(UsageError, match="in_flight"):
        LocalSampler(Draws(), Waits, worker_args={"in_flight": 0})
    with pytest.raises(UsageError, match="in_flight"):
        LocalSampler(Draws(), Game, worker_class=VecWorker, worker_args={"in_flight": 3})
    assert issubclass(AsyncWorker, DefaultWorker.__mro__[1])


async def later(observation: Any) -> int:
    await asyncio.sleep(0)
    return int(observation[0] > 0)


@pytest.mark.parametrize(("agent", "plain"), [(later, lambda seen: int(seen[0] > 0)), (DrawsLater(), Draws())])
def test_an_agent_that_waits(agent: Any, plain: Any) -> None:
    """It makes the worker, too, whatever the environment is; no other kind of worker takes it."""
    with LocalSampler(plain, Game, seed=SEED) as expected:
        batch = expected.obtain_trajectories(9)
    for env in (Game, Waits):
        with LocalSampler(agent, env, seed=SEED) as sampler:
            assert sampler.layout.rows == 16
            assert sampler.obtain_trajectories(9) == batch
    refused = pytest.raises(UsageError, match=r"asynchronous .*does not await it: .*in_flight")
    for options in ({"worker_class": VecWorker}, {"inference": "parent"}):
        with refused:
            MultiprocessingSampler(agent, Game, **options)
    with LocalSampler(plain, Game) as sampler, refused:
        sampler.obtain_trajectories(1, agent_update=agent)


class Weighted(Game):
    """Has a parameter."""

    scale = 1.0

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        return observation, {**info, "scale": self.scale}

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward * self.scale, *rest


class WeightedLater(Waits, Weighted):
    """Waits."""


@pytest.mark.parametrize("limit", [None, 4])
def test_parameters_and_tasks(limit: int | None) -> None:
    """Below the wrappers of `gymnasium.make`, and in updates that keep the environment."""
    names: dict[Any, str] = {}
    try:
        for kind in (Weighted, WeightedLater):
            names[kind] = f"WaitingTest/{kind.__name__}-v1"
            gymnasium.register(names[kind], cast("Any", kind), max_episode_steps=limit)
        with (
            LocalSampler(Draws(), names[WeightedLater], seed=SEED, worker_args={"in_flight": 4}) as sampler,
            LocalSampler(Draws(), names[Weighted], seed=SEED) as expected,
        ):
            for scale in (2.0, Uniform(1.0, 2.0), Uniform(1.0, 3.0)):
                update = SetParameters({"scale": scale})
                found = sampler.obtain_trajectories(20, env_update=update)
                assert found == expected.obtain_trajectories(20, env_update=update)
                assert sampler.obtain_trajectories(20) == expected.obtain_trajectories(20)
    finally:
        for name in names.values():
            del gymnasium.registry[name]


class Large(Draws):
    """Has much memory."""

    def __init__(self) -> None:
        self.weights = np.zeros(4_000_000)


def test_much_memory_of_copies_is_said_before_workers_start(caplog: pytest.LogCaptureFixture) -> None:
    for in_flight, said in ((1, False), (4, False), (16, True)):
        caplog.clear()
        with make(LocalSampler, Large(), Waits, in_flight=in_flight):
            assert ("copy of the agent (32 MB)" in caplog.text) == said
    assert (
        "each of 16 trajectories in flight has a copy of the agent (32 MB), because it has a reset: 0.5 GB"
        in caplog.text
    )
