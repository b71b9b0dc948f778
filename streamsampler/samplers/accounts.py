"""The statistics of a call: which trajectories and timesteps were returned, dropped, stale, surplus or lost."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from streamsampler.data.aggregation import MetricsSoFar
from streamsampler.data.anomalies import Anomaly
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.segments import Segment
from streamsampler.data.statistics import REMEMBERED, DroppedTrajectory, EndedEpisodes, FoundAnomaly, Stats
from streamsampler.engines.base import EnvsRestored, Logged
from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.instructions import Reason
from streamsampler.protocol.messages import Report
from streamsampler.protocol.result import DroppedReport
from streamsampler.protocol.task_sections import TaskName
from streamsampler.samplers.session import Session
from streamsampler.workers.logs import handle_records

_ANOMALY = (
    '{}. This is logged once; stats.anomalies counts all such data. Pass check="error" to end the call instead, or '
    "check=None to skip the search"
)
_LATE = (
    "trajectories are dropped because they exceed a time limit ({}). So the batch depends on timing, and "
    'over-represents short trajectories: raise the limit, or pass on_failure="raise" to run them again'
)


class CallAccounts:
    """Counts a call's trajectories into its `stats`.

    Anomalies are counted for returned trajectories only, as in a single process. Until a trajectory is returned, its
    anomaly is held in `anomalies`, by trajectory index. `task` is the current task in a sampler of several.
    """

    def __init__(self, session: Session, gathering: Gathering, stats: Stats, version: int) -> None:
        self.stats, self.version = stats, version
        self._session = session
        self._gathering = gathering
        self.anomalies: dict[int, Anomaly] = {}
        self.task: TaskName | None = None
        self._yielded = [0, 0]  # trajectories and timesteps already returned by the stream
        self._metrics: MetricsSoFar | None = None  # of the trajectories already returned by the stream
        self._is_closed = False
        self.excess = 0  # timesteps counted in arrived reports beyond the environment's steps (agents' steps)
        self._started: float | None = perf_counter()

    def stop_clock(self) -> None:
        if self._started is not None:
            self.stats.seconds += perf_counter() - self._started
            self._started = None

    def record(self, event: Logged | EnvsRestored) -> None:
        if isinstance(event, Logged):
            handle_records(event.worker, event.records)
        else:
            self.stats.restarts += 1
            self.stats.hangs += event.hung

    def count(self, number: int) -> None:
        """Count the times and timesteps of an answer, independent of the fate of its trajectories."""
        event = self._session.arrivals.uncounted.pop(number)
        answer = event.answer
        if answer.ticket is not None:
            self._session.record_answer(event.worker, answer)
        if isinstance(answer, Report):
            self.stats.add_report(event.worker, answer)
            if answer.n_timed_out:
                late = (it.error for it in answer.dropped if it.error.startswith("TimeoutError"))
                remarks = [("late", _LATE.format(error)) for error in late]
                self._session.warn_of(remarks, self._session.task_of(answer.ticket))
            return
        if answer.checked is not None:
            self.stats.add_check(answer.checked)
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
        self.stats.hangs += self._session.arrivals.workers[worker].is_hung
        self.stats.lost_timesteps += self._session.forget_worker(worker)

    def add_anomalies(self, segments: Sequence[Segment]) -> None:
        for delivery, start, stop, indices in segments:
            for anomaly in delivery.rollouts.anomalies:
                if start <= anomaly.position < stop:
                    self.anomalies[indices[anomaly.position - start]] = anomaly

    def add_dropped(self, segments: Sequence[Segment], left_out: Sequence[DroppedReport]) -> None:
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
        self.stats.kept_trajectories += batch.n_trajectories
        self.stats.kept_timesteps += batch.n_timesteps
        self.stats.episodes += EndedEpisodes.of(batch.raw_rewards, batch.lengths)  # its sum is the sum of returns
        self._yielded[0] += batch.n_trajectories
        self._yielded[1] += batch.n_timesteps
        if kinds := self.stats.metric_kinds:
            self._metrics = self._metrics or MetricsSoFar()
            self._metrics.add(batch.episode_infos, kinds)
            self._metrics.update(self.stats.metrics, kinds)
        if self.anomalies:
            self._count_anomalies(sorted(self.anomalies.keys() & set(batch.indices.tolist())))

    def close_with(self, segments: Sequence[Segment]) -> None:
        """Count the result as kept and everything else that arrived as surplus, once."""
        if self._is_closed:  # an interrupt after an earlier call of this method
            return
        self._is_closed = True
        gathering = self._gathering
        self.add_dropped(segments, gathering.result.pop_dropped())
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
        """Count arrived trajectories that were never returned as surplus, unless the accounts are closed."""
        if self._is_closed:
            return
        self._is_closed = True
        gathering = self._gathering
        arrived = gathering.arrived_trajectories + len(gathering.result.held_failures())
        self.add_surplus(arrived - self._yielded[0], gathering.arrived_timesteps - self.excess - self._yielded[1])

    def add_surplus(self, n_trajectories: int, n_timesteps: int) -> None:
        self.stats.surplus_trajectories += n_trajectories
        self.stats.surplus_timesteps += n_timesteps
