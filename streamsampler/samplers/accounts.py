"""Count what became of the trajectories of a call."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from streamsampler.data.anomalies import Anomaly
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.segments import Segment
from streamsampler.data.statistics import (
    REMEMBERED,
    DroppedTrajectory,
    EndedEpisodes,
    FoundAnomaly,
    MetricsSoFar,
    Stats,
)
from streamsampler.engines.base import EnvsRestored, Logged
from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.instructions import Reason
from streamsampler.protocol.messages import Report
from streamsampler.protocol.result import LeftOut
from streamsampler.protocol.sections import TaskName
from streamsampler.samplers.session import Session
from streamsampler.workers.logs import handle_records

_ANOMALY = (
    '{}; such data are counted in stats.anomalies, and reported this once; check="error" ends the call, check=None '
    "looks for nothing"
)
_LATE = (
    "trajectories are left out because they exceed a time limit ({}). So the batch depends on time, and short "
    "trajectories are in it more often than long ones: raise the limit, or leave none out, and they are run again"
)


class CallAccounts:
    """The accounts of one call.

    Anomalies are counted in trajectories that are returned, and in no others: so does one process alone. Those of
    trajectories that were not returned yet are in `anomalies`, by trajectory index. `task` is their task, where there
    are several.
    """

    def __init__(self, session: Session, gathering: Gathering, stats: Stats, version: int) -> None:
        self.stats, self.version = stats, version
        self._session = session
        self._gathering = gathering
        self.anomalies: dict[int, Anomaly] = {}
        self.task: TaskName | None = None
        self._yielded = [0, 0]  # trajectories and timesteps that the consumer of a stream has seen
        self._metrics: MetricsSoFar | None = None  # of what that consumer has seen
        self._is_closed = False
        self.excess = 0  # by how many timesteps what arrived was counted as more than steps of the environment
        self._begun: float | None = perf_counter()

    def stop_clock(self) -> None:
        """Add the call's wall time, once."""
        if self._begun is not None:
            self.stats.seconds += perf_counter() - self._begun
            self._begun = None

    def record(self, event: Logged | EnvsRestored) -> None:
        """Record what a worker reports besides its answers."""
        if isinstance(event, Logged):
            handle_records(event.worker, event.records)
        else:
            self.stats.restarts += 1
            self.stats.hangs += event.hung

    def count(self, number: int) -> None:
        """Count the times and timesteps of an answer, whatever becomes of its trajectories."""
        event = self._session.arrivals.uncounted.pop(number)
        answer = event.answer
        if answer.ticket is not None:
            self._session.record_answer(event.worker, answer)
        if isinstance(answer, Report):
            self.stats.take_report(event.worker, answer)
            if answer.n_timed_out:
                late = (it.error for it in answer.dropped if it.error.startswith("TimeoutError"))
                remarks = [("late", _LATE.format(error)) for error in late]
                self._session.warn_of(remarks, self._session.task_of(answer.ticket))
            return
        if answer.checked is not None:
            self.stats.take_checked(answer.checked)
        if answer.ticket is not None:
            self.stats.lost_timesteps += answer.lost_timesteps

    def discard(self, number: int, reason: Reason) -> None:
        """Count the trajectories of an answer as stale or surplus, and release its memory."""
        arrivals, stats = self._session.arrivals, self.stats
        report, delivery = arrivals.report(number), arrivals.deliveries.get(number)
        if report is None:
            stats.stale_trajectories += 1
        elif reason is Reason.STALE:
            stats.stale_trajectories += report.n_trajectories
            stats.stale_timesteps += report.n_timesteps
        else:
            self.add_surplus(0 if delivery is None else delivery.rollouts.n_trajectories, report.n_timesteps)
        arrivals.discard(number)

    def count_dead(self, worker: int) -> None:
        """Count the timesteps that a dead worker ran in vain, and forget the worker."""
        self.stats.hangs += self._session.arrivals.workers[worker].is_hung
        self.stats.lost_timesteps += self._session.forget_worker(worker)

    def add_anomalies(self, segments: Sequence[Segment]) -> None:
        """Remember the anomalies of trajectories in the result."""
        for delivery, start, stop, indices in segments:
            for anomaly in delivery.rollouts.anomalies:
                if start <= anomaly.position < stop:
                    self.anomalies[indices[anomaly.position - start]] = anomaly

    def add_dropped(self, segments: Sequence[Segment], left_out: Sequence[LeftOut]) -> None:
        """Count what was left out, and remember the anomalies of what was not."""
        self.add_anomalies(segments)
        if not left_out:
            return
        stats, version = self.stats, self.version
        stats.dropped_trajectories += len(left_out)
        stats.dropped += [DroppedTrajectory(version, index, worker, *it[1:]) for worker, index, it, _ in left_out]
        del stats.dropped[:-REMEMBERED]

    def _count_anomalies(self, indices: Sequence[int]) -> None:
        for index in indices:
            anomaly = self.anomalies.pop(index)
            self.stats.anomalies += anomaly.count
            first = FoundAnomaly(self.version, index, anomaly.timestep, anomaly.what)
            if self.stats.first_anomaly is None:
                self.stats.first_anomaly = first
            self._session.warn_of([("anomaly", _ANOMALY.format(first))], self.task)

    def add_yielded(self, batch: TrajectoryBatch[Any, Any]) -> None:
        """Count the trajectories that a stream hands to its consumer."""
        self.stats.kept_trajectories += batch.n_trajectories
        self.stats.kept_timesteps += batch.n_timesteps
        self.stats.episodes += EndedEpisodes.of(batch.raw_rewards, batch.lengths)  # whose sum is that of returns
        self._yielded[0] += batch.n_trajectories
        self._yielded[1] += batch.n_timesteps
        if kinds := self.stats.metric_kinds:
            self._metrics = self._metrics or MetricsSoFar()
            self._metrics.add(batch.episode_infos, kinds)
            self._metrics.update(self.stats.metrics, kinds)
        if self.anomalies:
            self._count_anomalies(sorted(self.anomalies.keys() & set(batch.indices.tolist())))

    def close_with(self, segments: Sequence[Segment]) -> None:
        """Count what is returned as kept and what else arrived as surplus, once."""
        if self._is_closed:  # an interrupt may have come after that
            return
        self._is_closed = True
        gathering = self._gathering
        self.add_dropped(segments, gathering.result.pop_left_out())
        if self.anomalies:
            self._count_anomalies(sorted(self.anomalies))
        kept, excess = gathering.result.n_timesteps, 0
        if self.excess:
            env_steps = sum(int(it.delivery.rollouts.lengths[it.start : it.stop].sum()) for it in segments)
            kept, excess = env_steps, self.excess - (kept - env_steps)
        self.stats.kept_trajectories = gathering.result.n_trajectories
        self.stats.kept_timesteps = kept
        n_trajectories, n_timesteps = gathering.result.pending()
        self.add_surplus(n_trajectories + len(gathering.result.held_failures()), n_timesteps - excess)

    def close_unseen(self) -> None:
        """Count what arrived and was never returned as surplus, if the accounts are not closed yet."""
        if self._is_closed:
            return
        self._is_closed = True
        gathering = self._gathering
        arrived = gathering.arrived_trajectories + len(gathering.result.held_failures())
        self.add_surplus(arrived - self._yielded[0], gathering.arrived_timesteps - self.excess - self._yielded[1])

    def add_surplus(self, n_trajectories: int, n_timesteps: int) -> None:
        """Count trajectories that the batch does not need."""
        self.stats.surplus_trajectories += n_trajectories
        self.stats.surplus_timesteps += n_timesteps
