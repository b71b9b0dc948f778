"""Measure the ways to step an environment with an agent, and recommend the fastest: `streamsampler bench`.

The ways run in interleaved rounds, so that a busy machine slows all of them alike. The guides are
`streamsampler/docs/checking.md` and `streamsampler/docs/which-way.md`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from gymnasium import Space

from streamsampler.agents.base import as_agent
from streamsampler.checking.benchmark_report import BenchReport, WayMeasured
from streamsampler.checking.costs import Costs, processes_for
from streamsampler.checking.hints import hint_of_numpy, hint_of_rows
from streamsampler.checking.in_flight import enough_in_flight, hint_of_in_flight, numbers_in_flight, why_in_flight
from streamsampler.checking.probes import BenchEnvError, Probed, probe, with_agent
from streamsampler.checking.round_tally import RoundTally
from streamsampler.checking.way import Problem, Round, Way, env_code
from streamsampler.checking.ways import ways_in_workers, ways_of
from streamsampler.core.errors import UsageError, WorkerError, positive, positive_seconds
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.core.words import count
from streamsampler.environments.updates import EnvUpdate, as_env_update, describe
from streamsampler.evaluation.agents import agent_facts, evaluated_agent
from streamsampler.workers.explain import summary_of
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.logs import quiet

_MOST_ENVS = 8
_ROUNDS = 5
_SHORTEST, _LONGEST = 0.1, 0.5
"""Shortest and longest round of a way, in seconds."""
_WARM_UP = 0.05
_USUAL_STEPS, _ENDLESS = 1_000, 1 << 40
_PATIENCE, _CONSTRUCTION = 5.0, 10.0
"""Seconds for a way's first timesteps, and for making its environments; more if both are slow."""

MakeAgent = Callable[[tuple[Space[Any], Space[Any]]], Any]
"""Makes the agent from the observation space and the action space."""


@dataclass(frozen=True)
class BenchSettings:
    """The arguments of `bench` besides environment and agent; see there.

    Raises:
        UsageError: A value is out of range.
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


class BenchInterruptedError(KeyboardInterrupt):
    """Ctrl-C during `bench`: a `KeyboardInterrupt` with the measurements so far.

    Attributes:
        found: The `BenchReport` of these measurements.
    """

    def __init__(self, found: BenchReport) -> None:
        super().__init__("interrupted")
        self.found = found


@suggesting()
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
    """Measure the timesteps per second of each way to step an environment, and recommend a way.

    If environment or agent are asynchronous, workers are measured with several numbers of trajectories in flight.

    First, an environment is made and stepped in this process, and the three ways with the agent in this process use it
    as well. Environments that hang or end their process are for `streamsampler.check`.

    Args:
        env: The environment, as samplers take it: an id, a function that makes an environment, …
        agent: The agent, as samplers take it. None for random actions.
        env_kwargs: Keyword arguments for making the environment.
        seconds: Seconds for the whole measurement, about. A way with later first timesteps is skipped.
        n_workers: Number of processes; None for the usable cores, or more if environments wait.
        n_envs: Environments per process, in ways with several; None for 8, or fewer if making, resetting or stepping
            them takes long. With asynchronous environments or agents, trajectories in flight; None for several
            numbers, up to as many as keep a process busy.
        max_episode_length: Timesteps after which trajectories are truncated; fewer for slow environments. Native
            vector environments truncate their own trajectories.
        step_timeout: Longest time of a reset or a timestep in a worker, in seconds.
        progress: See `streamsampler.Sampler.obtain_samples`; counts seconds.

    Raises:
        UsageError: An argument is out of range.
        BenchEnvError: Making, resetting or stepping the environment fails.
        TypeError: `env` is no environment.
        BenchInterruptedError: Ctrl-C; has the report so far. (A KeyboardInterrupt.)
    """
    settings = BenchSettings(seconds, n_workers, n_envs, max_episode_length, step_timeout)
    update = as_env_update(env, env_kwargs=env_kwargs)

    def make_agent(spaces: tuple[Space[Any], Space[Any]]) -> Any:
        return evaluated_agent(agent, None, None, lambda: spaces[1])

    code = env_code(env, env_kwargs)
    return bench_update(update, code, None if agent is None else make_agent, settings, progress)


def bench_update(
    env: EnvUpdate,
    code: str,
    make_agent: MakeAgent | None,
    settings: BenchSettings,
    progress: ProgressArgument = False,
) -> BenchReport:
    """Measure as `bench` does, with an agent made from the environment's spaces."""
    began = perf_counter()
    probed = probe(env)
    agent = "random" if make_agent is None else make_agent(probed.spaces)
    if probed.waits and make_agent is not None:
        with contextlib.suppress(BenchEnvError):  # each way reports the agent's exceptions itself
            probed = probe(env, agent)  # random actions may avoid all waits
    run = Measurement(env, code, agent, settings, with_agent(agent, probed), began)
    target = math.ceil(settings.seconds)
    with display(progress, target, "seconds", note=lambda: run.doing, doing="measuring") as shown:

        def show(*, complete: bool = False) -> None:
            shown.update(lambda: (run.timesteps, int(run.seconds)), complete=complete)

        run.measure(show)
        show(complete=True)
    return run.report()


def bench_workers(
    env: EnvUpdate, code: str, agent: Any, settings: BenchSettings, probed: Probed, watch: Callable[[int], Any]
) -> BenchReport:
    """Measure the ways with agent and environments in worker processes, which may hang or die.

    Args:
        env: The environment.
        code: See `env_code`.
        agent: The agent, or "random".
        settings: See `bench`.
        probed: Measured costs of environment and agent.
        watch: Called now and then with the number of timesteps so far.

    Raises:
        BenchInterruptedError: Ctrl-C; has the measurements so far.
    """
    run = Measurement(env, code, agent, settings, probed, perf_counter(), in_workers=True)
    run.measure(lambda: watch(run.timesteps))
    return run.report()


class Measurement:
    """A running measurement.

    Args:
        env: The environment.
        code: See `env_code`.
        agent: The agent, or "random".
        settings: The arguments of `bench`.
        probed: Measured costs of environment and agent.
        began: Start of the measurement, by `time.perf_counter`.
        in_workers: Whether all ways run in workers, whose trajectories can be ended at any time.

    Attributes:
        doing: Current activity, for the progress display.
        timesteps: Number of timesteps so far.
    """

    def __init__(
        self, env: EnvUpdate, code: str, agent: Any, settings: BenchSettings, probed: Probed, began: float,
        *, in_workers: bool = False,
    ) -> None:  # fmt: skip
        self.doing, self.timesteps = "starting", 0
        self._settings, self._costs, self._began = settings, probed.costs, began
        self._agent_name = "random actions" if agent == "random" else str(agent_facts(as_agent(agent))["name"])
        self._problem, self._why = _problem_of(env, code, agent, settings, probed, in_workers=in_workers)
        self._ways: Sequence[Way] = (ways_in_workers if in_workers else ways_of)(self._problem)
        self._made: dict[Way, Any] = {}
        self._tallies: dict[Way, list[RoundTally]] = {}
        self._obstacles: dict[Way, str] = {}
        self._watch: Callable[[], Any] = lambda: None

    @property
    def seconds(self) -> float:
        return perf_counter() - self._began

    @property
    def _left(self) -> float:
        return max(0.0, self._settings.seconds - self.seconds)

    def measure(self, watch: Callable[[], Any]) -> None:
        """Start all ways, and measure them in turn.

        Args:
            watch: Called now and then; its exceptions end the measurement.

        Raises:
            BenchInterruptedError: Ctrl-C; has the measurements so far.
        """
        self._watch = watch
        try:
            with quiet(), contextlib.ExitStack() as stack:
                for way in self._ways:
                    stack.callback(self._close, way)
                    self._start(way)
                self._measure_in_turn(list(self._made))
                self.doing = "ending"
        except KeyboardInterrupt as interrupt:
            raise BenchInterruptedError(self.report()) from interrupt

    def _start(self, way: Way) -> None:
        self.doing = f"starting {way.name}"
        self._watch()
        first_timesteps = self._first_timesteps(way, made=False)
        if way.lacking:
            self._obstacles[way] = way.lacking
        elif first_timesteps > max(_LONGEST, self._left):
            self._obstacles[way] = (
                f"skipped: its first timesteps would take {first_timesteps:.2g} s, and {self._left:.1f} s are left"
            )
        else:
            with self._noted(way):
                self._made[way] = way.make()
                self._round(way, _WARM_UP, _WARM_UP)

    def _close(self, way: Way) -> None:
        made = self._made.pop(way, None)
        if made is not None:
            with contextlib.suppress(Exception):  # a failure to close says nothing about speed
                made.close()

    @contextlib.contextmanager
    def _noted(self, way: Way) -> Iterator[None]:
        """Record a way's failure as its obstacle, and end the way."""
        try:
            yield
        except Exception as error:
            self._obstacles[way] = _in_a_line(error)
            self._close(way)

    def _round(self, way: Way, seconds: float, most: float) -> None:
        patience = max(_PATIENCE, 3 * self._first_timesteps(way, made=False))
        tally = RoundTally(way.n_envs, self._problem.length, way.n_in_turn * self._problem.reset_seconds)
        way.run(self._made[way], Round(tally, seconds, most, patience, self._watch))
        self.timesteps += tally.timesteps
        self._tallies.setdefault(way, []).append(tally)

    def _measure_in_turn(self, ways: list[Way]) -> None:
        """Measure the ways in turn until the time is over: each at least once, unless a round takes too long."""
        each = min(_LONGEST, max(_SHORTEST, self._left / (_ROUNDS * max(1, len(ways)))))
        while ways:
            most = max(_LONGEST, self._left / len(ways))
            for way in list(ways):
                self.doing = way.name
                if self._next_round(way) > max(_LONGEST, self._left):
                    ways.remove(way)  # its last round, or its warm-up, must suffice
                    continue
                with self._noted(way):
                    self._round(way, each, most)
                if way in self._obstacles:
                    ways.remove(way)
            if sum(max(each, self._tallies[way][-1].seconds) for way in ways) > self._left:
                return
            ways.reverse()  # so that no way always follows the same other way

    def _next_round(self, way: Way) -> float:
        """Return the shortest possible duration of a round: it ends after each environment's first step."""
        tallies = self._tallies[way]
        making = way.n_in_turn * way.in_flight * self._costs.construction if len(tallies) == 1 else 0.0
        return max(self._first_timesteps(way, made=True), tallies[-1].seconds - making)

    def _first_timesteps(self, way: Way, *, made: bool) -> float:
        """Return the seconds until all environments of a process have their first step; see `Costs`."""
        others = 0.0 if made else (way.in_flight - 1) * self._costs.construction  # made in turn, and stepped together
        return others + self._costs.first_timesteps(way.n_in_turn, made=made)

    def report(self) -> BenchReport:
        problem = self._problem
        found = BenchReport(
            environment=describe(problem.env), agent=self._agent_name, n_cores=usable_cores(),
            n_workers=problem.n_workers, why_workers=self._why, seconds=self.seconds,
            ways=tuple(map(self._measured, self._ways)),
            cut_after=problem.max_episode_length if problem.cuts else None,
            why_in_flight=why_in_flight(self._costs) if problem.in_flight else "",
        )  # fmt: skip
        chosen = found.recommendation
        if chosen is None:
            return found
        if problem.in_flight:
            most = max(way.in_flight or 1 for way in found.ways if way.rates)
            return replace(found, hints=tuple(filter(None, [hint_of_in_flight(self._costs, most)])))
        in_rows = chosen.n_processes > 0 and "VecWorker" in chosen.call and not problem.is_vector
        hints = hint_of_numpy(problem.agent), hint_of_rows(self._costs, problem.n_envs) if in_rows else ""
        return replace(found, hints=tuple(filter(None, hints)))

    def _measured(self, way: Way) -> WayMeasured:
        found = WayMeasured(
            way.name, way.call, way.in_parent, way.n_processes, options=way.options, steps_only=way.steps_only,
            in_flight=way.in_flight if self._problem.in_flight else None,
        )  # fmt: skip
        if way in self._obstacles or way not in self._tallies:
            return replace(found, obstacle=self._obstacles.get(way, "not measured"))
        warm_up, *tallies = self._tallies[way]
        uncertain = not tallies or not all(tally.certain for tally in tallies)
        return replace(found, rates=tuple(tally.rate for tally in tallies or [warm_up]), uncertain=uncertain)


def _problem_of(
    env: EnvUpdate, code: str, agent: Any, settings: BenchSettings, probed: Probed, *, in_workers: bool
) -> tuple[Problem, str]:
    """Return the problem, and the reason for its number of processes; see `Measurement` for the arguments."""
    costs = probed.costs
    n_envs = settings.n_envs or probed.n_slots or costs.n_envs(_MOST_ENVS, settings.seconds)
    n_workers, why = processes_for(costs.cpu_share, costs.free_share, usable_cores())
    in_flight = _in_flight(costs, settings) if probed.waits else ()
    if in_flight:
        n_workers, why = _workers_in_flight(costs, in_flight[-1])
    if settings.n_workers is not None:
        n_workers, why = settings.n_workers, "as many as asked for"
    longest = _ENDLESS if in_workers or in_flight else costs.longest(n_envs, n_workers, settings.seconds)
    longest = min(longest, settings.max_episode_length or longest)
    problem = Problem(
        env, code, agent,
        n_workers=n_workers,
        n_envs=n_envs,
        max_episode_length=longest,
        cuts=longest < (_USUAL_STEPS if probed.time_limit is None else probed.time_limit),
        length=min(longest, probed.length),
        reset_seconds=costs.reset,
        step_timeout=settings.step_timeout,
        construction_timeout=max(_CONSTRUCTION, settings.step_timeout, 4 * n_envs * costs.construction),
        is_vector=probed.n_slots is not None,
        in_flight=in_flight,
    )  # fmt: skip
    return problem, why


def _in_flight(costs: Costs, settings: BenchSettings) -> tuple[int, ...]:
    """Return the numbers in flight to measure, in ascending order."""
    return numbers_in_flight(costs) if settings.n_envs is None else tuple(sorted({1, settings.n_envs}))


def _workers_in_flight(costs: Costs, most: int) -> tuple[int, str]:
    """Return the number of workers for the largest number in flight, and the reason: several if one alone is busy."""
    if most < enough_in_flight(costs):
        return 1, "a worker has time for more in flight"
    return usable_cores(), f"one is busy with {most:,} in flight, and there are {count(usable_cores(), 'core')} to use"


def _in_a_line(error: Exception) -> str:
    """Return an error's message, without the sentence on the sampler's next call."""
    text = error.worded(None) if isinstance(error, WorkerError) else str(error)
    line = text.strip().partition("\n")[0]
    return line if line and isinstance(error, WorkerError | UsageError) else summary_of(error)
