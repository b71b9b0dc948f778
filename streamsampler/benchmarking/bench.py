"""Measure all the ways to step an environment with an agent, in turn, within a time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from gymnasium import Space

from streamsampler.agents.base import as_agent
from streamsampler.benchmarking.costs import BenchEnvError, Probed, agent_seconds, probe
from streamsampler.benchmarking.report import BenchReport, WayMeasured
from streamsampler.benchmarking.tally import Tally
from streamsampler.benchmarking.way import Problem, Round, Way
from streamsampler.benchmarking.ways import ways_of
from streamsampler.checking.worker import quiet
from streamsampler.environments.updates import EnvUpdate, as_env_update, describe
from streamsampler.errors import UsageError, WorkerError, positive, positive_seconds
from streamsampler.evaluation.agents import agent_facts, evaluated_agent
from streamsampler.samplers.progress import Display, ProgressArgument
from streamsampler.samplers.progress_output import display
from streamsampler.workers.explain import summary_of
from streamsampler.workers.factory import usable_cores

__all__ = ["BenchEnvError", "BenchInterruptedError", "BenchSettings", "MakeAgent", "bench", "bench_update"]

MakeAgent = Callable[[tuple[Space[Any], Space[Any]]], Any]
"""Makes the agent from the observation space and the action space."""

_MOST_ENVS = 8
_ROUNDS = 5
_SHORTEST, _LONGEST = 0.1, 0.5
"""Seconds of a round of one way, at least and at most."""
_WARM_UP = 0.05
_USUAL_STEPS = 1_000
_PATIENCE, _CONSTRUCTION = 5.0, 10.0
"""Seconds that a way has for its first timesteps, and for its environments to be made; more where both are slow."""


class BenchInterruptedError(KeyboardInterrupt):
    """Ctrl-C during `bench`: a `KeyboardInterrupt` that has what was measured.

    Attributes:
        found: The `BenchReport` of what was measured before.
    """

    def __init__(self, found: BenchReport) -> None:
        super().__init__("interrupted")
        self.found = found


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


def bench(
    env: Any,
    agent: Any = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    seconds: float = BenchSettings.seconds,
    n_workers: int | None = BenchSettings.n_workers,
    n_envs: int | None = BenchSettings.n_envs,
    max_episode_length: int | None = BenchSettings.max_episode_length,
    step_timeout: float = BenchSettings.step_timeout,
    progress: ProgressArgument = False,
) -> BenchReport:
    """Measure how many timesteps per second each way to step an environment takes, and recommend one.

    An environment is made and stepped in this process first, and where the agent stays in this process the
    environments of two ways do so, too: one that hangs or ends its process is for `streamsampler.check`.

    Args:
        env: Whatever samplers take: an id, a function that makes an environment, …
        agent: Whatever samplers take. None for random actions.
        env_kwargs: Keyword arguments for making the environment.
        seconds: How long all of it takes, about. A way is given up whose first timesteps would come later.
        n_workers: How many processes; None for the cores there are to use.
        n_envs: How many environments a process has, where it has several; None for 8, or fewer where making,
            resetting or stepping them takes long.
        max_episode_length: Timesteps after which trajectories are truncated; fewer where they would take long. Native
            vector environments truncate theirs themselves.
        step_timeout: Seconds that a reset or a timestep may take in a worker.
        progress: See `streamsampler.Sampler.obtain_samples`; counts seconds.

    Raises:
        UsageError: An argument cannot work.
        BenchEnvError: The environment cannot be made, reset and stepped.
        TypeError: `env` is no environment.
        BenchInterruptedError: Ctrl-C; has the report so far. (A KeyboardInterrupt.)
    """
    settings = BenchSettings(seconds, n_workers, n_envs, max_episode_length, step_timeout)
    update = as_env_update(env, env_kwargs=env_kwargs)
    code = (repr(env) if isinstance(env, str) else "env") + (f", env_kwargs={dict(env_kwargs)!r}" if env_kwargs else "")

    def make_agent(spaces: tuple[Space[Any], Space[Any]]) -> Any:
        return evaluated_agent(agent, None, None, lambda: spaces[1])

    return bench_update(update, code, None if agent is None else make_agent, settings, progress)


def bench_update(
    env: EnvUpdate,
    env_code: str,
    make_agent: MakeAgent | None,
    settings: BenchSettings,
    progress: ProgressArgument = False,
) -> BenchReport:
    """Do what `bench` does, with an agent that is made when the environment's spaces are known.

    Args:
        env: The environment.
        env_code: What stands for it in a call, as Python code.
        make_agent: Makes the agent; None for random actions.
        settings: The other arguments.
        progress: See `bench`.
    """
    began = perf_counter()
    probed = probe(env)
    agent = "random" if make_agent is None else make_agent(probed.spaces)
    seconds, batched = agent_seconds(agent, probed)
    probed = replace(probed, costs=replace(probed.costs, agent=seconds, batched=batched))
    problem = _problem(env, env_code, agent, settings, probed)
    name = "random actions" if make_agent is None else _named(agent)
    run = _Run(problem, ways_of(problem), settings, began, name, probed)
    shown = display(progress, math.ceil(settings.seconds), "seconds", note=lambda: run.doing, doing="measuring")
    try:
        with quiet(), shown as run.shown, run.started() as ways:
            run.measure(ways)
            run.show(complete=True)
    except KeyboardInterrupt as interrupt:
        raise BenchInterruptedError(run.report()) from interrupt
    return run.report()


def _named(agent: Any) -> str:
    return str(agent_facts(as_agent(agent))["name"])


def _problem(env: EnvUpdate, env_code: str, agent: Any, settings: BenchSettings, probed: Probed) -> Problem:
    costs = probed.costs
    n_envs = costs.n_envs(_MOST_ENVS, settings.seconds) if settings.n_envs is None else settings.n_envs
    n_workers = usable_cores() if settings.n_workers is None else settings.n_workers
    longest = costs.longest(n_envs, n_workers, settings.seconds)
    if settings.max_episode_length is not None:
        longest = min(longest, settings.max_episode_length)
    return Problem(
        env, env_code, agent,
        n_workers=n_workers,
        n_envs=n_envs,
        max_episode_length=longest,
        cuts=longest < (_USUAL_STEPS if probed.time_limit is None else probed.time_limit),
        length=min(longest, probed.length),
        reset_seconds=costs.reset,
        step_timeout=settings.step_timeout,
        construction_timeout=max(_CONSTRUCTION, settings.step_timeout, 4 * n_envs * costs.construction),
    )  # fmt: skip


@dataclass
class _Run:
    """Measurements that are under way."""

    problem: Problem
    ways: Sequence[Way]
    settings: BenchSettings
    began: float
    agent_name: str
    probed: Probed
    doing: str = "starting"
    shown: Display | None = None
    timesteps: int = 0
    tallies: dict[Way, list[Tally]] = field(default_factory=dict)
    obstacles: dict[Way, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return perf_counter() - self.began

    @property
    def left(self) -> float:
        return self.settings.seconds - self.seconds

    def show(self, *, complete: bool = False) -> None:
        if self.shown is not None:
            self.shown.update(lambda: (self.timesteps, int(self.seconds)), complete=complete)

    @contextlib.contextmanager
    def started(self) -> Iterator[list[Way]]:
        """Yield the ways that can run, all of them started."""
        with contextlib.ExitStack() as stack:
            ways = []
            for way in self.ways:
                self.doing = f"starting {way.name}"
                self.show()
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
        return self.probed.costs.first_timesteps(way.n_in_turn, made=made)

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
        tally = way.run(Round(seconds, most, patience, self.show))
        self.timesteps += tally.timesteps
        self.tallies.setdefault(way, []).append(tally)

    def measure(self, ways: list[Way]) -> None:
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
        making = way.n_in_turn * self.probed.costs.construction if len(tallies) == 1 else 0.0
        return max(self._first_timesteps(way, made=True), tallies[-1].seconds - making)

    def _measured(self, way: Way) -> WayMeasured:
        facts = way.name, way.call, way.in_parent, way.n_processes
        if way in self.obstacles or way not in self.tallies:
            return WayMeasured(*facts, (), self.obstacles.get(way, "not measured"))
        warm_up, *tallies = self.tallies[way]
        uncertain = not tallies or not all(tally.certain for tally in tallies)
        return WayMeasured(*facts, tuple(tally.rate for tally in tallies or [warm_up]), uncertain=uncertain)

    def report(self) -> BenchReport:
        """Return what was measured."""
        return BenchReport(
            environment=describe(self.problem.env), agent=self.agent_name, n_cores=usable_cores(),
            ways=tuple(map(self._measured, self.ways)), seconds=self.seconds,
            cut_after=self.problem.max_episode_length if self.problem.cuts else None,
        )  # fmt: skip


def _in_a_line(error: Exception) -> str:
    """Return the message of an error, without what a sampler's next call does."""
    text = error.worded(None) if isinstance(error, WorkerError) else str(error)
    line = text.strip().partition("\n")[0]
    return line if line and isinstance(error, WorkerError | UsageError) else summary_of(error)
