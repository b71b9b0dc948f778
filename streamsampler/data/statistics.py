"""Accounts: what became of every trajectory, and where the workers' time went."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import reduce

from streamsampler.protocol.messages import Checked, Report, Times

__all__ = ["REMEMBERED", "DroppedTrajectory", "FoundAnomaly", "Stats"]

REMEMBERED = 1_000
"""How many dropped trajectories are listed."""


@dataclass(frozen=True, slots=True)
class DroppedTrajectory:
    """A trajectory that was left out because its rollout raised.

    Attributes:
        version: The agent version.
        index: The trajectory index.
        worker: The worker that ran it.
        phase: What the worker was doing.
        error: The exception in one line.
    """

    version: int
    index: int
    worker: int
    phase: str
    error: str


@dataclass(frozen=True, slots=True)
class FoundAnomaly:
    """Data that may be wrong.

    Attributes:
        version: The agent version.
        index: The trajectory index.
        timestep: The timestep; the trajectory's length where it is about the final observation.
        what: What may be wrong, and the environment's name.
    """

    version: int
    index: int
    timestep: int
    what: str

    def __str__(self) -> str:
        return f"{self.what}, at timestep {self.timestep} of trajectory {self.index} of agent version {self.version}"


@dataclass
class Stats:
    """What a call did, or a sampler in all its calls.

    Attributes:
        kept_trajectories: Trajectories that were returned.
        kept_timesteps: Their timesteps.
        stale_trajectories: Finished or failed trajectories of an older agent version, discarded on arrival.
        stale_timesteps: Their timesteps.
        surplus_trajectories: Finished or failed trajectories of the call's own version that it did not need.
        surplus_timesteps: Their timesteps.
        abandoned_trajectories: Rollouts that were stopped because they were no longer needed.
        abandoned_timesteps: Their timesteps.
        lost_timesteps: Timesteps that were run in vain because something went wrong: of tickets in which something
            raised, of trajectories that were left out, of workers that died, as far as they had shown them. With those
            that are kept, stale, surplus and abandoned they are all that were run, once all answers are in.
        checked_trajectories: Trajectories that were begun only to check that a trajectory depends on its seed alone:
            they are in no other account.
        checked_timesteps: Their timesteps.
        failed_trajectories: Trajectories whose worker raised or died, whether they were run again or ended the call;
            those that the call turned out not to need are surplus.
        dropped_trajectories: Trajectories that raised and were left out, of those that the batch has passed by.
        dropped: Which they were, and why; the latest thousand.
        anomalies: Observations that hold NaN or are outside their space, and rewards that are NaN, of the trajectories
            that were returned; final observations are among them. 0 where `check` is None.
        first_anomaly: The first one, by trajectory index and timestep, of the first call that returned any; or None.
        restarts: Workers that were started in place of others: dead ones, hung ones, too large ones.
        hangs: Workers that made no progress and were killed.
        replaced: Workers that had more memory than they may, and ended.
        reports: Answers of workers.
        seconds: Wall time inside obtaining calls.
        workers: Where each worker's time went.
    """

    kept_trajectories: int = 0
    kept_timesteps: int = 0
    stale_trajectories: int = 0
    stale_timesteps: int = 0
    surplus_trajectories: int = 0
    surplus_timesteps: int = 0
    abandoned_trajectories: int = 0
    abandoned_timesteps: int = 0
    lost_timesteps: int = 0
    checked_trajectories: int = 0
    checked_timesteps: int = 0
    failed_trajectories: int = 0
    dropped_trajectories: int = 0
    dropped: list[DroppedTrajectory] = field(default_factory=list)
    anomalies: int = 0
    first_anomaly: FoundAnomaly | None = None
    restarts: int = 0
    hangs: int = 0
    replaced: int = 0
    reports: int = 0
    seconds: float = 0.0
    workers: list[Times] = field(default_factory=list)

    @classmethod
    def of(cls, n_workers: int) -> Stats:
        """Return empty accounts for `n_workers` workers."""
        return cls(workers=[Times()] * n_workers)

    @property
    def times(self) -> Times:
        """Where the time of all workers together went."""
        return reduce(Times.plus, self.workers, Times())

    def take_report(self, worker: int, report: Report) -> None:
        """Add what a report says of times and of abandoned rollouts; what became of the others is its reader's."""
        self.reports += 1
        self.workers[worker] = self.workers[worker].plus(report.seconds)
        self.abandoned_trajectories += report.n_abandoned
        self.abandoned_timesteps += report.abandoned_timesteps
        self.lost_timesteps += report.lost_timesteps
        self.take_checked(report.checked)

    def take_checked(self, checked: Checked | None) -> None:
        """Add what a worker ran for a check, if there was one."""
        if checked is not None:
            self.checked_trajectories += checked.trajectories
            self.checked_timesteps += checked.timesteps

    @property
    def ran_timesteps(self) -> int:
        """All timesteps that are in these accounts, whatever became of them."""
        fates = (self.kept_timesteps, self.stale_timesteps, self.surplus_timesteps, self.abandoned_timesteps)
        return sum(fates) + self.lost_timesteps + self.checked_timesteps

    def merge(self, call: Stats) -> None:
        """Add the accounts of a call."""
        for item in fields(self):
            if item.name not in ("workers", "first_anomaly"):
                setattr(self, item.name, getattr(self, item.name) + getattr(call, item.name))
        self.first_anomaly = self.first_anomaly or call.first_anomaly
        del self.dropped[:-REMEMBERED]
        self.workers = list(map(Times.plus, self.workers, call.workers))
