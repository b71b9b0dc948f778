"""Stream a sampler's trajectories in order, each by itself or in portions.

Trajectories arrive in chunks, by chance, but each must be the same as if it had arrived alone. Assembling a chunk and
splitting it is about ten times as fast as assembling each trajectory; but the columns of infos depend on everything
assembled together, so this is done for uniform infos only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self

from streamsampler.core.errors import DataError, SamplerError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import ActionsT, ObservationsT
from streamsampler.data.info_columns import are_uniform
from streamsampler.data.multi_agent import segments_of_policies
from streamsampler.data.portions import Portion
from streamsampler.data.segments import Segment
from streamsampler.data.statistics import FoundAnomaly
from streamsampler.samplers.call import Call
from streamsampler.samplers.life import SamplerLife
from streamsampler.samplers.summaries import Summaries, summaries_of


@suggesting()
class Stream(Iterator[TrajectoryBatch[ObservationsT, ActionsT]]):
    """The trajectories of an agent version, in order: an iterator over batches of size 1.

    Workers run ahead of the consumer by a bounded number of trajectories. The stream starts with the first request for
    a trajectory. It ends, and the workers stop, after its last trajectory, when it is closed, deleted, or raises, and
    with the next call on its sampler, after which it raises `SamplerError`. Also a context manager.
    """

    def __init__(self, begin: Callable[[], Call], life: SamplerLife) -> None:
        self._begin, self._life = begin, life
        self._call: Call | None = None
        self._closed = self._iterated = False
        self._ahead: list[Segment] = []  # arrived, but beyond the portions returned so far
        self._n_returned = 0
        self._watch: Callable[[int, int], Any] | None = None
        self._interval: float | None = None
        self._summaries: Iterator[Summaries] = iter(())  # of assembled trajectories, for filters
        self._assembled: Iterator[TrajectoryBatch[Any, Any]] = iter(())

    def __next__(self) -> TrajectoryBatch[ObservationsT, ActionsT]:
        if self._closed:
            raise StopIteration
        try:
            self._iterated = True
            trajectory = next(self._assembled, None)
            if trajectory is None:
                self._assembled = iter(self._next_chunk())
                trajectory = next(self._assembled)  # the chunk after the last trajectory has none
            assert self._call is not None
            self._life.check_streaming(self._call)
            self._call.accounts.add_yielded(trajectory)
            self._call.returned += islice(self._summaries, 1)
        except BaseException:
            self.close()
            raise
        return trajectory

    def _next_chunk(self) -> Iterable[TrajectoryBatch[Any, Any]]:
        with self._working() as call:
            segments, self._ahead = self._ahead, []
            while not segments and not is_over(call):
                self._pump(call)
                segments = call.batches.pop_segments()
            trajectories = trajectories_of(call, segments) if segments else ()
            self._summaries = iter(summaries_of(segments, each=True))
            self._release_copied(call, segments)
        return trajectories

    @property
    def anomalies(self) -> tuple[int, FoundAnomaly | None]:
        """The number of anomalies in the trajectories returned so far, and the first anomaly."""
        if self._call is None:
            return 0, None
        stats = self._call.accounts.stats
        return stats.anomalies, stats.first_anomaly

    def watch(self, watch: Callable[[int, int], Any], interval: float | None) -> None:
        """Let the stream call `watch` while it waits.

        Args:
            watch: Called with the stream's timesteps so far, unfinished ones included, and its finished trajectories.
            interval: Longest time between two calls of `watch`, in seconds; None for a call after each report.
        """
        self._watch, self._interval = watch, interval

    def _pump(self, call: Call) -> None:
        call.pump(self._interval)
        if self._watch is not None:
            self._watch(*call.so_far())

    def take(self, portion: Portion) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return the next trajectories, as many as the portion needs, in a single batch.

        The batch does not depend on the distribution of trajectories over reports. Memory holds it twice, and the
        bounded number of trajectories that workers run ahead.

        Args:
            portion: The amount missing; not 0.

        Raises:
            UsageError: The stream was iterated over, which assembles trajectories in chunks.
            SamplerError: The stream is closed, a later call has ended it, or no trajectory is left. For other errors
                see `Sampler.stream`.
        """
        if self._closed:
            raise SamplerError("this stream is closed: make a new one")
        if self._iterated:
            raise UsageError("take() must be called before the stream is iterated over")
        try:
            with self._working() as call:
                segments = self._cut(self._ahead, portion)
                while not portion.met and not is_over(call):
                    self._pump(call)
                    segments += self._cut(call.batches.pop_segments(), portion)
                _check_any(segments)
                batch = call.batches.make(segments)
                call.batches.warn_of_actions()
                call.returned += summaries_of(segments)
                self._release_copied(call, segments)
                call.accounts.add_yielded(batch)
        except BaseException:
            self.close()
            raise
        return batch

    @contextmanager
    def _working(self) -> Iterator[Call]:
        with self._life.exclusive():
            if self._call is None:
                self._call = self._begin()
            self._life.check_streaming(self._call)
            yield self._call

    def _cut(self, segments: Sequence[Segment], portion: Portion) -> list[Segment]:
        taken: list[Segment] = []
        self._ahead = []
        for segment in segments:
            delivery, start, stop, _ = segment
            middle = start + portion.fill(delivery.rollouts.lengths[start:stop].tolist())
            if middle > start:
                taken.append(_slice_of(segment, start, middle))
            if middle < stop:
                self._ahead.append(_slice_of(segment, middle, stop))
        return taken

    def _release_copied(self, call: Call, segments: list[Segment]) -> None:
        self._n_returned += sum(segment.stop - segment.start for segment in segments)
        before = None if is_over(call) and not self._ahead else self._n_returned
        call.accounts.add_dropped(segments, call.gathering.result.pop_dropped(before))
        call.batches.release(segments)

    def close(self) -> None:
        """End the stream and stop the workers; may be called twice."""
        self._closed = True
        if self._call is not None:
            self._life.end_stream(self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _check_any(segments: Sequence[Segment]) -> None:
    if not segments:
        raise SamplerError("this stream has no trajectories left")


def is_over(call: Call) -> bool:
    return call.gathering.result.complete and not call.gathering.result.has_spans


def trajectories_of(call: Call, segments: list[Segment]) -> Iterable[TrajectoryBatch[Any, Any]]:
    if _are_uniform(segments):
        try:
            return call.batches.make(segments)
        except DataError:
            pass  # two of them cannot share a batch, and need not
    return [
        call.batches.make([_slice_of(segment, position, position + 1)])
        for segment in segments
        for position in range(segment.start, segment.stop)
    ]


def _are_uniform(segments: Sequence[Segment]) -> bool:
    return all(
        are_uniform(getattr(segment.delivery.rollouts, name) for segment in part)
        for part in (segments, *segments_of_policies(segments))
        for name in ("env_infos", "agent_infos", "episode_infos")
    )


def _slice_of(segment: Segment, start: int, stop: int) -> Segment:
    first = start - segment.start
    return Segment(segment.delivery, start, stop, segment.indices[first : first + stop - start])
