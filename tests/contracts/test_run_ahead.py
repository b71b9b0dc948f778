"""`staleness=1`: workers sample the next batch between two calls, as much of it as the last call needed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.errors import RolloutError
from streamsampler.samplers.session import Session
from streamsampler.testing import Fault, Faults
from streamsampler.testing.fail_points import Records
from tests.contracts.conftest import RAY, Maker
from tests.faults.test_interrupts import raise_once
from tests.scripted.agents import Stamping
from tests.scripted.envs import AnyLength, Steps

LAGGING: dict[str, Any] = {"seed": 29, "staleness": 1, "check": None}
LIMIT = 120.0  # seconds for what comes at once

ENGINES = ["forkserver", pytest.param("queues fork", marks=pytest.mark.slow)]
ALL = pytest.mark.parametrize("engine", [*ENGINES, "lanes forkserver", RAY], indirect=True)
PROCESSES = pytest.mark.parametrize("engine", ENGINES, indirect=True)


@pytest.fixture(autouse=True)
def every_worker_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a complete call wait for each worker's last answer: one that needs long for it would not run ahead."""
    monkeypatch.setattr("streamsampler.samplers.run_ahead._PATIENCE", LIMIT)


class Telling(AnyLength):
    """Records each trajectory that ends, and each timestep."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.ends, self.steps = Records(folder / "ends"), Records(folder / "steps")

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self.steps.add("steps")
        if result[2]:
            self.ends.add("ends")
            self.ends.wake()
        return result


class Endless(Telling):
    """Lasts for ever in one trajectory."""

    def __init__(self, folder: Path, long_seed: int) -> None:
        super().__init__(folder)
        self.long_seed = long_seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self.length = -1 if seed == self.long_seed else self.length
        return result

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.length < 0:
            self.ends.add("endless")
            self.ends.wake()
            time.sleep(0.001)
            return Steps.step(self, action)
        return super().step(action)


def telling(folder: Path) -> tuple[Any, Records, Records]:
    return partial(Telling, folder), Records(folder / "ends"), Records(folder / "steps")


def twins(n_calls: list[int]) -> list[Any]:
    """What the calls return where nobody runs ahead."""
    with LocalSampler(Stamping(), AnyLength, **LAGGING) as sampler:
        return [sampler.obtain_trajectories(n, agent_update=(c,)) for c, n in enumerate(n_calls, start=1)]


@ALL
def test_workers_run_ahead(make_sampler: Maker, tmp_path: Path) -> None:
    """All of the next batch."""
    env, ends, steps = telling(tmp_path)
    sampler = make_sampler(Stamping(), env, n_workers=2, **LAGGING)
    batches = []
    for number in (1, 2, 3, 4):
        batches.append(sampler.obtain_trajectories(8, agent_update=(number,)))
        ends.wait(8 * (number + 1), LIMIT)
    assert batches == twins([8] * 4)
    sampler.close()
    assert sampler.stats.ran_timesteps == steps.count(), "also of what nobody asked for any more"


@PROCESSES
@pytest.mark.slow
def test_workers_run_nothing_else(make_sampler: Maker, tmp_path: Path) -> None:
    """Then the call has nothing left to do. Here each worker has its own indices: nothing is run by two workers."""
    env, ends, _ = telling(tmp_path)
    sampler = make_sampler([Stamping(), Stamping()], env, n_workers=2, **LAGGING)
    batches = []
    for number in (1, 2, 3, 4):
        batches.append(sampler.obtain_trajectories(8, agent_update=(number,)))
        ends.wait(8 * (number + 1), LIMIT)
    assert batches == twins([8] * 4)
    assert ends.count() == 40
    stats = sampler.stats
    assert (stats.kept_trajectories, stats.surplus_trajectories, stats.stale_trajectories) == (32, 0, 0)
    assert stats.abandoned_timesteps == 0


@PROCESSES
@pytest.mark.slow
def test_a_call_that_needs_less_or_more(make_sampler: Maker, tmp_path: Path) -> None:
    env, ends, _ = telling(tmp_path)
    sampler = make_sampler(Stamping(), env, n_workers=1, **LAGGING)
    numbers, ran, batches = [8, 8, 3, 9, 9], 0, []
    for number, n in enumerate(numbers, start=1):
        batches.append(sampler.obtain_trajectories(n, agent_update=(number,)))
        ran += max(n, numbers[number - 2] if number > 1 else 0)
        ends.wait(ran + n, LIMIT)
        assert ends.count() == ran + n
    assert batches == twins(numbers)
    assert sampler.stats.surplus_trajectories + sampler.stats.stale_trajectories == 5


@PROCESSES
@pytest.mark.slow
def test_what_was_begun_otherwise_is_not_used(make_sampler: Maker, tmp_path: Path) -> None:
    env, ends, _ = telling(tmp_path)
    sampler = make_sampler(Stamping(), env, n_workers=2, **LAGGING)
    results = []
    for one in (sampler, twin := LocalSampler(Stamping(), AnyLength, **LAGGING)):
        batches = [one.obtain_trajectories(8)]
        if one is sampler:
            ends.wait(16, LIMIT)
        batches.append(one.obtain_trajectories(8, reset_options={"level": 2}))
        batches.append(one.obtain_trajectories(seeds=[5, 7]))
        batches.append(one.obtain_samples(20))
        results.append(batches)
    twin.close()
    assert results[0] == results[1]
    stats = sampler.stats
    assert stats.stale_trajectories + stats.surplus_trajectories >= 8, "one of the first call's may be among the 16"


@PROCESSES
@pytest.mark.slow
def test_all_workers_die_between_two_calls(make_sampler: Maker, tmp_path: Path) -> None:
    env, ends, _ = telling(tmp_path)
    sampler = make_sampler(Stamping(), env, n_workers=2, **LAGGING)
    batches, n_killed = [], 0
    for number in (1, 2, 3, 4):
        batches.append(sampler.obtain_trajectories(8, agent_update=(number,)))
        if number in (1, 3):
            ends.wait(8 * number + 1, LIMIT)
            for pid in sampler.worker_pids():
                with contextlib.suppress(ProcessLookupError):  # killed before, and not needed since
                    os.kill(pid, signal.SIGKILL)
                    n_killed += 1
    assert batches == twins([8] * 4)
    assert n_killed >= 2
    assert sampler.stats.restarts >= 1  # as many as there was work for


@PROCESSES
def test_an_exception_between_two_calls_is_of_the_next(make_sampler: Maker, tmp_path: Path) -> None:
    # Each time: where a copy succeeds first the failure is forgotten.
    faults = Faults(tmp_path, Fault("raise", version=2, trajectory=1, times=None), seed=LAGGING["seed"])
    sampler = make_sampler(Stamping(), faults.env(AnyLength), n_workers=2, **LAGGING)
    batches = [sampler.obtain_trajectories(8, agent_update=(number,)) for number in (1, 2)]
    faults.wait(1, LIMIT)
    assert batches == twins([8, 8])
    with pytest.raises(RolloutError, match="in trajectory 1 of agent version 2"):
        sampler.obtain_trajectories(8, agent_update=(3,))
    anew = sampler.obtain_trajectories(8, agent_update=(4,))
    assert set(anew.actions.tolist()) == {4}


@PROCESSES
def test_an_exception_is_found_although_nothing_comes_after_it(
    make_sampler: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call has read all answers before it waits for the first time."""
    faults = Faults(tmp_path, Fault("raise", version=1, trajectory=4), seed=LAGGING["seed"])
    sampler = make_sampler(Stamping(), faults.env(AnyLength), n_workers=1, **LAGGING)
    sampler.obtain_trajectories(4)
    session = sampler._session
    wait = session.engine.wait

    def wait_for_all(timeout: float | None) -> list[Any]:
        assert timeout == 0.0, "the call would wait for ever"
        events = wait(None)
        while len(events) < len(session.records[0].side.unanswered):
            events += wait(None)
        return events

    with monkeypatch.context() as patch:
        patch.setattr(session.engine, "wait", wait_for_all)
        with pytest.raises(RolloutError, match="in trajectory 4 of agent version 1"):
            sampler.obtain_trajectories(4)
    assert len(sampler.obtain_trajectories(4)) == 4


@PROCESSES
@pytest.mark.slow
def test_closing_stops_what_runs_ahead(make_sampler: Maker, tmp_path: Path) -> None:
    """The fixture looks for what is left behind."""
    _, ends, _ = telling(tmp_path)
    with LocalSampler(Stamping(), AnyLength, **LAGGING) as sampler:
        (long_seed,) = sampler.seeds(1, [2])
    sampler = make_sampler(Stamping(), partial(Endless, tmp_path, long_seed), n_workers=2, **LAGGING)
    assert len(sampler.obtain_trajectories(2)) == 2
    ends.wait(ends.count() + 5, LIMIT)
    sampler.close()
    assert ends.count("endless") > 0


def test_an_interrupt_while_the_next_batch_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the batch that is complete is lost."""
    with MultiprocessingSampler(Stamping(), AnyLength, n_workers=2, **LAGGING) as sampler:
        batches = [sampler.obtain_trajectories(4, agent_update=(1,))]
        raise_once(monkeypatch, Session, "begin_tickets", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(4, agent_update=(2,))
        salvaged = sampler.salvage()
        assert salvaged is not None
        assert [*batches, salvaged] == twins([4, 4])
        anew = sampler.obtain_trajectories(4, agent_update=(3,))
        assert (anew.agent_version, set(anew.actions.tolist())) == (3, {3})
