"""Trajectories of environments that wait, run again: with the agent, with recorded actions, and filmed."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, evaluate, replay
from tests.workers.waiting.envs import DrawsLater, Game, Waits

films = pytest.mark.skipif(importlib.util.find_spec("av") is None, reason="needs the extra video")


class Shows(Waits):
    """Can be filmed."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((32, 32, 3), 10 * self.t, np.uint8)


@pytest.fixture(scope="module")
def batch() -> Any:
    with MultiprocessingSampler(DrawsLater(), Waits, seed=1, worker_args={"in_flight": 4}) as sampler:
        return sampler.obtain_trajectories(10)


@pytest.mark.parametrize("env", [Waits, lambda: Waits()], ids=["class", "function"])
@pytest.mark.parametrize("actions", [False, True])
def test_a_trajectory_of_a_sampler_or_a_file(batch: Any, env: Any, actions: bool, tmp_path: Path) -> None:
    options = {"worker_args": {"in_flight": 4}}
    with LocalSampler(DrawsLater(), env, seed=1, **options) as sampler:  # type: ignore[arg-type]
        assert sampler.obtain_trajectories(10) == batch
        assert sampler.replay(1, 3, recorded=batch, actions=actions).same
    batch.save(tmp_path / "batch.npz")
    agent = {} if actions else {"agent": DrawsLater()}
    assert replay(tmp_path / "batch.npz", 3, env=env, actions=actions, **agent, **options).same  # type: ignore[arg-type]
    found = replay(tmp_path / "batch.npz", 3, env=Game, actions=True)
    assert found.same, "its twin does the same"


def test_an_episode_of_fragments() -> None:
    with LocalSampler(DrawsLater(), Waits, seed=1, worker_args={"in_flight": 4}) as sampler:
        batches = [sampler.obtain_fragments(8, 6) for _ in range(2)]
        index = int(batches[1].indices[batches[1].continued][0])
        assert sampler.replay(2, index, recorded=TrajectoryBatch.concatenate(batches), actions=True).same


@films
@pytest.mark.parametrize("in_loop", [False, True])
def test_a_film(in_loop: bool, tmp_path: Path) -> None:
    def film() -> None:
        with LocalSampler(DrawsLater(), Shows, seed=1, worker_args={"in_flight": 4}) as sampler:
            recorded = sampler.obtain_trajectories(5)
            for actions in (False, True):
                path = tmp_path / f"{actions}.mp4"
                assert sampler.replay(1, 3, recorded=recorded, actions=actions, video=path).same
                assert path.stat().st_size > 0

    async def within_a_loop() -> None:
        film()

    if in_loop:
        asyncio.run(within_a_loop())
    else:
        film()


@films
def test_an_evaluation_with_films(tmp_path: Path) -> None:
    found = evaluate(
        DrawsLater(), Shows, n_trajectories=6, seed=1, worker_args={"in_flight": 4}, video=tmp_path / "films"
    )
    assert found.returns.tolist() == evaluate(DrawsLater(), Waits, n_trajectories=6, seed=1).returns.tolist()
    assert list((tmp_path / "films").iterdir())
