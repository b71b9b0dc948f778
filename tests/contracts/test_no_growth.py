"""No growth: a thousand calls leave memory, descriptors and threads where they were."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.contracts.conftest import SIDE_BY_SIDE, Maker
from tests.scripted.envs import AnyLength, Wide

SEED = 31
N_CALLS = 1_000
WARM = 300  # calls, until pools and caches have what they need
PAGE = os.sysconf("SC_PAGE_SIZE")
MB = 1 << 20


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
    """What the sampler's process and its workers take.

    Attributes:
        resident: Bytes that the processes hold, each for itself.
        shared: Bytes of the memory files that they share.
        files: Descriptors.
        threads: Threads.
    """

    resident: int
    shared: int
    files: int
    threads: int


def footprint(pids: list[int]) -> Footprint:
    """Look at processes."""
    resident = files = threads = 0
    shared = {}
    for pid in pids:
        process = Path(f"/proc/{pid}")
        _, all_pages, shared_pages, *_ = map(int, (process / "statm").read_text().split())
        resident += (all_pages - shared_pages) * PAGE
        threads += len(os.listdir(process / "task"))
        for entry in (process / "fd").iterdir():
            try:
                target, status = str(entry.readlink()), entry.stat()
            except OSError:  # the one that lists the folder
                continue
            files += 1
            if "memfd:" in target:
                shared[status.st_ino] = status.st_blocks * 512
    return Footprint(resident, sum(shared.values()), files, threads)


def call(sampler: Any, number: int, n_parameters: int) -> None:
    """Obtain a batch of some size in one way or another, under new parameters.

    No stream: how far workers run ahead in one depends on how fast they are, and what they took at most is kept.
    """
    update = {"parameters": np.full(n_parameters, number)}
    if number % 4 == 2:
        batch = sampler.obtain_trajectories(3, agent_update=update)
    else:
        batch = sampler.obtain_samples(20 + number % 7, agent_update=update)
    assert batch.n_timesteps > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["forkserver", "queues fork"], indirect=True)
@pytest.mark.parametrize(
    ("n_parameters", "env", "options"),
    [(40_000, Wide, {}), (8, AnyLength, SIDE_BY_SIDE)],
    ids=["large", "small and several"],
)
def test_a_thousand_calls_leave_nothing(
    make_sampler: Maker, n_parameters: int, env: type[gymnasium.Env], options: dict[str, Any]
) -> None:
    sampler = make_sampler(Holding(n_parameters), env, n_workers=2, seed=SEED, **options)
    seen = []
    for number in range(1, N_CALLS + 1):
        call(sampler, number, n_parameters)
        if number % 20 == 0 and number >= WARM:
            gc.collect()
            seen.append(footprint([os.getpid(), *sampler.worker_pids()]))
    early, late = seen[: len(seen) // 3], seen[-len(seen) // 3 :]
    for name, tolerance in (("files", 0), ("threads", 0), ("shared", MB / 2), ("resident", MB)):
        before, after = (median(getattr(one, name) for one in part) for part in (early, late))
        assert after <= before + tolerance, f"{name}: {before:,} before, {after:,} after"
    assert sampler.stats.restarts == 0
