"""C4: waiting costs no CPU, and neither a consumer that stalls nor many calls cost more and more memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RaySampler, TrajectoryBatch
from streamsampler.errors import ClosedError, SamplerError
from streamsampler.protocol import trace
from streamsampler.workers.fail_points import Records
from tests.contracts.conftest import PARENT, PROCESSES, RAY, SIDE_BY_SIDE, SLOW_QUEUES, Maker, on, slow
from tests.scripted.agents import Stamping, always_zero
from tests.scripted.envs import AnyLength, SlowOne, Steps, Wide, counted, jittery

SEED = 23


@pytest.mark.slow  # as all that is measured
@on("processes", "waiting processes", "queues fork", PARENT, RAY)
def test_the_parent_sleeps_while_workers_do(make_sampler: Maker) -> None:
    sampler = make_sampler(always_zero, partial(Steps, 2), n_workers=2, seed=SEED)
    sampler.obtain_trajectories(4)
    gc.collect()  # what earlier tests left takes 60 ms, whenever it is looked through
    wall, cpu = time.perf_counter(), time.process_time()
    batch = sampler.obtain_trajectories(2, env_update=partial(Steps, 2, pause=0.75))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert len(batch) == 2
    assert wall >= 1.5
    assert cpu < 0.02 * wall


@on("waiting processes", *PROCESSES)
def test_the_parent_waits_without_a_limit(make_sampler: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing has a deadline nothing wakes it but a worker. Here each worker has its own indices: none copies."""
    sampler = make_sampler(2 * [always_zero], Steps, n_workers=2, seed=SEED)
    engine, limits = sampler._life.session.engine, []
    wait = engine.wait

    def noted_wait(timeout: float | None) -> Any:
        limits.append(timeout)
        return wait(timeout)

    monkeypatch.setattr(engine, "wait", noted_wait)
    assert len(sampler.obtain_trajectories(6)) == 6
    assert set(limits) == {None}


def memory_files() -> dict[int, int]:
    """The memory files of this process, those it shares with workers: by inode, the bytes that they take."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:" in str(entry.readlink()):
                status = entry.stat()
                found[status.st_ino] = status.st_blocks * 512
        except OSError:  # the one that lists the folder
            continue
    return found


def cpu_ticks(sampler: Any) -> int:
    """CPU time of the workers' processes; of an actor but for the main thread, which is Ray's and runs no worker."""
    ticks = 0
    for pid in sampler.worker_pids():
        threads = {entry.name: entry for entry in Path(f"/proc/{pid}/task").iterdir()}
        if isinstance(sampler, RaySampler):
            del threads[str(pid)]
        for entry in threads.values():
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks


@pytest.mark.slow
@on("processes", "waiting processes", "queues fork", PARENT)
def test_a_stalled_consumer(make_sampler: Maker, make_local: Callable[..., LocalSampler], tmp_path: Path) -> None:
    records = Records(tmp_path)
    make_env = counted(partial(AnyLength, pause=0.0005), tmp_path)
    sampler = make_sampler(always_zero, make_env, n_workers=2, seed=SEED)
    stream = sampler.stream()
    trajectories = [next(stream) for _ in range(30)]

    stall = threading.Event()
    assert not stall.wait(4.0)
    after_a_while, memory = (records.count("resets"), records.count("steps")), memory_files()
    cpu, own_cpu = cpu_ticks(sampler), time.process_time()
    assert not stall.wait(0.8)
    own_cpu = time.process_time() - own_cpu  # before anything is looked at, which takes time of its own
    # Nothing moved any more: no step, no byte, no CPU.
    assert (records.count("resets"), records.count("steps")) == after_a_while
    assert memory_files() == memory
    assert cpu_ticks(sampler) - cpu <= 0.02 * os.sysconf("SC_CLK_TCK")
    assert own_cpu < 0.02
    # In five seconds two workers could have run thousands of trajectories.
    assert 30 <= after_a_while[0] <= 400

    trajectories += [next(stream) for _ in range(300)]
    stream.close()
    twin = make_local(always_zero, AnyLength, seed=SEED)
    assert TrajectoryBatch.concatenate(trajectories) == twin.obtain_trajectories(330)


@pytest.mark.slow
@on("processes")
def test_memory_does_not_grow_from_stream_to_stream(make_sampler: Maker) -> None:
    others = memory_files().keys()
    sampler = make_sampler(Stamping(), jittery(Wide, 0.0005), n_workers=3, seed=SEED)
    taken = []
    for _ in range(80):
        with sampler.stream() as stream:
            for _ in range(20):
                next(stream)
        next(sampler.stream())  # the next stream ends this
        taken.append(sum(size for inode, size in memory_files().items() if inode not in others))
    assert max(taken[:20]) > 8_000
    # What workers run ahead varies with the machine's speed, and the most of it is kept: so there is more than ever
    # before from time to time. What grows with each call is more than ever before after each.
    assert sum(now > max(taken[:call]) for call, now in enumerate(taken) if call >= 20) < 20


class Holding:
    """Has parameters, as many as it is given."""

    def __init__(self, n_parameters: int) -> None:
        self.parameters = np.zeros(n_parameters)

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return int(self.parameters[0]) % 2, {"noted": self.parameters[:3]}

    def set_param_values(self, values: dict[str, Any]) -> None:
        self.parameters = np.array(values["parameters"])


@dataclass
class Footprint:
    """What the sampler's process and its workers hold: bytes for themselves and together, descriptors and threads."""

    resident: int = 0
    shared: int = 0
    files: int = 0
    threads: int = 0

    @classmethod
    def of(cls, pids: list[int]) -> Footprint:
        found, shared = cls(), {}
        for process in (Path(f"/proc/{pid}") for pid in pids):
            _, all_pages, shared_pages, *_ = map(int, (process / "statm").read_text().split())
            found.resident += (all_pages - shared_pages) * os.sysconf("SC_PAGE_SIZE")
            found.threads += len(os.listdir(process / "task"))
            for entry in (process / "fd").iterdir():
                try:
                    target, status = str(entry.readlink()), entry.stat()
                except OSError:  # the one that lists the folder
                    continue
                found.files += 1
                if "memfd:" in target:
                    shared[status.st_ino] = status.st_blocks * 512
        found.shared = sum(shared.values())
        return found


@pytest.fixture
def short_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let schedulers keep so few events that their traces are full before memory is looked at."""
    monkeypatch.setattr(trace, "N_EVENTS", 200)


@pytest.mark.slow
@on("processes", "queues fork")
@pytest.mark.parametrize(
    ("n_parameters", "env", "options"),
    [(40_000, Wide, {}), (8, AnyLength, SIDE_BY_SIDE)],
    ids=["large", "small and several"],
)
def test_a_thousand_calls_leave_nothing(
    make_sampler: Maker, short_trace: None, n_parameters: int, env: Any, options: Any
) -> None:
    """No stream: how far workers run ahead in one depends on how fast they are, and what they took at most is kept."""
    sampler = make_sampler(Holding(n_parameters), env, n_workers=2, seed=SEED, **options)
    leave_nothing_in_a_thousand_calls(sampler, n_parameters)


@pytest.mark.slow
@on("waiting processes")
def test_a_thousand_calls_on_event_loops_leave_nothing(make_sampler: Maker, short_trace: None) -> None:
    leave_nothing_in_a_thousand_calls(make_sampler(Holding(40_000), Wide, n_workers=2, seed=SEED), 40_000)


def leave_nothing_in_a_thousand_calls(sampler: MultiprocessingSampler, n_parameters: int) -> None:
    """Call a sampler with new parameters each time, and assert that its processes have no more of anything."""
    seen = []
    for number in range(1, 1_001):
        update = {"parameters": np.full(n_parameters, number)}
        if number % 4 == 2:
            sampler.obtain_trajectories(3, agent_update=update)
        else:
            sampler.obtain_samples(20 + number % 7, agent_update=update)
        if number % 20 == 0 and number >= 300:  # until then pools and caches get what they need
            gc.collect()
            seen.append(Footprint.of([os.getpid(), *sampler.worker_pids()]))
    early, late = seen[: len(seen) // 3], seen[-len(seen) // 3 :]
    for name, tolerance in (("files", 0), ("threads", 0), ("shared", 1 << 19), ("resident", 1 << 20)):
        before, after = (median(getattr(one, name) for one in part) for part in (early, late))
        assert after <= before + tolerance, f"{name}: {before:,} before, {after:,} after"
    assert sampler.stats.restarts == 0


@on("processes", *SLOW_QUEUES, *slow(PARENT))
def test_a_slow_trajectory_at_the_head_of_a_stream(
    make_sampler: Maker, make_local: Callable[..., LocalSampler]
) -> None:
    """The workers run ahead as far as they may, and go on when the slow one is in."""
    expected = make_local(always_zero, AnyLength, seed=SEED).obtain_trajectories(200)
    sampler = make_sampler(always_zero, partial(SlowOne, expected.seeds[0], 0.1), n_workers=3, seed=SEED)
    stream = sampler.stream()
    assert TrajectoryBatch.concatenate([next(stream) for _ in range(200)]) == expected
    stream.close()


@on("local", "waiting", "processes", *slow("vec", PARENT))
def test_a_stream_that_was_overtaken_or_closed_yields_no_more(
    make_sampler: Maker, make_local: Callable[..., LocalSampler]
) -> None:
    """What it had in store was made by an older version: here many trajectories come in one report."""
    sampler = make_sampler(Stamping(), AnyLength, n_workers=2, seed=SEED)
    twin = make_local(Stamping(), AnyLength, seed=SEED)
    for error, end in ((SamplerError, lambda: sampler.obtain_trajectories(1)), (ClosedError, sampler.close)):
        stream = sampler.stream()
        trajectories = [next(stream) for _ in range(300)]
        assert TrajectoryBatch.concatenate(trajectories) == twin.obtain_trajectories(300)
        end()
        twin.obtain_trajectories(1)
        with pytest.raises(error):
            next(stream)
