"""The ends of plain environments on threads: steps that are cancelled, abandoned, or never end."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RolloutError
from streamsampler.workers.waiting.threads import EnvThread
from streamsampler.workers.waiting.worker import AsyncWorker
from tests.tiers import mostly_slow
from tests.workers.waiting.envs import Draws, Game, Told
from tests.workers.waiting.test_async_worker import interrupt_after, twin
from tests.workers.waiting.test_threads import (
    SECONDS,
    Blocks,
    DrawsFromAll,
    make,
    no_thread_is_left,
    threads_of_environments,
)

__all__ = ["no_thread_is_left"]


class Held(Game):
    """Blocks in its first step until it is let go, unless an option says otherwise.

    It tells when it is held (h), has gone on (g), and has closed (x).
    """

    def __init__(self, folder: Path) -> None:
        self._told, self._go = Told(folder), Told(folder / "go")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._options = options or {}
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if "raises" in self._options:  # when another one is held
            assert self._told.wait_for(1) == "h"
            raise ValueError("as it was told to")
        if not self._options:
            self._told.tell("h")
            self._go.wait_for(1)
            self._told.tell("g")
        return super().step(action)

    def close(self) -> None:
        self._told.tell("x")
        self._told.close()
        self._go.close()


class HeldWhereItIsMade(Held):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._told.tell("h")
        self._go.wait_for(1)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    told = Told(tmp_path)
    yield told
    told.close()


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Told]:
    (tmp_path / "go").mkdir()
    go = Told(tmp_path / "go")
    yield go
    go.close()


@pytest.fixture
def letting_go(go: Told) -> Iterator[None]:
    """Ctrl-C lets two steps go."""

    def interrupt(*_: Any) -> None:
        go.tell("..")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("letting_go")
def test_a_step_that_is_cancelled_is_waited_for(
    tmp_path: Path, told: Told, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment, which is in no other thread by then, is reset for the next trajectory."""
    monkeypatch.setattr("streamsampler.workers.waiting.event_loop.CLEANUP_SECONDS", SECONDS)
    env = functools.partial(Held, tmp_path)
    with make(LocalSampler, Draws(), env, in_flight=2, check=None) as sampler:
        with interrupt_after(2, told), pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(2)
        assert told.wait_for(2) == "gg"
        assert len(sampler.obtain_trajectories(3, reset_options={"ends": True})) == 3
    assert told.wait_for(2) == "xx"
    assert not caplog.records


@pytest.mark.parametrize("kind", mostly_slow([LocalSampler, MultiprocessingSampler]))
def test_a_step_that_does_not_end_is_abandoned(
    kind: Any, tmp_path: Path, told: Told, go: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """Its environment is closed on its thread, when the step has ended."""
    env = functools.partial(Held, tmp_path)
    with make(kind, Draws(), env, in_flight=2, check=None, n_workers=1) as sampler:
        with pytest.raises(RolloutError, match="as it was told to"):
            sampler.obtain_trajectories(2, reset_options=[{"raises": True}, None])
        assert told.wait_for(1) == "x"
        assert len(sampler.obtain_trajectories(3, reset_options={"ends": True})) == 3
        go.tell(".")
        assert told.wait_for(2) == "gx"
    assert told.wait_for(2) == "xx"
    assert "is on a thread, which cannot be cancelled" in caplog.text


def test_a_call_that_is_abandoned_is_awaited_no_more() -> None:
    """Its task ends, or Python says at the end that it was destroyed."""
    thread, ended = EnvThread(), threading.Event()

    async def run() -> None:
        task = asyncio.create_task(thread.call(ended.wait))
        await asyncio.sleep(0)  # it waits
        task.cancel()
        await asyncio.sleep(0)  # it waits, although it is cancelled
        assert not task.done()
        thread.abandon(threading.Event)
        await asyncio.wait({task}, timeout=SECONDS)
        assert task.cancelled()

    asyncio.run(run())
    assert thread.is_busy
    ended.set()


def test_ctrl_c_while_an_environment_is_made(tmp_path: Path, told: Told, go: Told) -> None:
    """It is closed when it is there."""
    with make(LocalSampler, Draws(), functools.partial(HeldWhereItIsMade, tmp_path), check=None) as sampler:
        with interrupt_after(1, told), pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(2)
        go.tell(".")
        assert told.wait_for(1) == "x"
        assert len(sampler.obtain_trajectories(2, env_update=Game)) == 2


def test_what_draws_while_an_abandoned_step_goes_on(
    tmp_path: Path, told: Told, go: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that step, although one is in flight."""
    monkeypatch.setattr("streamsampler.workers.waiting.event_loop.CLEANUP_SECONDS", 0.01)
    with (
        make(LocalSampler, Draws(), functools.partial(Held, tmp_path), in_flight=1, check=None) as sampler,
        twin(env=DrawsFromAll) as expected,
    ):
        with interrupt_after(1, told), pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(1)
        abandoned = threads_of_environments()
        with pytest.raises(RolloutError, match="was still in its step"):
            sampler.obtain_trajectories(3, env_update=DrawsFromAll)
        go.tell(".")
        for thread in abandoned:
            thread.join(SECONDS)
        for _ in range(2):
            expected.obtain_trajectories(1)
        assert sampler.obtain_trajectories(3) == expected.obtain_trajectories(3)


class DrawsBetweenTickets(AsyncWorker):
    """Draws when a ticket has ended, as a thread may do whose step goes on."""

    def rollout(self, ticket: Any, seeds: Any) -> Any:
        outcome = super().rollout(ticket, seeds)
        if self._flights._tickets and self._flights.current.begun:
            random.random()
        return outcome


def test_draws_between_tickets_are_found() -> None:
    options: dict[str, Any] = {"worker_class": DrawsBetweenTickets, "check": None, "n_workers": 1}
    error = pytest.raises(RolloutError, match="drew from a global generator")
    with make(MultiprocessingSampler, Draws(), Blocks, **options) as sampler, error:
        sampler.obtain_samples(20_000)


STUCK = """
import os, signal, sys, threading
from streamsampler import LocalSampler, MultiprocessingSampler
from tests.workers.waiting.envs import Draws, Game

class Stuck(Game):
    def step(self, action):
        os.write(1, b"h")
        if sys.argv[1] == "local":
            os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()

arguments = {"seed": 1, "check": None, "n_workers": 1, "worker_args": {"in_flight": 1, "threads": True}}
if __name__ == "__main__":
    kind = {"local": LocalSampler, "processes": MultiprocessingSampler}[sys.argv[1]]
    with kind(Draws(), Stuck, **arguments) as sampler:
        try:
            sampler.obtain_trajectories(1)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""


@pytest.mark.parametrize("where", mostly_slow(["local", "processes"]))
def test_a_step_that_never_ends_keeps_no_process(where: str, tmp_path: Path) -> None:
    """Not this one where it ends, and not a worker's where the sampler's process is killed."""
    (tmp_path / "stuck.py").write_text(STUCK)
    command = [sys.executable, str(tmp_path / "stuck.py"), where]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"h"
        if where == "processes":
            process.kill()
        rest, _ = process.communicate(timeout=SECONDS)  # to the end of what all processes may write there
    assert rest == (b"interrupted\n" if where == "local" else b"")
