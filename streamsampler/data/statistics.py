"""Accounts of calls: the fate of every trajectory, and the workers' time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.times import Times
from streamsampler.core.timing import Gauges, Measured, ScriptTimes, merge_gauges
from streamsampler.core.words import count, duration, table
from streamsampler.data.aggregation import Aggregation, aggregate, metrics_of, present_numbers
from streamsampler.data.timers import Timer
from streamsampler.data.trees import Array
from streamsampler.protocol.messages import Checked, Report

_NO_SUMS = {
    "workers", "worker_timesteps", "timed", "gauges_of_workers", "script", "recent", "infos", "histograms",
    "first_anomaly", "metrics", "metric_kinds",
}  # fmt: skip
_MEANS = (*(f"ms/{phase}" for phase in Times._fields), "timesteps_per_second", "episode_return", "episode_length")
"""The names in `Stats.means` of a call in which an episode ended."""
_WEIGHT = 0.1

REMEMBERED = 1_000
"""The maximum length of the list of dropped trajectories."""


@dataclass(frozen=True, slots=True)
class DroppedTrajectory:
    """A trajectory dropped from the batch because its rollout raised; `error` is the exception in one line."""

    version: int
    index: int
    worker: int
    phase: str
    error: str


@dataclass(frozen=True, slots=True)
class FoundAnomaly:
    """Suspect data in a returned trajectory; `timestep` is the trajectory's length for the final observation."""

    version: int
    index: int
    timestep: int
    what: str

    @property
    def where(self) -> str:
        return f"{self.what}, at timestep {self.timestep} of trajectory {self.index}"

    def __str__(self) -> str:
        return f"{self.where} of agent version {self.version}"


def _amount(trajectories: int, timesteps: int) -> str:
    return f"{count(trajectories, 'trajectory')}, {count(timesteps, 'timestep')}"


@dataclass(frozen=True, slots=True)
class EndedEpisodes:
    """Totals of ended episodes: number, timesteps and raw rewards, from their resets on, also in earlier calls."""

    count: int = 0
    timesteps: int = 0
    rewards: float = 0.0

    @property
    def mean_return(self) -> float:
        return self.rewards / self.count if self.count else math.nan

    @property
    def mean_length(self) -> float:
        return self.timesteps / self.count if self.count else math.nan

    @classmethod
    def of(cls, returns: NDArray[np.float64], lengths: NDArray[np.int64]) -> EndedEpisodes:
        with np.errstate(invalid="ignore"):  # rewards may be infinite
            return cls(len(lengths), int(lengths.sum()), float(returns.sum()))

    def __add__(self, other: EndedEpisodes) -> EndedEpisodes:
        return EndedEpisodes(self.count + other.count, self.timesteps + other.timesteps, self.rewards + other.rewards)


@dataclass
class Stats:
    """Accounts of a call, or of all calls of a sampler; `print(stats)` shows a table.

    Attributes:
        kept_trajectories: Returned trajectories; in fragments, parts of episodes.
        kept_timesteps: Their timesteps.
        episodes: The episodes that ended in the returned trajectories. In `flat`: "episodes", "episode_return" and
            "episode_length".
        stale_trajectories: Finished or failed trajectories of an older agent version, discarded on arrival.
        stale_timesteps: Their timesteps.
        surplus_trajectories: Unneeded finished or failed trajectories of the call's own version.
        surplus_timesteps: Their timesteps.
        abandoned_trajectories: Rollouts stopped because they were no longer needed.
        abandoned_timesteps: Their timesteps.
        lost_timesteps: Timesteps wasted by failures: of failed tickets, dropped trajectories, and dead workers (as far
            as their progress was known), and timesteps repeated to restore episodes of fragments. Once all reports have
            arrived, kept, stale, surplus, abandoned and lost timesteps add up to all timesteps run.
        checked_trajectories: Trajectories run only to check the dependence on the seed alone; they are in no other
            account.
        checked_timesteps: Their timesteps.
        failed_trajectories: Trajectories that raised or lost their worker, whether they were run again or ended the
            call. Unneeded ones are surplus.
        dropped_trajectories: Trajectories dropped because they raised, up to the batch's last index.
        dropped: The latest thousand of them, with reasons.
        anomalies: Observations (final ones included) with NaN or outside their space, and NaN rewards, in returned
            trajectories. 0 if `check` is None.
        first_anomaly: The first anomaly, by trajectory index and timestep, of the first call with any; or None.
        restarts: Workers started to replace dead, hung or too large workers.
        hangs: Workers killed because they made no progress.
        replaced: Workers ended because they exceeded their memory limit.
        timed_out: How often a trajectory exceeded `step_timeout` or `trajectory_timeout` in waiting environments; it
            was run again, or dropped.
        further_envs: Environments made for whole trajectories while the existing environments held unfinished episodes.
        reports: Reports of workers.
        seconds: Wall time inside obtaining calls.
        workers: Each worker's time by phase.
        worker_timesteps: Each worker's reported timesteps.
        timed: Times of user code in workers, by worker and phase; see `timers`.
        gauges_of_workers: Gauges of user code in workers, by name; see `gauges`.
        script: The script's own measurements, outside workers; None in the accounts of a single call.
        recent: Exponentially weighted means over a sampler's calls (not streams), with weight 0.1 for each call, by
            name in `flat`: milliseconds per timestep by timer, timesteps per second, means of episodes, values of
            infos.
        infos: The results of `take_infos` for the last batch, by name.
        histograms: The values, (n,), of infos aggregated as "histogram", for experiment trackers. `flat`, which has
            only numbers, has their mean.
        metrics: The aggregated metrics of the last batch, or of a stream so far, by name, if they are a number in each
            trajectory. In `flat`: "metrics/…".
        metric_kinds: Each metric's aggregation: "mean", "sum" or "last".
    """

    kept_trajectories: int = 0
    kept_timesteps: int = 0
    episodes: EndedEpisodes = EndedEpisodes()
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
    timed_out: int = 0
    further_envs: int = 0
    reports: int = 0
    seconds: float = 0.0
    workers: list[Times] = field(default_factory=list)
    worker_timesteps: list[int] = field(default_factory=list)
    timed: dict[int, Timer] = field(default_factory=dict)
    gauges_of_workers: Gauges = field(default_factory=dict)
    script: ScriptTimes | None = None
    recent: dict[str, float] = field(default_factory=dict)
    infos: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Array] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    metric_kinds: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, n_workers: int, script: ScriptTimes | None = None) -> Stats:
        """Return empty accounts for `n_workers` workers."""
        return cls(workers=[Times()] * n_workers, worker_timesteps=[0] * n_workers, script=script)

    @property
    def times(self) -> Times:
        """The time of all workers together, by phase."""
        return Times(*map(sum, zip(*self.workers, strict=True)))

    def __repr__(self) -> str:
        kept = _amount(self.kept_trajectories, self.kept_timesteps)
        return f"Stats({kept} kept in {duration(self.seconds)}; print() shows all accounts)"

    def __str__(self) -> str:
        """Return a table of the trajectories' fates and the workers' time."""
        return table({
            "kept": _amount(self.kept_trajectories, self.kept_timesteps),
            "stale": _amount(self.stale_trajectories, self.stale_timesteps),
            "surplus": _amount(self.surplus_trajectories, self.surplus_timesteps),
            "abandoned": _amount(self.abandoned_trajectories, self.abandoned_timesteps),
            "lost": count(self.lost_timesteps, "timestep"),
            "checked": _amount(self.checked_trajectories, self.checked_timesteps),
            "failed": f"{count(self.failed_trajectories, 'trajectory')}; {self.dropped_trajectories:,} were dropped",
            **({"timed out": count(self.timed_out, "trajectory")} if self.timed_out else {}),
            "anomalies": f"{self.anomalies:,}" + (f", first {self.first_anomaly}" if self.first_anomaly else ""),
            "restarts": f"{self.restarts:,} of {count(len(self.workers), 'worker')}; {self.hangs:,} hung, "
            f"{self.replaced:,} used too much memory",
            **({"further environments": f"{self.further_envs:,}"} if self.further_envs else {}),
            "wall time": self._wall_time(),
            "workers' time": self._shares(),
            **{
                name: ", ".join(f"{key} {value:,.5g}" for key, value in values.items())
                for name, values in (("infos", self.infos), ("metrics", self.metrics))
            },
        })  # fmt: skip

    def _wall_time(self) -> str:
        text = f"{duration(self.seconds)} in calls"
        return f"{text}, {count(self.kept_timesteps / self.seconds, 'timestep')} per second" if self.seconds else text

    def _shares(self) -> str:
        times = self.times
        total = sum(times)
        return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in times._asdict().items()) if total else ""

    def add_report(self, worker: int, report: Report) -> None:
        """Add a report's times and abandoned rollouts; the caller counts the fate of its trajectories."""
        self.reports += 1
        self.further_envs += report.further_envs
        self.workers[worker] = self.workers[worker].plus(report.seconds)
        self.worker_timesteps[worker] += report.ran_timesteps
        if report.timed is not None:
            self.add_measured(worker, report.timed)
        self.abandoned_trajectories += report.n_abandoned
        self.abandoned_timesteps += report.abandoned_timesteps
        self.lost_timesteps += report.lost_timesteps
        self.timed_out += report.n_timed_out
        if report.metrics:
            self.metric_kinds.update(report.metrics)
        if report.checked is not None:
            self.add_check(report.checked)

    def add_measured(self, worker: int, measured: Measured) -> None:
        """Add measurements of user code in a worker."""
        self.timed.setdefault(worker, Timer()).add(measured.blocks)
        merge_gauges(self.gauges_of_workers, measured.gauges)

    def add_check(self, checked: Checked) -> None:
        """Add a worker's checking runs."""
        self.checked_trajectories += checked.trajectories
        self.checked_timesteps += checked.timesteps

    @property
    def ran_timesteps(self) -> int:
        """All timesteps in these accounts, whatever their fate."""
        fates = (self.kept_timesteps, self.stale_timesteps, self.surplus_timesteps, self.abandoned_timesteps)
        return sum(fates) + self.lost_timesteps + self.checked_timesteps

    def merge(self, call: Stats) -> None:
        """Add the accounts of a call."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(call, name))
        self.first_anomaly = self.first_anomaly or call.first_anomaly
        del self.dropped[:-REMEMBERED]
        # Among thousands of workers, few may have had work.
        for worker, timesteps in enumerate(call.worker_timesteps):
            if timesteps or any(call.workers[worker]):
                self.workers[worker] = self.workers[worker].plus(call.workers[worker])
                self.worker_timesteps[worker] += timesteps
        for worker, timed in call.timed.items():
            self.timed.setdefault(worker, Timer()).merge(timed)
        if call.gauges_of_workers:
            merge_gauges(self.gauges_of_workers, call.gauges_of_workers)
        self.metric_kinds |= call.metric_kinds
        self.metrics |= call.metrics
        self._remember(call.means() | {f"metrics/{name}": value for name, value in call.metrics.items()})

    def _remember(self, means: Mapping[str, float]) -> None:
        for name, value in means.items():
            before = self.recent.get(name, value)
            self.recent[name] = before + _WEIGHT * (value - before)

    def take_infos(self, batch: Any, how: Mapping[str, Aggregation]) -> dict[str, float]:
        """Aggregate infos of the environment: `sampler.stats.take_infos(batch, {"crashes": "sum"})`.

        The results are in `infos` until the next call, and in `flat` as "infos/crashes" and "recent/infos/crashes": NaN
        until the info first appears. With "histogram" the values themselves are in `histograms`, and their mean in the
        others.

        Args:
            batch: A `TrajectoryBatch`.
            how: By name of an info of `env.step` the aggregation: "mean" or "sum" over the timesteps with the info,
                "last" for its last value in index order, or "histogram".

        Returns:
            A number for each present name.

        Raises:
            UsageError: An aggregation is unknown, or an info is not a number in each timestep.
        """
        infos = batch.env_infos
        found = aggregate(infos, how)
        self.infos = dict.fromkeys(how, math.nan) | self.infos | found
        for name in found:
            if how[name] == "histogram" and (values := present_numbers(infos, name)) is not None:
                self.histograms[name] = values.copy()  # the batch may be large
        self._remember({f"infos/{name}": value for name, value in found.items()})
        return found

    def add_metrics(self, batch: Any) -> None:
        """Aggregate the metrics of a `TrajectoryBatch`."""
        self.metrics = metrics_of(batch.episode_infos, self.metric_kinds)

    def timers(self, worker: int | None = None) -> Timer:
        """Return a worker's time as a tree: its phases, and below them the times of user code.

        Args:
            worker: The worker number; None for all workers together, and the script.

        Returns:
            A new tree. Its children are those of `Times`: reset, agent, step, sending, idle and checking; and "script",
            if the script has timed anything since the sampler or manager was made.
        """
        times = self.times if worker is None else self.workers[worker]
        timesteps = sum(self.worker_timesteps) if worker is None else self.worker_timesteps[worker]
        phases = {name: Timer(seconds) for name, seconds in times._asdict().items()}
        tree = Timer(sum(times), 0, timesteps, phases)
        for number in sorted(self.timed) if worker is None else [worker]:
            tree.merge(self.timed.get(number, Timer()))
        if worker is None and self.script is not None and (blocks := self.script.measured().blocks):
            script = tree.children["script"] = Timer()
            script.add(blocks)
            script.seconds = sum(child.seconds for child in script.children.values())
            tree.seconds += script.seconds
        for _, timer in tree.walk():
            timer.timesteps = tree.timesteps
        return tree

    def gauges(self) -> Gauges:
        """Return the gauges of workers and the script, by name; see `streamsampler.timed.gauge`.

        Workers run concurrently, so their last value depends on timing. Values of discarded trajectories are included.

        Returns:
            New objects, with the last `value`, `mean`, `minimum`, `maximum` and `count`.
        """
        gauges: Gauges = {}
        merge_gauges(gauges, self.gauges_of_workers)
        if self.script is not None:
            merge_gauges(gauges, self.script.measured().gauges)
        return gauges

    def means(self) -> dict[str, float]:
        """Return milliseconds per timestep by timer, timesteps per second and means of episodes, as `flat` has them."""
        if not any(self.worker_timesteps):
            return {}
        if self.timed or self.script is not None:
            means = {f"ms/{'/'.join(path)}": timer.ms_per_timestep for path, timer in self.timers().walk() if path}
        else:
            timesteps = sum(self.worker_timesteps)
            means = {f"ms/{name}": 1_000 * seconds / timesteps for name, seconds in self.times._asdict().items()}
        means["timesteps_per_second"] = self.kept_timesteps / self.seconds if self.seconds else 0.0
        if self.episodes.count:
            means |= {"episode_return": self.episodes.mean_return, "episode_length": self.episodes.mean_length}
        return means

    def flat(self) -> dict[str, float]:
        """Return all numbers by name, for experiment trackers.

        Names are those of the attributes; "ms/step/physics" and so on are milliseconds per timestep, over all workers,
        by the timer's path; "recent/…" is the exponentially weighted mean of each of these, without the script's.
        "gauges/loss" is a gauge's last value, and "gauges/loss/mean", "…/minimum" and "…/maximum" cover all its values.
        Names independent of user code are present from the first call on, with NaN until a number is known.
        """
        numbers = {item.name: getattr(self, item.name) for item in fields(self) if item.type in ("int", "float")}
        infos = {f"infos/{name}": value for name, value in self.infos.items()}
        metrics = {f"metrics/{name}": value for name, value in self.metrics.items()}
        gauges: dict[str, float] = {}
        for name, gauge in self.gauges().items():
            gauges[f"gauges/{name}"] = gauge.value
            gauges |= {f"gauges/{name}/{key}": getattr(gauge, key) for key in ("mean", "minimum", "maximum")}
        means = dict.fromkeys(_MEANS, math.nan) | self.means() | infos | metrics | gauges
        recent = dict.fromkeys((*_MEANS, *infos, *metrics), math.nan) | self.recent
        return (
            numbers
            | {"episodes": self.episodes.count}
            | means
            | {f"recent/{name}": value for name, value in recent.items()}
        )


_SUMS = tuple(item.name for item in fields(Stats) if item.name not in _NO_SUMS)
"""The attributes that `Stats.merge` adds."""
