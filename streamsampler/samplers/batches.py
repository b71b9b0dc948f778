"""Make a call's batches out of deliveries, and release the memory that they came in."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from streamsampler.agents.filters import Filters
from streamsampler.core.errors import DataError, UnwritableInfoError
from streamsampler.core.words import count
from streamsampler.data.anomalies import Anomaly
from streamsampler.data.assembly import Delivery, GrowingBatch
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.multi_agent import assembled
from streamsampler.data.spaces import same_spaces
from streamsampler.data.statistics import (
    REMEMBERED,
    DroppedTrajectory,
    EndedEpisodes,
    FoundAnomaly,
    MetricsSoFar,
    Stats,
)
from streamsampler.engines.base import Logged, Restored
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.plans import Streamed, expected_rows
from streamsampler.protocol.result import LeftOut, Segment
from streamsampler.samplers.fragments import Episodes
from streamsampler.samplers.session import Session
from streamsampler.samplers.supervisor import Spaces
from streamsampler.workers.logs import handle_records

# ----------------------------------------------------------------------
# Count what became of the trajectories of a call.


class CallAccounts:
    """The accounts of one call.

    Anomalies are counted in trajectories that are returned, and in no others: so does one process alone.

    Args:
        session: What outlives the call; knows whether the user was warned of an anomaly.
        gathering: What arrived.
        stats: Where it is counted.
        version: The call's agent version.
    """

    def __init__(self, session: Session, gathering: Gathering, stats: Stats, version: int) -> None:
        self.stats, self.version = stats, version
        self._session = session
        self._gathering = gathering
        self._anomalies: dict[int, Anomaly] = {}  # by trajectory index
        self._yielded = [0, 0]  # trajectories and timesteps that the consumer of a stream has seen
        self._metrics = MetricsSoFar()  # of what that consumer has seen
        self._is_closed = False
        self.excess = 0  # by how many timesteps what arrived was counted as more than steps of the environment
        self._begun: float | None = perf_counter()

    def stop_clock(self) -> None:
        """Add the call's wall time, once."""
        if self._begun is not None:
            self.stats.seconds += perf_counter() - self._begun
            self._begun = None

    def take_notice(self, event: Logged | Restored) -> None:
        """Take in what a worker tells besides its answers."""
        if isinstance(event, Logged):
            handle_records(event.worker, event.records)
        else:
            self.stats.restarts += 1
            self.stats.hangs += event.hung

    def add_anomalies(self, segments: Sequence[Segment]) -> None:
        """Remember the anomalies of trajectories in the result."""
        for delivery, start, stop, indices in segments:
            for anomaly in delivery.rollouts.anomalies:
                if start <= anomaly.position < stop:
                    self._anomalies[indices[anomaly.position - start]] = anomaly

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
            anomaly = self._anomalies.pop(index)
            self.stats.anomalies += anomaly.count
            first = FoundAnomaly(self.version, index, anomaly.timestep, anomaly.what)
            if self.stats.first_anomaly is None:
                self.stats.first_anomaly = first
            self._session.warn_of_anomaly(first)

    def add_yielded(self, batch: TrajectoryBatch[Any, Any]) -> None:
        """Count the trajectories that a stream hands to its consumer."""
        self.stats.kept_trajectories += batch.n_trajectories
        self.stats.kept_timesteps += batch.n_timesteps
        self.stats.episodes += EndedEpisodes.of(batch.raw_rewards, batch.lengths)  # whose sum is that of returns
        self._yielded[0] += batch.n_trajectories
        self._yielded[1] += batch.n_timesteps
        if kinds := self.stats.metric_kinds:
            self._metrics.add(batch.episode_infos, kinds)
            self._metrics.update(self.stats.metrics, kinds)
        if self._anomalies:
            self._count_anomalies(sorted(self._anomalies.keys() & set(batch.indices.tolist())))

    def close_with(self, segments: Sequence[Segment]) -> None:
        """Count what is returned as kept and what else arrived as surplus, once."""
        if self._is_closed:  # an interrupt may have come after that
            return
        self._is_closed = True
        gathering = self._gathering
        self.add_dropped(segments, gathering.result.pop_left_out())
        self._count_anomalies(sorted(self._anomalies))
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

    def add_stale(self, n_trajectories: int, n_timesteps: int) -> None:
        """Count trajectories of an older agent version."""
        self.stats.stale_trajectories += n_trajectories
        self.stats.stale_timesteps += n_timesteps


# ----------------------------------------------------------------------
# Summarise what calls return, and merge it into a sampler's filters.


class Summaries(NamedTuple):
    """Summaries of consecutive trajectories of one report.

    Attributes:
        pickled: Those of all its trajectories, pickled: see `Filters.summaries`.
        start: Position of the first one among them.
        stop: One more than the position of the last one.
    """

    pickled: bytes
    start: int
    stop: int


def summaries_of(segments: Sequence[Segment], *, each: bool = False) -> list[Summaries]:
    """Return the summaries of the trajectories of segments; none without filters.

    Args:
        segments: The segments.
        each: Whether to return those of each trajectory by themselves.
    """
    found: list[Summaries] = []
    for delivery, start, stop, _ in segments:
        if pickled := delivery.rollouts.summaries:
            bounds = [(i, i + 1) for i in range(start, stop)] if each else [(start, stop)]
            found += [Summaries(pickled, *one) for one in bounds]
    return found


def merged(filters: Filters, each: Sequence[Summaries]) -> Filters:
    """Return filters with the statistics of further trajectories, in order."""
    return filters.merged(_unpickled(each))


def _unpickled(each: Sequence[Summaries]) -> Iterator[tuple[Any, Any]]:
    pickled, read = b"", list[tuple[Any, Any]]()
    for one in each:
        if one.pickled is not pickled:  # those of one report follow each other
            pickled, read = one.pickled, list(zip(*pickle.loads(one.pickled), strict=True))
        yield from read[one.start : one.stop]


# ----------------------------------------------------------------------


class BatchMaker:
    """The batches of one call.

    Args:
        session: What outlives the call.
        gathering: What arrived.
        accounts: The call's accounts, whose `stats` every batch carries. They get the anomalies of segments before
            these are forgotten, more than once if an interrupt came between.

    Attributes:
        summaries: What the filters need of the trajectories that were made a batch of.
    """

    def __init__(self, session: Session, gathering: Gathering, accounts: CallAccounts) -> None:
        self._session = session
        self._gathering = gathering
        self._accounts, self._stats = accounts, accounts.stats
        self._spaces_of_taken: dict[int, Spaces] = {}  # by worker
        self._ledger = ledger = session.ledger
        self._episodes = None if ledger is None else Episodes(gathering.result, ledger)
        self._result = self._episodes or gathering.result
        self._filters = session.filters
        self._n_looked_at = 0  # segments whose infos were checked
        self._unwritable: UnwritableInfoError | None = None
        self.summaries: list[Summaries] = []
        self._deliveries: dict[int, Delivery] = {}  # whose memory is not released, by identity
        self._spaces: tuple[Spaces, Spaces] | None = None  # the engine's, and a copy for this call's batches
        # Not of a stream, which hands out each trajectory by itself.
        self._growing = GrowingBatch(session.pool.allocate)

    def keep(self, delivery: Delivery) -> None:
        """Keep a delivery until it is released, and copy what is in the result if enough of it has arrived."""
        if self._ledger is not None:  # it needs the actions that the agent chose
            self._stats.failed_trajectories += self._ledger.record(delivery)
        if delivery.rollouts.remarks:
            self._session.warn_of(delivery.rollouts.remarks)
        self._session.taken_actions.put(delivery.rollouts)
        self._session.infos_of_files.leave_out(delivery.rollouts)
        self._deliveries[id(delivery)] = delivery
        self._look_at_infos()  # before their memory is released
        self._append_what_is_due()

    def _look_at_infos(self) -> None:
        """Note whether a file can hold the infos of what is new in the result."""
        if isinstance(self._gathering.plan, Streamed) or self._unwritable is not None:
            return
        segments = self._result.segments(self._n_looked_at)
        self._n_looked_at += len(segments)
        try:
            self._session.infos_of_files.check(segments)
        except UnwritableInfoError as error:
            self._unwritable = error

    def check_infos(self) -> None:
        """Check the infos of what is in the result, which is no stream's; not in the midst of a worker's answer.

        Raises:
            UnwritableInfoError: It goes into a file, and no file can hold them.
        """
        self._look_at_infos()
        if self._unwritable is not None:
            raise self._unwritable

    def segments(self) -> list[Segment]:
        """Return what was not forgotten of the result so far: segments of trajectories, or of parts of episodes."""
        return self._result.segments()

    def pop_segments(self) -> list[Segment]:
        """Return what was not popped of the result so far, for the consumer of a stream.

        Raises:
            UnwritableInfoError: It goes into a file, and no file can hold its infos.
        """
        segments = self._gathering.result.pop_segments()
        self._session.infos_of_files.check(segments)
        return segments

    @property
    def n_ended(self) -> int | None:
        """How many episodes ended in fragments so far; None for whole trajectories."""
        return None if self._ledger is None else self._ledger.ended.count

    def note(self) -> str:
        """Return what else is known so far, in words: of fragments, the episodes that ended."""
        if self._ledger is None:
            return ""
        ended = self._ledger.ended
        return f"{count(ended.count, 'episode')}, return {ended.mean_return:.4g}" if ended.count else "no episode ended"

    def _append_what_is_due(self) -> None:
        """Copy what is new in the result, if there is enough of it, and release the memory it came in."""
        if isinstance(self._gathering.plan, Streamed):
            return
        growing, gathering = self._growing, self._gathering
        for segment in self._result.segments(growing.n_counted):
            growing.count(segment)
        if not growing.due:
            return
        first = growing.n_appended
        segments = self._result.segments(first)
        self._accounts.add_anomalies(segments)
        self._spaces_of_taken |= _spaces_by_worker(segments)
        growing.append(segments, expected_rows(gathering.plan, gathering.throughput.timesteps))
        self.summaries += summaries_of(segments)
        for segment in segments:
            if segment.delivery.ends_with(segment):
                self.release(segment.delivery)
        self._result.forget_segments(first, growing.n_appended)

    def final(self) -> TrajectoryBatch[Any, Any]:
        """Return the batch of the whole result."""
        segments = self._result.segments(self._growing.n_appended)
        self._spaces_of_taken |= _spaces_by_worker(segments)
        self.summaries += summaries_of(segments)
        batch = self.make(segments, self._growing)
        self.warn_of_actions()
        self._stats.kept_trajectories = batch.n_trajectories
        self._stats.episodes = EndedEpisodes.of(batch.episode_returns, batch.episode_lengths)
        return batch

    def warn_of_actions(self) -> None:
        """Warn, once, that no environment has said which actions it took, where it was to say it."""
        self._session.taken_actions.warn_if_missing()

    def make(self, segments: list[Segment], growing: GrowingBatch | None = None) -> TrajectoryBatch[Any, Any]:
        """Return trajectories in memory of their own.

        Args:
            segments: Their segments.
            growing: A batch of those before them; None for an empty one.

        Raises:
            DataError: The environments of the trajectories have different spaces.
        """
        observation_space, action_space = self._spaces_of(segments)
        batch = assembled(
            segments,
            growing,
            observation_space=observation_space,
            action_space=action_space,
            seeds_of=partial(self._session.seeds_of, self._accounts.version),
            agent_version=self._accounts.version,
            seed=self._session.seed,
            stats=self._stats,
            fragments={} if self._episodes is None else self._episodes.fields(),
        )
        return batch if self._filters is None else self._filters.applied(batch)

    def _spaces_of(self, segments: list[Segment]) -> Spaces:
        of_workers = self._spaces_of_taken | _spaces_by_worker(segments)
        first_worker = min(of_workers)
        first: Spaces = of_workers[first_worker]
        for worker, spaces in sorted(of_workers.items()):
            if not same_spaces(spaces, first):
                raise DataError(
                    "the environments of one batch must have the same spaces: "
                    f"worker {first_worker} has {first[0]} and {first[1]}, worker {worker} has {spaces[0]} and "
                    f"{spaces[1]}"
                )
            _check_order(first_worker, first[0], worker, spaces[0])
        # Workers and calls share what the engine hands out; a user may change what is in a batch.
        if self._spaces is None or self._spaces[0] is not first:
            self._spaces = first, copy.deepcopy(first)
        return self._spaces[1]

    def release(self, delivery: Delivery) -> None:
        """Release the memory of a delivery; its arrays are void afterwards."""
        if self._deliveries.pop(id(delivery), None) is not None:
            delivery.release()

    def release_all(self) -> None:
        """Release the memory of all deliveries, and forget their arrays: an error's traceback may hold this call."""
        for delivery in list(self._deliveries.values()):
            self.release(delivery)
            del delivery.rollouts

    def forget_all(self) -> None:
        """Forget all deliveries: their memory is gone with the engine, or is about to be, in another thread."""
        self._deliveries.clear()


def _check_order(first_worker: int, first: Any, worker: int, other: Any) -> None:
    """Check that agents, whose order says which is which, have the same in two workers; a Dict has any order."""
    if isinstance(first, SpacesOfAgents) and [*first.spaces] != [*other.spaces]:
        raise DataError(
            f"possible_agents must have the same order everywhere: worker {first_worker} has {[*first.spaces]}, worker "
            f"{worker} has {[*other.spaces]}. A set of strings has another order in each process: sort it"
        )


def _spaces_by_worker(segments: Sequence[Segment]) -> dict[int, Spaces]:
    return {segment.delivery.worker: segment.delivery.spaces for segment in segments}
