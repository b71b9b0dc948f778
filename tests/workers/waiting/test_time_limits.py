"""Trajectories that wait too long: they are run again, left out, or an error, and the worker goes on."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RolloutError, UsageError, VecWorker
from streamsampler.workers.waiting.deadlines import ATTEMPTS, Clock, TimeLimits
from tests.patience import closing_patiently
from tests.tiers import mostly_slow
from tests.workers.waiting.envs import Draws, Game

SEED = 5
LIMIT = 0.3


class Late(Game):
    """Waits for ever in the reset or in the second step of every third trajectory, by its seed, so many times."""

    def __init__(self, folder: Path | None, where: str = "step", times: float = 1, *, ends: bool = True) -> None:
        self._folder, self._where, self._times, self._ends = folder, where, times, ends

    async def _wait(self, where: str) -> None:
        await asyncio.sleep(0)
        if where == self._where and self.drawn_seed % 3 == 0 and self._is_late():
            await self._wait_for_ever()

    def _is_late(self) -> bool:
        if self._folder is None:
            return True
        record = self._folder / str(self.drawn_seed)
        n_before = len(record.read_bytes()) if record.exists() else 0
        if n_before < self._times:
            record.write_bytes(b"." * (n_before + 1))
        return n_before < self._times

    async def _wait_for_ever(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self._ends:
                    raise

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        assert seed is not None
        self.drawn_seed = seed
        await self._wait("reset")
        return super().reset(seed=seed, options=options)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await self._wait("step" if self.t == 1 else "")
        return super().step(action)


class LateAgent(Draws):
    """Waits for ever on its second action in every third trajectory, once for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.n, self.seed = 0, seed

    async def get_action(self, observation: Any) -> Any:
        await asyncio.sleep(0)
        self.n += 1
        if self.n == 2 and self.seed % 3 == 0 and not (self._folder / str(self.seed)).exists():
            (self._folder / str(self.seed)).touch()
            await asyncio.Event().wait()
        return super().get_action(observation)


def sampler_of(kind: Any, agent: Any, env: Any, in_flight: int = 7, **options: Any) -> Any:
    if kind is MultiprocessingSampler:
        options = closing_patiently(options)
    limit = {"trajectory_timeout": LIMIT} if kind is LocalSampler else {"step_timeout": LIMIT}
    return kind(agent, env, seed=SEED, worker_args={"in_flight": in_flight}, **limit, **options)


def twin() -> Any:
    return LocalSampler(Draws(), Game, seed=SEED)


def late_of(batch: Any, where: str = "step") -> int:
    """Return how many trajectories of a batch were late once."""
    return sum(
        seed % 3 == 0 and (where == "reset" or length > 1)
        for seed, length in zip(batch.seeds, batch.lengths, strict=True)
    )


@pytest.mark.parametrize("where", mostly_slow(["reset", "step"]))
@pytest.mark.parametrize("in_flight", mostly_slow([*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 7)), 200]))
@pytest.mark.parametrize("kind", mostly_slow([LocalSampler, MultiprocessingSampler]))
def test_what_is_late_is_run_again(kind: Any, in_flight: int, where: str, tmp_path: Path) -> None:
    options = {"check": None, "n_workers": 1}  # with another one, a copy could come first
    with sampler_of(kind, Draws(), partial(Late, tmp_path, where), in_flight, **options) as sampler, twin() as expected:
        batch = sampler.obtain_trajectories(12)
        assert batch == expected.obtain_trajectories(12)
        stats = sampler.stats
        assert stats.timed_out >= late_of(batch, where) > 0, "of later trajectories that are in flight, too"
        assert stats.restarts == stats.hangs == stats.dropped_trajectories == 0
        assert sum(stats.worker_timesteps) == stats.ran_timesteps
        if where == "step":
            assert stats.lost_timesteps >= stats.timed_out, "the first timestep of each"
        assert sampler.obtain_trajectories(12) == expected.obtain_trajectories(12)


def test_an_agent_that_is_late(tmp_path: Path) -> None:
    with sampler_of(LocalSampler, LateAgent(tmp_path), partial(Late, None, "nowhere")) as sampler, twin() as expected:
        assert sampler.obtain_trajectories(30) == expected.obtain_trajectories(30)
        assert sampler.stats.timed_out > 0


@pytest.mark.parametrize("kind", mostly_slow([LocalSampler, MultiprocessingSampler]))
def test_what_is_always_late_is_an_error_that_names_the_line(kind: Any) -> None:
    lines, first = inspect.getsourcelines(Late._wait_for_ever)
    line = first + next(n for n, text in enumerate(lines) if "Event().wait()" in text)
    limit = "trajectory_timeout" if kind is LocalSampler else "step_timeout"
    with sampler_of(kind, Draws(), partial(Late, None)) as sampler:
        late = next(i for i, seed in enumerate(twin_seeds(30)) if seed[0] % 3 == 0 and seed[1] > 1)
        text = (
            rf"failed while stepping the environment in trajectory {late} of agent version 1: TimeoutError: step of "
            rf'Late, at timestep 1, exceeded {limit}=0.3; it waited at line {line} of ".*{Path(__file__).name}", in '
            r"_wait_for_ever"
        )
        with pytest.raises(RolloutError, match=text):
            sampler.obtain_trajectories(30)


def twin_seeds(n: int) -> list[tuple[int, int]]:
    with twin() as sampler:
        batch = sampler.obtain_trajectories(n)
    return list(zip(batch.seeds, batch.lengths.tolist(), strict=True))


@pytest.mark.parametrize("times", mostly_slow([ATTEMPTS - 1, ATTEMPTS]))
def test_how_often_it_is_run_again(times: int, tmp_path: Path) -> None:
    with sampler_of(LocalSampler, Draws(), partial(Late, tmp_path, "step", times), check=None) as sampler:
        if times < ATTEMPTS:
            with twin() as expected:
                assert sampler.obtain_trajectories(12) == expected.obtain_trajectories(12)
        else:
            with pytest.raises(RolloutError, match="exceeded"):
                sampler.obtain_trajectories(12)


@pytest.mark.slow
def test_what_is_late_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with (
        sampler_of(MultiprocessingSampler, Draws(), partial(Late, None), on_failure="drop", n_workers=2) as sampler,
        twin() as expected,
    ):
        with caplog.at_level(logging.WARNING):
            batch = sampler.obtain_trajectories(20)
        kept = [index for index, (seed, length) in enumerate(twin_seeds(200)) if seed % 3 or length == 1][:20]
        assert batch.indices.tolist() == kept
        everything = expected.obtain_trajectories(kept[-1] + 1)
        assert batch == type(batch).concatenate([everything[index] for index in kept])
        stats = sampler.stats
        assert stats.timed_out >= stats.dropped_trajectories == kept[-1] + 1 - 20
        assert str(stats).count("timed out") == 1
    texts = [record.getMessage() for record in caplog.records if "time limit" in record.getMessage()]
    assert len(texts) == 1
    assert "over-represents short trajectories" in texts[0]


@pytest.mark.slow
def test_what_does_not_end_although_it_is_cancelled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its environment is of no use any more, and the worker goes on with another one."""
    with (
        sampler_of(LocalSampler, Draws(), partial(Late, tmp_path, ends=False), in_flight=3, check=None) as sampler,
        twin() as expected,
    ):
        assert sampler.obtain_trajectories(6) == expected.obtain_trajectories(6)
        assert sampler.stats.timed_out > 0
    assert sum("catches asyncio.CancelledError" in record.getMessage() for record in caplog.records) == 1
    assert not any(record.name == "asyncio" for record in caplog.records)


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_a_check_of_what_is_late_ends(ends: bool, tmp_path: Path) -> None:
    env = partial(Late, tmp_path, "reset", ends=ends)
    with sampler_of(LocalSampler, Draws(), env, in_flight=2, check="error") as sampler, twin() as expected:
        assert sampler.obtain_trajectories(4) == expected.obtain_trajectories(4)


class BlocksOnce(Game):
    """Blocks in a second step until it is let go, unless there is a note of that."""

    let_go: list[threading.Event]

    def __init__(self, note: Path) -> None:
        self._note = note

    def step(self, action: Any) -> Any:
        if self.t == 1 and self._is_first():
            self.let_go.append(threading.Event())
            self.let_go[-1].wait()
        return super().step(action)

    def _is_first(self) -> bool:
        try:
            self._note.mkdir()  # of several threads, one can
        except FileExistsError:
            return False
        return True


@pytest.mark.parametrize("in_flight", mostly_slow([1, 4]))
def test_a_step_on_a_thread_that_is_late(in_flight: int, tmp_path: Path) -> None:
    """It cannot be cancelled: the worker goes on without its environment."""
    BlocksOnce.let_go = []
    args: dict[str, Any] = {"in_flight": in_flight, "threads": True}
    limits: dict[str, Any] = {"trajectory_timeout": LIMIT, "check": None}
    with LocalSampler(
        Draws(), partial(BlocksOnce, tmp_path / "note"), seed=SEED, worker_args=args, **limits
    ) as sampler:
        with twin() as expected:
            assert sampler.obtain_trajectories(12) == expected.obtain_trajectories(12)
        assert sampler.stats.timed_out >= len(BlocksOnce.let_go) == 1
        BlocksOnce.let_go[0].set()


class Blocks(Late):
    """Blocks the event loop instead."""

    async def _wait_for_ever(self) -> None:
        threading.Event().wait()


def test_a_step_that_blocks_the_event_loop_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Others wait meanwhile, too; the line that blocks is in the log."""
    env = partial(Blocks, tmp_path, "step")
    with sampler_of(MultiprocessingSampler, Draws(), env, check=None, n_workers=1) as sampler, twin() as expected:
        assert sampler.obtain_trajectories(3) == expected.obtain_trajectories(3)
        assert sampler.stats.restarts == sampler.stats.hangs >= 1
    assert "in _wait_for_ever" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "DefaultWorker has no trajectory_timeout.*max_episode_length"),
        ({"worker_class": VecWorker}, "VecWorker has no trajectory_timeout"),
        ({"worker_args": {"in_flight": 2}, "trajectory_timeout": 0}, "trajectory_timeout must be .* above 0"),
    ],
)
def test_where_there_is_no_such_limit(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        LocalSampler("random", Game, **{"trajectory_timeout": 1.0, **options})


def test_clocks() -> None:
    clock, limits = Clock(began=10.0), TimeLimits(step=2.0, trajectory=5.0)
    assert clock.deadline(limits, 11.0) == 13.0, "of what is begun now"
    assert clock.deadline(limits, 14.0) == 15.0, "of the whole"
    assert clock.deadline(TimeLimits(), 14.0) == math.inf
    assert not clock.judge(limits, 14.9)
    clock.waits_since = 12.0
    assert not clock.judge(limits, 13.9)
    clock.leave_out(1.0)
    assert not clock.judge(limits, 14.9)
    assert clock.judge(limits, 15.0)
    assert clock.exceeded == "step_timeout=2"
    assert not clock.judge(limits, 16.0), "once"
    clock = Clock(began=10.0, waits_since=14.5)
    assert clock.judge(limits, 15.0)
    assert clock.exceeded == "trajectory_timeout=5"
