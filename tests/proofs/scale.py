"""With 100 and 1,000 simulated workers a batch is that of one worker, and a report costs at most twice as much.

Workers are simulated in virtual time, with losses; the sampler is the real one. See `benchmarks.contenders.virtual`.

What the garbage collector takes is measured apart. While one of many workers hangs, thousands of trajectories wait
for its trajectories' turns, and the collector looks at all of them several times.
"""

from __future__ import annotations

import gc
import logging
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time
from typing import NamedTuple

import numpy as np

from benchmarks.contenders.virtual import Costs, VirtualSampler
from benchmarks.problems.measured import MEASURED, ON_POLICY, Distribution, Replayed, chosen
from streamsampler import LocalSampler, TrajectoryBatch

_COSTS = Costs(report=1e-4, start=5e-5, restart=5e-3, losses=0.001, step_timeout=60.0)
# Each worker lives for two seconds.
_MANY_LOSSES = Costs(report=1e-4, start=5e-5, restart=5e-3, losses=1800.0, ready=0.01, step_timeout=0.1)
_FEW, _MANY = 100, 1_000
_SECONDS = 10.0
"""Of a trajectory, on average: long. So a report brings one trajectory, whatever
the number of workers, and all workers report about as often; of short ones a few workers would run all."""


class _Cost(NamedTuple):
    """µs of CPU for a report: without the garbage collector, and all."""

    own: float
    all: float


@contextmanager
def _collector() -> Iterator[list[float]]:
    """Add up the seconds of CPU that the garbage collector takes."""
    taken, began = [0.0], [0.0]

    def note(phase: str, _: object) -> None:
        if phase == "start":
            began[0] = process_time()
        else:
            taken[0] += process_time() - began[0]

    gc.callbacks.append(note)
    try:
        yield taken
    finally:
        gc.callbacks.remove(note)


def _check_equal(batch: TrajectoryBatch, other: TrajectoryBatch, what: str) -> None:
    assert batch.seeds == other.seeds, what
    for name in ("observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths"):
        assert np.array_equal(getattr(batch, name), getattr(other, name)), f"{what}: {name}"


def _measure(distribution: Distribution, n_workers: int, n_timesteps: int, costs: Costs, n_calls: int) -> _Cost:
    """Obtain batches, compare each with that of one worker, and return the median costs of a report."""
    costs_of_calls = []
    with VirtualSampler(distribution, n_workers, costs) as many, VirtualSampler(distribution, 1) as one:
        for call in range(1 + n_calls):
            gc.collect()  # not in the measured time: it is of what the comparison left
            before = many.stats.reports
            with _collector() as collector:
                batch, seconds = many.measured(lambda: many.obtain_samples(n_timesteps))
            if call:  # the first one has to learn how long trajectories are
                n_reports = many.stats.reports - before
                costs_of_calls.append(_Cost(1e6 * (seconds - collector[0]) / n_reports, 1e6 * seconds / n_reports))
            if call in (0, 1):
                _check_equal(batch, one.obtain_samples(n_timesteps), f"{distribution.name}, {n_workers} workers")
        cost = _Cost(*map(statistics.median, zip(*costs_of_calls, strict=True)))
        losses = f"{many.virtual.deaths} losses, {many.stats.hangs} of them hung"
        print(f"{distribution.name}, {n_workers} workers: {many.stats.reports} reports, {losses}; {cost}", flush=True)
    return cost


def _check_alone(distribution: Distribution) -> None:
    """Compare simulated trajectories with those of an environment that is stepped."""
    with (
        VirtualSampler(distribution, _FEW) as many,
        LocalSampler(chosen, Replayed, env_kwargs={"distribution": distribution}, seed=1) as one,
    ):
        _check_equal(many.obtain_samples(20_000), one.obtain_samples(20_000), f"{distribution.name}, stepped")


def prove(scale: str) -> None:
    """Sample with few workers and with many."""
    logging.getLogger("streamsampler").setLevel(logging.ERROR)  # hundreds of losses are meant
    per_worker = 50 if scale == "short" else 500
    for measured in [ON_POLICY] if scale == "short" else MEASURED.values():
        distribution = measured.lasting(_SECONDS)
        _check_alone(distribution)
        n = per_worker * (2 if measured is MEASURED["half_cheetah"] else 1)
        cases = ((_FEW, 20), (_MANY, 2), (_FEW, 20))
        few, many, again = (_measure(distribution, of, of * n, _COSTS, n_calls) for of, n_calls in cases)
        own, everything = (mine / max(one, other) for one, mine, other in zip(few, many, again, strict=True))
        print(
            f"{distribution.name}: a report costs {own:.2f} times as much with {_MANY} workers, {everything:.2f} in all"
        )
        assert own <= 2.0, distribution.name
        assert everything <= 2.5, distribution.name
    _measure(ON_POLICY, 1_000, 1_000 * per_worker, _MANY_LOSSES, 1)
