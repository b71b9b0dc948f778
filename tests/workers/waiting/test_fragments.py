"""Fragments of environments that wait: the episodes of the twin, also after losses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RolloutError
from tests.patience import closing_patiently
from tests.tiers import mostly_slow
from tests.workers.waiting.envs import Draws, DrawsLater, Game, Waits

SEED = 5


class Remembers(Draws):
    """Draws, and can be restored."""

    def get_state(self) -> Any:
        return self.generator.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.generator = np.random.default_rng()
        self.generator.bit_generator.state = state


class Sums:
    """Hooks that add up rewards, and keep what they have from call to call."""

    def on_trajectory_start(self, context: Any) -> None:
        context.memory["sum"] = 0.0

    def on_timestep(self, context: Any) -> None:
        context.memory["sum"] += context.reward * context.timestep
        context.metrics["weighted"] = context.memory["sum"]


def make(kind: Any, agent: Any, env: Any, **options: Any) -> Any:
    if kind is MultiprocessingSampler:
        options = closing_patiently(options)
    return kind(agent, env, seed=SEED, **options)


def calls(sampler: Any) -> list[Any]:
    """Call for fragments, with whole trajectories between, which run in environments of their own."""
    return [
        sampler.obtain_fragments(7, 5),
        sampler.obtain_fragments(4),
        sampler.obtain_trajectories(6),
        sampler.obtain_fragments(11),
        sampler.obtain_samples(50),
        sampler.obtain_fragments(3),
        sampler.obtain_fragments(5, 9),
    ]


@pytest.mark.parametrize("hooks", mostly_slow([Sums(), None]))
@pytest.mark.parametrize("agent", mostly_slow([DrawsLater(), Draws()]))
@pytest.mark.parametrize("in_flight", mostly_slow([3, 1, 50], 2))
@pytest.mark.parametrize(
    ("kind", "options"),
    mostly_slow(
        [
            (LocalSampler, {}),
            *(
                pytest.param(MultiprocessingSampler, {"n_workers": n}, marks=[pytest.mark.slow] if n != 2 else [])
                for n in (1, 2, 3)
            ),
        ]
    ),
)
def test_fragments_are_those_of_the_twin(
    kind: Any, options: dict[str, Any], in_flight: int, agent: Any, hooks: Any
) -> None:
    assert_fragments_of_twin(kind, agent, Waits, {"in_flight": in_flight}, hooks, options)


@pytest.mark.parametrize("hooks", mostly_slow([None, Sums()]), ids=["plain", "hooks"])
@pytest.mark.parametrize("in_flight", mostly_slow([1, 3]))
@pytest.mark.parametrize(
    "kind", mostly_slow([LocalSampler, pytest.param(MultiprocessingSampler, marks=pytest.mark.slow)])
)
def test_fragments_on_threads_are_those_of_the_twin(kind: Any, in_flight: int, hooks: Any) -> None:
    assert_fragments_of_twin(kind, DrawsLater(), Game, {"in_flight": in_flight, "threads": True}, hooks, {})


def assert_fragments_of_twin(
    kind: Any, agent: Any, env: Any, worker_args: dict[str, Any], hooks: Any, options: dict[str, Any]
) -> None:
    with (
        make(kind, agent, env, worker_args=worker_args, hooks=hooks, **options) as sampler,
        make(LocalSampler, Draws(), Game, hooks=hooks) as twin,
    ):
        assert calls(sampler) == calls(twin)
        stats = sampler.stats
        assert stats.ran_timesteps == sum(stats.worker_timesteps)
        assert stats.further_envs > 0


@pytest.mark.parametrize("in_flight", mostly_slow([1, 50]))
def test_episodes_of_a_killed_worker_are_restored(in_flight: int) -> None:
    options = {"worker_args": {"in_flight": in_flight}, "n_workers": 2}
    with (
        make(MultiprocessingSampler, Remembers(), Waits, **options) as sampler,
        make(LocalSampler, Remembers(), Game) as twin,
    ):
        for number in range(6):
            if number % 2:
                os.kill(sampler.worker_pids()[number // 2 % 2], signal.SIGKILL)
            assert sampler.obtain_fragments(5, 6) == twin.obtain_fragments(5, 6)
        assert sampler.stats.restarts == 3


def test_a_state_goes_on_with_other_workers() -> None:
    options = {"worker_args": {"in_flight": 4}}
    with make(LocalSampler, Remembers(), Waits, **options) as sampler, make(LocalSampler, Remembers(), Game) as twin:
        assert sampler.obtain_fragments(5, 6) == twin.obtain_fragments(5, 6)
        state = sampler.state_dict()
        with make(MultiprocessingSampler, Remembers(), Waits, n_workers=3, **options) as other:
            other.load_state_dict(state)
            assert other.obtain_fragments(8, 6) == twin.obtain_fragments(8, 6)


class Breaks(Waits):
    """Raises in the third step of long trajectories, so many times."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__()
        self._folder, self._times = folder, times

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        for number in range(self._times if self.t == 3 else 0):
            with contextlib.suppress(FileExistsError):  # which another worker may have made
                (self._folder / str(number)).touch(exist_ok=False)
                raise ConnectionError("no answer")
        return await super().step(action)


@pytest.mark.slow
def test_what_raises_in_a_fragment(tmp_path: Path) -> None:
    """It is an error, after which other episodes begin; or the worker is replaced, and the episodes restored."""
    options = {"worker_args": {"in_flight": 4}}
    with make(LocalSampler, Remembers(), partial(Breaks, tmp_path, 1), check=None, **options) as sampler:
        with pytest.raises(RolloutError, match=r"stepping the environment .*ConnectionError: no answer"):
            sampler.obtain_fragments(8, 6)
        batch = sampler.obtain_fragments(8, 6)
        assert not batch.continued.any()
        assert batch.n_timesteps == 48
    with make(
        MultiprocessingSampler, Remembers(), partial(Breaks, tmp_path, 2), check=None, restart_on=ConnectionError,
        **options,
    ) as sampler, make(LocalSampler, Remembers(), Game) as twin:  # fmt: skip
        for _ in range(3):
            assert sampler.obtain_fragments(8, 6) == twin.obtain_fragments(8, 6)
        assert sampler.stats.restarts == 1


class Late(Waits):
    """Waits for ever in a third step, unless that is noted."""

    def __init__(self, note: Path) -> None:
        super().__init__()
        self._note = note

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self.t == 3:
            with contextlib.suppress(FileExistsError):  # which another worker may have made
                self._note.touch(exist_ok=False)
                await asyncio.Event().wait()
        return await super().step(action)


@pytest.mark.slow
def test_what_is_late_in_a_fragment(tmp_path: Path) -> None:
    """Its episode cannot begin anew: it is an error, or restored in another worker."""
    options = {"worker_args": {"in_flight": 4}, "step_timeout": 0.3, "check": None, "n_workers": 2}
    env = partial(Late, tmp_path / "first")
    with (
        make(MultiprocessingSampler, Remembers(), env, **options) as sampler,
        pytest.raises(RolloutError, match=r"TimeoutError: step of Late, at timestep 3, exceeded step_timeout=0\.3"),
    ):
        sampler.obtain_fragments(8, 6)
    env = partial(Late, tmp_path / "second")
    with (
        make(MultiprocessingSampler, Remembers(), env, restart_on=TimeoutError, **options) as sampler,
        make(LocalSampler, Remembers(), Game) as twin,
    ):
        for _ in range(3):
            assert sampler.obtain_fragments(8, 6) == twin.obtain_fragments(8, 6)
        assert sampler.stats.restarts == 1


class Counts(Waits):
    """Notes what is made and closed, where `close` waits too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        (folder / f"made-{id(self)}").touch()

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        (self._folder / f"made-{id(self)}").rename(self._folder / f"closed-{id(self)}")


def test_all_environments_are_closed(tmp_path: Path) -> None:
    with make(LocalSampler, Draws(), partial(Counts, tmp_path), worker_args={"in_flight": 3}) as sampler:
        calls(sampler)
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"closed"}


class GoesOn(Waits):
    """Does not end the first time that it is cancelled, until another trajectory is reset."""

    stuck: asyncio.Event | None = None

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self.t == 1 and GoesOn.stuck is None:
            stuck = GoesOn.stuck = asyncio.Event()
            while not stuck.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await stuck.wait()
        return await super().step(action)


@pytest.mark.slow
def test_fragments_after_a_trajectory_that_went_on() -> None:
    """With one in flight episodes have the global generators for themselves: not while another trajectory goes on."""
    GoesOn.stuck = None
    options = {"worker_args": {"in_flight": 1}, "trajectory_timeout": 0.2, "check": None}
    with make(LocalSampler, Draws(), GoesOn, **options) as sampler, make(LocalSampler, Draws(), Game) as twin:
        assert sampler.obtain_trajectories(3) == twin.obtain_trajectories(3)
        assert sampler.obtain_fragments(4, 2) == twin.obtain_fragments(4, 2)
        assert GoesOn.stuck is not None
        GoesOn.stuck.set()
