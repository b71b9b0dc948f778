"""Measure ways to step an environment in turn, within a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from streamsampler.benchmarking.costs import Costs, Probed, processes_for
from streamsampler.benchmarking.report import BenchReport, WayMeasured
from streamsampler.benchmarking.way import Problem, Round, Tally, Way
from streamsampler.environments.updates import EnvUpdate, describe
from streamsampler.errors import UsageError, WorkerError, positive, positive_seconds
from streamsampler.workers.explain import summary_of
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.logs import quiet

_MOST_ENVS = 8
_ROUNDS = 5
_SHORTEST, _LONGEST = 0.1, 0.5
"""Seconds of a round of one way, at least and at most."""
_WARM_UP = 0.05
_USUAL_STEPS, _ENDLESS = 1_000, 1 << 40
_PATIENCE, _CONSTRUCTION = 5.0, 10.0
"""Seconds that a way has for its first timesteps, and for its environments to be made; more where both are slow."""


@dataclass(frozen=True)
class BenchSettings:
    """The arguments of `bench` besides environment and agent; see there.

    Raises:
        UsageError: One cannot work.
    """

    seconds: float = 10.0
    n_workers: int | None = None
    n_envs: int | None = None
    max_episode_length: int | None = None
    step_timeout: float = 10.0

    def __post_init__(self) -> None:
        positive_seconds("seconds", self.seconds)
        positive_seconds("step_timeout", self.step_timeout)
        for name in ("n_workers", "n_envs", "max_episode_length"):
            if (value := getattr(self, name)) is not None:
                positive(name, value)


def problem_of(
    env: EnvUpdate, env_code: str, agent: Any, settings: BenchSettings, probed: Probed, *, in_workers: bool
) -> tuple[Problem, str]:
    """Return what is measured, and why on so many processes.

    Args:
        env: The environment.
        env_code: What stands for it in a call, as Python code.
        agent: The agent.
        settings: What is asked for.
        probed: What is known of them.
        in_workers: Whether all runs in workers, whose trajectories can be ended at any time.
    """
    costs = probed.costs
    n_envs = settings.n_envs or probed.n_slots or costs.n_envs(_MOST_ENVS, settings.seconds)
    n_workers, why = processes_for(costs.cpu_share, costs.free_share, usable_cores())
    if settings.n_workers is not None:
        n_workers, why = settings.n_workers, "as many as asked for"
    longest = _ENDLESS if in_workers else costs.longest(n_envs, n_workers, settings.seconds)
    if settings.max_episode_length is not None:
        longest = min(longest, settings.max_episode_length)
    problem = Problem(
        env, env_code, agent,
        n_workers=n_workers,
        n_envs=n_envs,
        max_episode_length=longest,
        cuts=longest < (_USUAL_STEPS if probed.time_limit is None else probed.time_limit),
        length=min(longest, probed.length),
        reset_seconds=costs.reset,
        step_timeout=settings.step_timeout,
        construction_timeout=max(_CONSTRUCTION, settings.step_timeout, 4 * n_envs * costs.construction),
        is_vector=probed.n_slots is not None,
    )  # fmt: skip
    return problem, why


def _nothing() -> None:
    """Watch nothing."""


@dataclass
class Measurement:
    """Measurements that are under way.

    Attributes:
        problem: What is measured.
        ways: In which ways.
        time: Seconds that all of it takes, about.
        began: When it began, as `time.perf_counter` says it.
        costs: What things take in one process.
        agent_name: What the agent is called.
        why: Why there are so many processes.
        watch: Called now and then; what it raises ends all.
        doing: What is being done.
        timesteps: How many there were.
    """

    problem: Problem
    ways: Sequence[Way]
    time: float
    began: float
    costs: Costs
    agent_name: str
    why: str
    watch: Callable[[], Any] = _nothing
    doing: str = "starting"
    timesteps: int = 0
    tallies: dict[Way, list[Tally]] = field(default_factory=dict)
    obstacles: dict[Way, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return perf_counter() - self.began

    @property
    def left(self) -> float:
        """How much time is left."""
        return self.time - self.seconds

    def all(self) -> None:
        """Start all ways, and measure them."""
        with quiet(), self._started() as ways:
            self._measure(ways)

    @contextlib.contextmanager
    def _started(self) -> Iterator[list[Way]]:
        """Yield the ways that can run, all of them started."""
        with contextlib.ExitStack() as stack:
            ways = []
            for way in self.ways:
                self.doing = f"starting {way.name}"
                self.watch()
                stack.callback(self._close, way)
                if lacking := way.lacking or self._lacking_time(way):
                    self.obstacles[way] = lacking
                    continue
                with self._noted(way):
                    way.start()
                    self._round(way, _WARM_UP, _WARM_UP)
                    ways.append(way)
            yield ways
            self.doing = "ending"

    def _lacking_time(self, way: Way) -> str:
        """Return why there is no time to start a way; an empty text where there is."""
        seconds, left = self._first_timesteps(way, made=False), max(0.0, self.left)
        if seconds <= max(_LONGEST, left):
            return ""
        return f"given up: its first timesteps take about {seconds:.2g} s, and {left:.1f} s were left"

    def _first_timesteps(self, way: Way, *, made: bool) -> float:
        return self.costs.first_timesteps(way.n_in_turn, made=made)

    @staticmethod
    def _close(way: Way) -> None:
        with contextlib.suppress(Exception):  # an environment that cannot be closed: how fast it is was found
            way.close()

    @contextlib.contextmanager
    def _noted(self, way: Way) -> Iterator[None]:
        """Note why a way cannot run."""
        try:
            yield
        except Exception as error:
            self.obstacles[way] = _in_a_line(error)
            self._close(way)

    def _round(self, way: Way, seconds: float, most: float) -> None:
        patience = max(_PATIENCE, 3 * self._first_timesteps(way, made=False))
        tally = way.run(Round(seconds, most, patience, self.watch))
        self.timesteps += tally.timesteps
        self.tallies.setdefault(way, []).append(tally)

    def _measure(self, ways: list[Way]) -> None:
        """Measure the ways in turn, until the time is over; each at least once, unless that takes long."""
        each = min(_LONGEST, max(_SHORTEST, self.left / (_ROUNDS * max(1, len(ways)))))
        while ways:
            most = max(_LONGEST, self.left / len(ways))
            for way in list(ways):
                self.doing = way.name
                if self._next_round(way) > max(_LONGEST, self.left):
                    ways.remove(way)  # its last round, or its warm-up, has to do
                    continue
                with self._noted(way):
                    self._round(way, each, most)
                if way in self.obstacles:
                    ways.remove(way)
            if sum(max(each, self.tallies[way][-1].seconds) for way in ways) > self.left:
                return
            ways.reverse()  # none always comes behind the same other one

    def _next_round(self, way: Way) -> float:
        """Return how long a round takes at least: nothing ends it before each environment was stepped."""
        tallies = self.tallies[way]
        making = way.n_in_turn * self.costs.construction if len(tallies) == 1 else 0.0
        return max(self._first_timesteps(way, made=True), tallies[-1].seconds - making)

    def _measured(self, way: Way) -> WayMeasured:
        found = WayMeasured(way.name, way.call, way.in_parent, way.n_processes, options=way.options)
        if way in self.obstacles or way not in self.tallies:
            return replace(found, obstacle=self.obstacles.get(way, "not measured"))
        warm_up, *tallies = self.tallies[way]
        uncertain = not tallies or not all(tally.certain for tally in tallies)
        return replace(found, rates=tuple(tally.rate for tally in tallies or [warm_up]), uncertain=uncertain)

    def report(self) -> BenchReport:
        """Return what was measured."""
        return BenchReport(
            environment=describe(self.problem.env), agent=self.agent_name, n_cores=usable_cores(),
            n_workers=self.problem.n_workers, why_workers=self.why, seconds=self.seconds,
            ways=tuple(map(self._measured, self.ways)),
            cut_after=self.problem.max_episode_length if self.problem.cuts else None,
        )  # fmt: skip


def _in_a_line(error: Exception) -> str:
    """Return the message of an error, without what a sampler's next call does."""
    text = error.worded(None) if isinstance(error, WorkerError) else str(error)
    line = text.strip().partition("\n")[0]
    return line if line and isinstance(error, WorkerError | UsageError) else summary_of(error)
