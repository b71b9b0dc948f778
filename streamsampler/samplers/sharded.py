"""Trajectories of one agent version, in order, in portions that their consumer cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.call import Call
from streamsampler.samplers.session import Delivery
from streamsampler.samplers.streaming import slice_of
from streamsampler.scheduling.gathering import Endless, Run
from streamsampler.scheduling.quotas import Quota

__all__ = ["Portions"]

Watch = Callable[[int, int], Any]


class Portions:
    """A sampler's stream, handed out in batches: each is assembled once, however many trajectories it has.

    A portion does not depend on how its trajectories were spread over reports. Memory holds one portion, twice, and
    what workers are ahead, which is bounded. A context manager; leaving it stops the workers.

    Args:
        sampler: Where from. Its workers must run each trajectory by itself, and its order be "index".
        first_trajectory: With which index to begin.
    """

    def __init__(self, sampler: Sampler, first_trajectory: int = 0) -> None:
        self._sampler = sampler
        self._ahead: list[Run[Delivery]] = []  # what came in behind the portions that were taken
        with sampler._watched(), sampler._exclusive():
            self._call: Call = sampler._begin(Endless(first_trajectory), {}, sampler.stats)
            sampler._streaming = self._call

    def take(
        self, quota: Quota, watch: Watch | None = None, interval: float | None = None
    ) -> TrajectoryBatch[Any, Any]:
        """Return the next trajectories, as many as the quota says.

        Args:
            quota: What they are to have; not met yet.
            watch: Called now and then with the timesteps, unfinished ones included, and the finished trajectories that
                all portions and what is ahead have so far.
            interval: Seconds between two calls of `watch`, at most; None for whenever something came in.

        Raises:
            SamplerError: Another call on the sampler has ended this stream. For other errors see `Sampler.stream`.
        """
        sampler, call = self._sampler, self._call
        with sampler._watched(), sampler._exclusive():
            sampler._check_still(call)
            runs = self._cut(self._ahead, quota)
            while not quota.met:
                call.pump(interval)
                if watch is not None:
                    watch(*call.so_far())
                runs += self._cut(call.gathering.pop_runs(), quota)
            batch = call.batch(runs)
            call.account_for_dropped(runs)
            for run in runs:
                if run.stop == run.part.n_indices:
                    call.release(run.part)
            call.yielded(batch)
        return batch

    def _cut(self, runs: Sequence[Run[Delivery]], quota: Quota) -> list[Run[Delivery]]:
        """Return what of `runs` meets the quota, and keep what is left of them."""
        wanted: list[Run[Delivery]] = []
        self._ahead = []
        for run in runs:
            n = quota.take(run.lengths)
            if n:
                wanted.append(slice_of(run, 0, n))
            if n < len(run.lengths):
                self._ahead.append(slice_of(run, n, len(run.lengths)))
        return wanted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampler._streaming is self._call:
            self._sampler._end_stream()
