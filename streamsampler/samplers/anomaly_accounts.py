"""Accounts of what may be wrong with the trajectories that a call returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamsampler.data.anomalies import Anomaly
from streamsampler.data.statistics import FoundAnomaly, Stats
from streamsampler.samplers.session import Session
from streamsampler.samplers.supervisor import logger
from streamsampler.scheduling.result import Segment

__all__ = ["AnomalyAccounts"]


class AnomalyAccounts:
    """Counts the anomalies of trajectories that are returned, and of no others: so does one process alone.

    Args:
        session: What outlives the call; knows whether the user was warned.
        stats: Where they are counted.
        version: The call's agent version.
    """

    def __init__(self, session: Session, stats: Stats, version: int) -> None:
        self._session, self._stats, self._version = session, stats, version
        self._held: dict[int, Anomaly] = {}  # by trajectory index

    def hold(self, segments: Iterable[Segment]) -> None:
        """Remember the anomalies of these segments."""
        for delivery, start, stop, indices in segments:
            for anomaly in delivery.rollouts.anomalies:
                if start <= anomaly.position < stop:
                    self._held[indices[anomaly.position - start]] = anomaly

    def returned(self, indices: Sequence[int] | None = None) -> None:
        """Count the anomalies of trajectories that are returned, and warn of the sampler's first one.

        Args:
            indices: The trajectories; None for all that are remembered.
        """
        if not self._held:
            return
        found = sorted(self._held if indices is None else self._held.keys() & set(indices))
        for index in found:
            anomaly = self._held.pop(index)
            self._stats.anomalies += anomaly.count
            first = FoundAnomaly(self._version, index, anomaly.timestep, anomaly.what)
            if self._stats.first_anomaly is None:
                self._stats.first_anomaly = first
            if not self._session.told_of_anomalies:
                self._session.told_of_anomalies = True
                logger.warning(
                    '%s; such data are counted in stats.anomalies, and told this once; check="error" ends the call, '
                    "check=None looks for nothing", first,
                )  # fmt: skip
