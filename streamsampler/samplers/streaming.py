"""The stream of a sampler: its trajectories in order, without end, one by one or in portions.

Each trajectory is what it would be if it had come alone. Trajectories arrive in chunks, by chance. To assemble a chunk
and to split it is two to three times as fast as to assemble each of its trajectories; but what the columns of infos
become is decided over all that is assembled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.generics import ActionsT, ObservationsT
from streamsampler.data.info_columns import are_uniform
from streamsampler.errors import DataError, SamplerError
from streamsampler.samplers.call import Call
from streamsampler.samplers.session import Delivery
from streamsampler.scheduling.gathering import Run
from streamsampler.scheduling.quotas import Quota

__all__ = ["Stream"]


class Stream(Iterator[TrajectoryBatch[ObservationsT, ActionsT]]):
    """The trajectories of one agent version, in order and without end: an iterator, each a batch of one.

    Workers run ahead of the consumer by a bounded number of trajectories. The stream begins with the first trajectory
    that is asked for. It ends, and the workers stop, when it is closed, deleted, or raises; and with the next call on
    its sampler, after which it raises `SamplerError`. Also a context manager, which closes it.

    Args:
        begin: Begins the call that the trajectories come from.
        exclusive: Gives this thread the sampler's workers.
        check: Raises `SamplerError` where a later call has ended the stream of this one.
        end: Ends a call that is not ended yet.
    """

    def __init__(
        self,
        begin: Callable[[], Call],
        exclusive: Callable[[], AbstractContextManager[None]],
        check: Callable[[Call], None],
        end: Callable[[Call], None],
    ) -> None:
        self._begin = begin
        self._exclusive = exclusive
        self._check = check
        self._end = end
        self._call: Call | None = None
        self._closed = False
        self._ahead: list[Run[Delivery]] = []  # what arrived after the portions that were taken
        self._assembled: Iterator[TrajectoryBatch[Any, Any]] = iter(())

    def __next__(self) -> TrajectoryBatch[ObservationsT, ActionsT]:
        if self._closed:
            raise StopIteration
        try:
            trajectory = next(self._assembled, None)
            while trajectory is None:
                self._assembled = iter(self._next_chunk())
                trajectory = next(self._assembled, None)
            assert self._call is not None
            self._check(self._call)
            self._call.yielded(trajectory)
        except BaseException:
            self.close()
            raise
        return trajectory

    def _next_chunk(self) -> Iterable[TrajectoryBatch[Any, Any]]:
        with self._working() as call:
            runs, self._ahead = self._ahead, []
            while not any(run.n_kept for run in runs):
                while not (popped := call.gathering.pop_runs()):
                    call.pump()
                runs += popped
            trajectories = _each(call, runs)
            _put_away(call, runs)
        return trajectories

    def take(
        self, quota: Quota, watch: Callable[[int, int], Any] | None = None, interval: float | None = None
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return the next trajectories, as many as the quota says, as one batch.

        The batch does not depend on how its trajectories were spread over reports. Memory holds it, twice, and what
        workers are ahead, which is bounded. Trajectories that iteration has assembled already are not in it: take
        from a stream, or iterate over it.

        Args:
            quota: What they are to have; not met yet.
            watch: Called now and then with the timesteps, unfinished ones included, and the finished trajectories that
                arrived from the stream so far.
            interval: Seconds between two calls of `watch`, at most; None for whenever something came in.

        Raises:
            SamplerError: The stream is closed, or a later call has ended it. For other errors see `Sampler.stream`.
        """
        if self._closed:
            raise SamplerError("this stream is closed")
        try:
            with self._working() as call:
                runs = self._cut(self._ahead, quota)
                while not quota.met:
                    call.pump(interval)
                    if watch is not None:
                        watch(*call.so_far())
                    runs += self._cut(call.gathering.pop_runs(), quota)
                batch = call.batch(runs)
                _put_away(call, runs)
                call.yielded(batch)
        except BaseException:
            self.close()
            raise
        return batch

    @contextmanager
    def _working(self) -> Iterator[Call]:
        with self._exclusive():
            if self._call is None:
                self._call = self._begin()
            self._check(self._call)
            yield self._call

    def _cut(self, runs: Sequence[Run[Delivery]], quota: Quota) -> list[Run[Delivery]]:
        """Return what of `runs` meets the quota, and keep what is left of them."""
        wanted: list[Run[Delivery]] = []
        self._ahead = []
        for run in runs:
            n = quota.take(run.lengths)
            if n:
                wanted.append(_slice_of(run, 0, n))
            if n < len(run.lengths):
                self._ahead.append(_slice_of(run, n, len(run.lengths)))
        return wanted

    def close(self) -> None:
        """End the stream and stop the workers; may be called twice."""
        self._closed = True
        if self._call is not None:
            self._end(self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _each(call: Call, runs: Sequence[Run[Delivery]]) -> Iterable[TrajectoryBatch[Any, Any]]:
    """Return the trajectories of `runs` that were not left out, in memory of their own."""
    if _are_uniform(runs):
        try:
            return call.batch(list(runs))
        except DataError:
            pass  # two of them do not go together in a batch, which they need not
    return [
        call.batch([_slice_of(run, position, position + 1)])
        for run in runs
        for position, length in enumerate(run.lengths)
        if length
    ]


def _are_uniform(runs: Sequence[Run[Delivery]]) -> bool:
    parts = [run.part.rollouts for run in runs if run.part.rollouts is not None]
    return all(
        are_uniform(getattr(part, name) for part in parts) for name in ("env_infos", "agent_infos", "episode_infos")
    )


def _put_away(call: Call, runs: list[Run[Delivery]]) -> None:
    """Account for what was left out, and release the memory of what was copied."""
    call.account_for_dropped(runs)
    for run in runs:
        if run.stop == run.part.n_indices:
            call.release(run.part)


def _slice_of(run: Run[Delivery], start: int, stop: int) -> Run[Delivery]:
    return Run(run.part, run.indices[start:stop], run.start + start, run.start + stop, run.lengths[start:stop])
