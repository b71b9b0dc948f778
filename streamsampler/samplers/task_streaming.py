"""Stream the trajectories of several tasks from shared workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

from streamsampler.core.errors import SamplerError
from streamsampler.data.anomalies import Anomaly
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.segments import Segment
from streamsampler.data.statistics import DroppedTrajectory, FoundAnomaly
from streamsampler.protocol.task_sections import Section, Sections
from streamsampler.samplers.call import Call
from streamsampler.samplers.life import SamplerLife
from streamsampler.samplers.streaming import Stream, is_over, trajectories_of


class TaskStream(Stream[Any, Any]):
    """The trajectories of runs of several tasks, in order: an iterator over batches of size 1.

    Each equals the trajectory in a stream of the task's own sampler. An error has its task's number in the attribute
    `task`, and is raised after all trajectories before it, so the stream's attributes do not depend on timing. Filters
    do not change.

    Attributes:
        task: The number of the last trajectory's task; -1 before the first trajectory.
        left_out: By task, the dropped trajectories so far, with the task's own indices, if none replaces them.
        anomalies_of_tasks: By task, the number of anomalies in returned trajectories, and the first anomaly.
    """

    def __init__(self, begin: Callable[[], Call], life: SamplerLife, sections: Sections) -> None:
        super().__init__(begin, life)
        self._sections = sections
        numbers = sorted({section.task.number for section in sections})
        self.task = -1
        self.left_out: dict[int, list[DroppedTrajectory]] = {number: [] for number in numbers}
        self.anomalies_of_tasks: dict[int, tuple[int, FoundAnomaly | None]] = dict.fromkeys(numbers, (0, None))
        self._section: Section = sections[0]  # of the current chunk
        self._found: dict[int, Anomaly] = {}  # in the current chunk, by the task's own index

    def __next__(self) -> TrajectoryBatch[Any, Any]:
        trajectory = super().__next__()
        self.task = task = self._section.task.number
        index = int(trajectory.indices[0])
        if (anomaly := self._found.pop(index, None)) is not None:
            assert self._call is not None
            n, first = self.anomalies_of_tasks[task]
            first = first or FoundAnomaly(self._call.version, index, anomaly.timestep, anomaly.what)
            self.anomalies_of_tasks[task] = n + anomaly.count, first
        self._life.fingerprints_of_tasks.setdefault(task, set()).update(trajectory.fingerprints)
        return trajectory

    def _next_chunk(self) -> Iterable[TrajectoryBatch[Any, Any]]:
        """Return the next trajectories, all of one section: another task may have other spaces."""
        with self._working() as call:
            while not self._ahead and not is_over(call):
                try:
                    self._pump(call)
                except SamplerError:
                    self._record([], None)  # everything before the error was returned
                    raise
                self._ahead = call.batches.pop_segments()
            segments = self._pop_section()
            call.accounts.task = self._section.task
            trajectories: Iterable[TrajectoryBatch[Any, Any]] = ()
            if segments:
                trajectories = self._assembled_of(call, segments)
            self._n_returned += sum(segment.stop - segment.start for segment in segments)
            self._record(segments, None if is_over(call) and not self._ahead else self._n_returned)
            self._found = dict(call.accounts.anomalies)
            call.batches.release(segments)
        return trajectories

    def _assembled_of(self, call: Call, segments: list[Segment]) -> Iterable[TrajectoryBatch[Any, Any]]:
        try:
            return trajectories_of(call, segments)
        except SamplerError as error:
            error.task = self._section.task.number
            raise

    def _pop_section(self) -> list[Segment]:
        if not self._ahead:
            return []
        self._section = section = self._sections.of(self._ahead[0].indices)
        segments = list(takewhile(lambda segment: segment.indices[0] < section.stop, self._ahead))
        del self._ahead[: len(segments)]
        return [segment._replace(indices=section.own_indices(segment.indices)) for segment in segments]

    def _record(self, segments: list[Segment], n_before: int | None) -> None:
        """Account for segments, and for dropped trajectories with fewer than `n_before` before them (None: all)."""
        assert self._call is not None
        left_out = []
        for one in self._call.gathering.result.pop_dropped(n_before):
            section = self._sections[self._sections.number_of(one.trajectory)]
            own = one._replace(trajectory=section.own_index(one.trajectory))
            left_out.append(own)
            self.left_out[section.task.number].append(
                DroppedTrajectory(self._call.version, own.trajectory, own.worker, *own.dropped[1:])
            )
        self._call.accounts.add_dropped(segments, left_out)
