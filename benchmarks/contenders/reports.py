"""This library with one short trajectory in each report, so that the parent does nothing but take in reports.

Its workers claim that a trajectory took them long, and so get one at a time.

Settings:
    simulated: Whether workers are simulated (default False), as many as one likes: see `simulated`. Their reports are
        those of usual tickets.
    reports: In each call; in each measurement, of simulated workers (default 2,000).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarks.contenders import simulated
from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.workloads import Workload
from streamsampler import DefaultWorker, MultiprocessingSampler
from streamsampler.protocol.messages import Ticket
from streamsampler.workers.base import Outcome

_CLAIMED_SECONDS = 1.0
_TICKETS = 8  # of full size, for each worker in a call


class SlowByItsOwnAccount(DefaultWorker):
    """Claims that each trajectory took a second."""

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run a ticket."""
        return replace(super().rollout(ticket, seeds), seconds=(0.0, 0.0, _CLAIMED_SECONDS * len(seeds)))


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start the workers."""
    n_reports = settings.get("reports", 2_000)
    if settings.get("simulated"):
        yield simulated_reports(n_processes, n_reports)
        return
    options: dict[str, Any] = {"n_workers": n_processes, "seed": 1, "worker_class": SlowByItsOwnAccount}
    with MultiprocessingSampler(workload.make_agent(), workload.make_env, **options) as sampler:

        def measure(request: dict[str, Any]) -> dict[str, Any]:
            seconds, reports, timesteps, trajectories = request.get("seconds", 1e9), sampler.stats.reports, 0, 0
            begin, parent = time.perf_counter(), time.process_time()
            while time.perf_counter() - begin < seconds:
                batch = sampler.obtain_trajectories(n_reports)
                timesteps, trajectories = timesteps + batch.n_timesteps, trajectories + batch.n_trajectories
            return {
                "timesteps": timesteps,
                "trajectories": trajectories,
                "seconds": time.perf_counter() - begin,
                "parent_cpu": time.process_time() - parent,
                "reports": sampler.stats.reports - reports,
            }

        measure({"seconds": 0.1})
        yield measure


def simulated_reports(n_workers: int, n_reports: int) -> Measure:
    """Return what measures a parent whose workers are simulated; what it counts as timesteps are reports."""
    cost_of = simulated.ParentCost(n_workers, _TICKETS).measure

    def measure(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as many reports as it was made for
        begin = time.perf_counter()
        cost = n_reports * cost_of(n_reports)
        seconds = time.perf_counter() - begin
        return {
            "timesteps": n_reports,
            "trajectories": 0,
            "seconds": seconds,
            "parent_cpu": cost,
            "reports": n_reports,
        }

    return measure


if __name__ == "__main__":
    serve(contender, packages=["streamsampler", "gymnasium", "numpy"])
