"""How many workers can one sampler serve, and what limits it?

python -m benchmarks scale [--quick]

First the sampler's own costs are measured: of a report (with real pipes and arenas), of an update and of a worker. Then
100 to 10,000 workers are simulated in virtual time (see `benchmarks.contenders.virtual`): gathering, tickets and
supervision are the real ones, lengths and times of trajectories were measured, and each worker is lost with a
probability of 0.1 % an hour. While the sampler takes in a report, the virtual clock moves on: where the reports of all
workers take longer than the workers need to make them, workers wait.

`short tickets` holds tickets at 0.1 s, whatever the number of workers. With `four samplers`, each has a quarter of
the workers and of the indices: the batch is the union of theirs.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.contenders.simulated import ParentCost
from benchmarks.contenders.virtual import Costs, VirtualSampler
from benchmarks.harness.charts import lines_chart
from benchmarks.harness.machine import describe
from benchmarks.harness.question import arguments, save
from benchmarks.harness.tables import goals_table, table
from benchmarks.problems import agents
from benchmarks.problems.measured import CARTPOLE, HALF_CHEETAH, ON_POLICY, Distribution
from streamsampler import MultiprocessingSampler
from streamsampler.protocol import tickets as throughput

NUMBERS = (100, 300, 1_000, 3_000, 10_000)
WORKLOADS = {"CartPole-v1": (CARTPOLE, 150), "HalfCheetah-v5": (HALF_CHEETAH, 1_000), "on-policy": (ON_POLICY, 150)}
"""Whose trajectories, and how many timesteps for each worker in a call."""

SECONDS_OF_A_TRAJECTORY = 10.0  # as long as tickets are with 10,000 workers, so that each report brings one
CALLS_OF_FEW = 30  # with the fewest workers
REAL_WORKERS = 8
SECONDS_OF_WORK = 1.0  # for each worker, in a call: enough for several tickets

COARSE = Distribution(HALF_CHEETAH.name, (10,) * 21, tuple(100 * each for each in HALF_CHEETAH.microseconds))
"""As many trajectories, of the same times, and a hundredth of the timesteps, so that memory suffices."""


def costs_of_sampler() -> dict[str, float]:
    """Measure what a report, an update and a worker cost the sampler's process, in seconds of CPU."""
    cost = ParentCost(64, 8)
    try:
        report = statistics.median(cost.measure(2_000) for _ in range(3))
    finally:
        cost.close()
    began = time.process_time()
    with MultiprocessingSampler(agents.Linear((1.0,) * 4), "CartPole-v1", n_workers=REAL_WORKERS, seed=1) as sampler:
        worker = (time.process_time() - began) / REAL_WORKERS
        sampler.obtain_trajectories(REAL_WORKERS)
        spent = {}
        for update in (None, agents.Linear((0.5,) * 4)):
            took = []
            for _ in range(20):
                began = time.process_time()
                sampler.obtain_trajectories(REAL_WORKERS, agent_update=update)
                took.append(time.process_time() - began)
            spent[update is None] = statistics.median(took)
    return {"report": report, "update": max(0.0, spent[False] - spent[True]) / REAL_WORKERS, "worker": worker}


def growth(distribution: Distribution, n_workers: int, per_worker: int) -> dict[str, float]:
    """Return what a report and a worker cost the sampler: µs of CPU and bytes; nothing is charged to the clock."""
    n_calls = max(1, CALLS_OF_FEW * NUMBERS[0] // n_workers)
    with VirtualSampler(distribution, n_workers, Costs(losses=0.001, step_timeout=60.0)) as sampler:
        sampler.obtain_samples(n_workers * per_worker // 2)
        reports, spent = sampler.stats.reports, 0.0
        for _ in range(n_calls):
            spent += sampler.measured(lambda: sampler.obtain_samples(n_workers * per_worker))[1]
        cost = spent / (sampler.stats.reports - reports)
        empty = sampler.measured(lambda: sampler.obtain_trajectories(1))[1] / n_workers
    tracemalloc.start()
    with VirtualSampler(distribution, n_workers) as sampler:
        memory = tracemalloc.get_traced_memory()[0] / n_workers
    tracemalloc.stop()
    return {"report": 1e6 * cost, "call": 1e6 * empty, "bytes": memory}


@contextmanager
def short_tickets() -> Iterator[None]:
    """Hold tickets at the size that they have with few workers."""
    names = ("SHARE_OF_TICKETS", "SHARE_OF_SHORTEST")
    kept = {name: getattr(throughput, name) for name in names}
    try:
        for name in names:
            setattr(throughput, name, 0.0)
        yield
    finally:
        for name, value in kept.items():
            setattr(throughput, name, value)


def efficiency(n_workers: int, costs: Costs) -> tuple[float, float]:
    """Return the share of their time that workers spent on what was returned, and that the sampler was busy."""
    n = round(SECONDS_OF_WORK * n_workers / COARSE.seconds)
    with VirtualSampler(COARSE, n_workers, costs) as sampler:
        sampler.obtain_trajectories(n // 4)
        began, occupied = sampler.virtual.now, sampler.virtual.busy
        seeds = sampler.obtain_trajectories(n).seeds
        took, busy = sampler.virtual.now - began, sampler.virtual.busy - occupied
    ideal = float(COARSE.seconds_of(seeds, COARSE.lengths_of(seeds)).sum()) / n_workers
    return ideal / took, busy / took


def saturation(costs: Costs, numbers: tuple[int, ...]) -> dict[str, list[tuple[float, float]]]:
    """Return the efficiency with each number of workers, in three forms."""
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "short tickets": [], "four samplers": []}
    for n_workers in numbers:
        found["ours"].append(efficiency(n_workers, costs))
        found["four samplers"].append(efficiency(n_workers // 4, costs))
        with short_tickets():
            found["short tickets"].append(efficiency(n_workers, costs))
    return found


def main() -> None:
    """Answer the question."""
    args = arguments("scale", 1.0, 1)
    machine, numbers = describe(), NUMBERS[:3] if args.quick else NUMBERS
    costs = costs_of_sampler()
    grown = {
        name: [growth(distribution.lasting(SECONDS_OF_A_TRAJECTORY), n, per_worker) for n in numbers]
        for name, (distribution, per_worker) in WORKLOADS.items()
    }
    charged = Costs(costs["report"], costs["update"], costs["worker"], losses=0.001, step_timeout=60.0)
    found = saturation(charged, numbers)
    header = ["workers", *(f"{name}, µs" for name in grown), *(f"{name}, share" for name in found), "sampler busy"]
    rows = [
        [
            str(n),
            *(f"{each[at]['report']:.0f}" for each in grown.values()),
            *(f"{each[at][0]:.2f}" for each in found.values()),
            f"{found['ours'][at][1]:.2f}",
        ]
        for at, n in enumerate(numbers)
    ]
    last = [each[-1] for each in grown.values()]
    notes = [
        f"the sampler's CPU: {1e6 * costs['report']:.0f} µs for a report, {1e6 * costs['update']:.0f} µs for an update "
        f"of each worker, {1e3 * costs['worker']:.1f} ms for the start of a worker",
        f"with {numbers[-1]:,} workers: {max(it['bytes'] for it in last) / 1e3:.1f} kB of the sampler's memory "
        f"for each, and {max(it['call'] for it in last):.0f} µs of its CPU for each in any call",
    ]
    goals = []
    for name, each in grown.items():
        ratio = each[-1]["report"] / each[0]["report"]
        text = f"CPU for a report on {name}, {numbers[-1]:,} workers to {numbers[0]}"
        goals.append({"text": text, "wanted": 2.0, "most": True, "value": ratio, "met": ratio <= 2.0})
    print(table(header, rows), goals_table(goals), *notes, sep="\n")
    title = "How many workers can one sampler serve?"
    contents = {"costs": costs, "growth": grown, "saturation": found, "numbers": numbers}
    save("scale", {"title": title, **contents, "goals": goals, "notes": notes, "table": [header, *rows]}, args, machine)
    if not args.quick:
        panels = {
            "µs of the sampler's CPU for a report": {
                name: [it["report"] for it in each] for name, each in grown.items()
            },
            "share of the workers' time that is used": {name: [it[0] for it in each] for name, each in found.items()},
        }
        lines_chart("workers", numbers, panels, args.out / "scale.png")


if __name__ == "__main__":
    main()
