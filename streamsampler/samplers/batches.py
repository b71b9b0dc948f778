"""Assemble a call's batches from the workers' deliveries, and release the deliveries' memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from streamsampler.core.errors import DataError
from streamsampler.core.words import count
from streamsampler.data.assembly import GrowingBatch
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.multi_agent import assembled
from streamsampler.data.segments import Segment
from streamsampler.data.spaces import same_spaces
from streamsampler.data.statistics import EndedEpisodes
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.plans import Streamed, expected_rows
from streamsampler.samplers.accounts import CallAccounts
from streamsampler.samplers.arrivals import Spaces
from streamsampler.samplers.episode_parts import EpisodeParts
from streamsampler.samplers.session import Session
from streamsampler.samplers.summaries import Summaries, summaries_of


class BatchMaker:
    """Makes the batches of a call.

    Anomalies of segments are recorded in the accounts before the segments are forgotten; after an interrupt in between
    this may happen twice.
    """

    def __init__(self, session: Session, gathering: Gathering, accounts: CallAccounts) -> None:
        self._session = session
        self._gathering = gathering
        self._accounts, self._stats = accounts, accounts.stats
        self._spaces_of_taken: dict[int, Spaces] = {}  # by worker, for segments already copied
        self._ledger = ledger = session.ledger
        self._episodes = None if ledger is None else EpisodeParts(gathering.result, session.arrivals, ledger)
        self._filters = session.store.filters
        self.summaries: list[Summaries] = []  # filters' statistics of the trajectories already in a batch
        self._has_new = False
        # Unused in streams, which return each trajectory by itself.
        self._growing = GrowingBatch(session.pool.allocate)

    def keep(self, number: int, fingerprint: str) -> None:
        """Hold a report's delivery until it is released, with the bits of its worker's fingerprint."""
        session, delivery = self._session, self._session.arrivals.deliveries.get(number)
        self._has_new = True
        if delivery is None:
            return
        delivery.fingerprint = fingerprint
        if self._gathering.plan.counts_agents:
            report = session.arrivals.report(number)
            assert report is not None
            self._accounts.excess += sum(delivery.rollouts.agent_steps()) - report.n_timesteps
        if self._ledger is not None:  # before `taken_actions`: the ledger needs the agent's own actions
            self._stats.failed_trajectories += self._ledger.record(delivery)
        if delivery.rollouts.remarks:
            kept = session.arrivals.report(number)
            assert kept is not None
            session.warn_of(delivery.rollouts.remarks, session.task_of(kept.ticket))
        session.taken_actions.put(delivery.rollouts)
        if session.file_infos.kept is not None:
            session.file_infos.leave_out(delivery.rollouts)

    def append_due(self) -> None:
        """Copy new segments of the result if there are enough; called after all `keep` of an event."""
        if not self._has_new or isinstance(self._gathering.plan, Streamed):
            return
        are_kept = self._session.file_infos.kept is not None
        if self._gathering.result.complete and not are_kept:
            return  # `final` is about to copy everything left
        self._has_new = False
        new = self.segments(self._growing.n_counted)
        if are_kept:
            self._session.file_infos.check(new)  # before their memory is released
        for segment in new:
            self._growing.count(segment)
        if self._growing.due:
            self._append()

    def segments(self, first: int = 0) -> list[Segment]:
        if self._episodes is not None:
            return self._episodes.segments(first)
        return self._session.arrivals.segments(self._gathering.result.spans(first))

    def pop_segments(self) -> list[Segment]:
        segments = self._session.arrivals.segments(self._session.scheduler.pop_spans())
        self._session.file_infos.check(segments)
        return segments

    @property
    def n_ended(self) -> int | None:
        """Number of episodes of fragments that ended so far; None for whole trajectories."""
        return None if self._ledger is None else self._ledger.ended.count

    def note(self) -> str:
        if self._ledger is None:
            return ""
        ended = self._ledger.ended
        return f"{count(ended.count, 'episode')}, return {ended.mean_return:.4g}" if ended.count else "no episode ended"

    def _append(self) -> None:
        growing, gathering = self._growing, self._gathering
        first = growing.n_appended
        segments = self.segments(first)
        self._accounts.add_anomalies(segments)
        self._spaces_of_taken |= _spaces_by_worker(segments)
        growing.append(segments, expected_rows(gathering.plan, gathering.throughput.timesteps))
        self.summaries += summaries_of(segments)
        self.release(segments)
        if self._episodes is None:
            gathering.result.forget_spans(first, growing.n_appended)
        else:
            self._episodes.forget_segments(first, growing.n_appended)

    def final(self) -> TrajectoryBatch[Any, Any]:
        segments = self.segments(self._growing.n_appended)
        self._spaces_of_taken |= _spaces_by_worker(segments)
        self.summaries += summaries_of(segments)
        batch = self.make(segments, self._growing)
        self.warn_of_actions()
        self._stats.kept_trajectories = batch.n_trajectories
        self._stats.episodes = EndedEpisodes.of(batch.episode_returns, batch.episode_lengths)
        return batch

    def warn_of_actions(self) -> None:
        """Warn, once, if no environment has reported the actions it took although `record_taken` is set."""
        self._session.taken_actions.warn_if_missing()

    def make(self, segments: list[Segment], growing: GrowingBatch | None = None) -> TrajectoryBatch[Any, Any]:
        """Return trajectories in memory of their own, appended to a growing batch.

        Raises:
            DataError: The environments of the trajectories have different spaces.
        """
        observation_space, action_space = self._spaces_of(segments)
        batch = assembled(
            segments, growing, observation_space=observation_space, action_space=action_space,
            seeds_of=partial(self._session.seeds_of, self._accounts.version),
            agent_version=self._accounts.version, seed=self._session.seed, stats=self._stats,
            fragments={} if self._episodes is None else self._episodes.fields(),
        )  # fmt: skip
        return batch if self._filters is None else self._filters.applied(batch)

    def _spaces_of(self, segments: list[Segment]) -> Spaces:
        of_workers = self._spaces_of_taken | _spaces_by_worker(segments)
        first_worker = min(of_workers)
        first: Spaces = of_workers[first_worker]
        for worker, spaces in sorted(of_workers.items()):
            if worker == first_worker:
                continue
            if not same_spaces(spaces, first):
                raise DataError(
                    "the environments of a batch must have the same spaces, but "
                    f"worker {first_worker} has {first[0]} and {first[1]}, worker {worker} has {spaces[0]} and "
                    f"{spaces[1]}"
                )
            _check_order(first_worker, first[0], worker, spaces[0])
        return self._session.arrivals.copy_of(first)

    def release(self, segments: Sequence[Segment]) -> None:
        """Release the deliveries that end with these segments; their arrays are invalid afterwards."""
        for segment in segments:
            if segment.delivery.ends_with(segment):
                self._session.arrivals.release(segment.delivery)


def _check_order(first_worker: int, first: Any, worker: int, other: Any) -> None:
    """Raise if two workers list their agents in different orders; the order of a Dict space is free."""
    if isinstance(first, SpacesOfAgents) and [*first.spaces] != [*other.spaces]:
        raise DataError(
            f"possible_agents must have the same order in all workers, but worker {first_worker} has "
            f"{[*first.spaces]}, and worker {worker} has {[*other.spaces]}. Sort it if it comes from a set "
            "of strings, whose order differs between processes"
        )


def _spaces_by_worker(segments: Sequence[Segment]) -> dict[int, Spaces]:
    return {segment.delivery.worker: segment.delivery.spaces for segment in segments}
