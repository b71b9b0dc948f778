"""Measure the ways to step an environment with an agent, and recommend the fastest: `streamsampler bench`.

Each way runs in rounds, interleaved with the others, so that a busy machine slows all of them alike. The guide is
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
from streamsampler.checking.benchmark_report import BenchReport, RoundTally, WayMeasured
from streamsampler.checking.costs import BenchEnvError, Costs, Probed, probe, processes_for, with_agent
from streamsampler.checking.hints import hint_of_numpy, hint_of_rows
from streamsampler.checking.in_flight import enough_in_flight, hint_of_in_flight, numbers_in_flight, why_in_flight
from streamsampler.checking.ways import Problem, Round, Way, env_code, ways_in_workers, ways_of
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
"""Seconds of a round of one way, at least and at most."""
_WARM_UP = 0.05
_USUAL_STEPS, _ENDLESS = 1_000, 1 << 40
_PATIENCE, _CONSTRUCTION = 5.0, 10.0
"""Seconds that a way has for its first timesteps, and for its environments to be made; more where both are slow."""

MakeAgent = Callable[[tuple[Space[Any], Space[Any]]], Any]
"""Makes the agent from the observation space and the action space."""


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


class BenchInterruptedError(KeyboardInterrupt):
    """Ctrl-C during `bench`: a `KeyboardInterrupt` that has what was measured.

    Attributes:
        found: The `BenchReport` of what was measured before.
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
    """Measure how many timesteps per second each way to step an environment takes, and recommend one.

    Where environment or agent are asynchronous, workers are measured with several numbers in flight.

    An environment is made and stepped in this process first, and where the agent stays in this process the
    environments of three ways do so, too: one that hangs or ends its process is for `streamsampler.check`.

    Args:
        env: Whatever samplers take: an id, a function that makes an environment, …
        agent: Whatever samplers take. None for random actions.
        env_kwargs: Keyword arguments for making the environment.
        seconds: How long all of it takes, about. A way is given up whose first timesteps would come later.
        n_workers: How many processes; None for the cores there are to use, or more where environments wait.
        n_envs: How many environments a process has, where it has several; None for 8, or fewer where making,
            resetting or stepping them takes long. Where something waits, how many trajectories are in flight; None
            for several numbers, up to what keeps a process busy.
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
    """Do what `bench` does, with an agent that is made when the environment's spaces are known.

    Args:
        env: The environment.
        code: See `env_code`.
        make_agent: Makes the agent; None for random actions.
        settings: The other arguments.
        progress: See `bench`.
    """
    began = perf_counter()
    probed = probe(env)
    agent = "random" if make_agent is None else make_agent(probed.spaces)
    if probed.waits and make_agent is not None:
        with contextlib.suppress(BenchEnvError):  # what the agent raises is found by all the ways
            probed = probe(env, agent)  # with random actions it may hardly wait
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
    """Measure the ways in which agent and environments run in worker processes, where they may hang, or end them.

    Args:
        env: The environment.
        code: See `env_code`.
        agent: The agent, or "random".
        settings: See `bench`.
        probed: What is known of environment and agent.
        watch: Called now and then with the timesteps so far.

    Raises:
        BenchInterruptedError: Ctrl-C; has what was measured.
    """
    run = Measurement(env, code, agent, settings, probed, perf_counter(), in_workers=True)
    run.measure(lambda: watch(run.timesteps))
    return run.report()


class Measurement:
    """Measurements that are under way.

    Args:
        env: The environment.
        code: See `env_code`.
        agent: The agent, or "random".
        settings: The arguments of `bench`.
        probed: What is known of environment and agent.
        began: When it began, as `time.perf_counter` says it.
        in_workers: Whether all runs in workers, whose trajectories can be ended at any time.

    Attributes:
        doing: What is being done.
        timesteps: How many there were.
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
        """How long it has taken so far."""
        return perf_counter() - self._began

    @property
    def _left(self) -> float:
        return max(0.0, self._settings.seconds - self.seconds)

    def measure(self, watch: Callable[[], Any]) -> None:
        """Start all ways, and measure them in turn.

        Args:
            watch: Called now and then; what it raises ends all.

        Raises:
            BenchInterruptedError: Ctrl-C; has what was measured.
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
                f"given up: its first timesteps take about {first_timesteps:.2g} s, and {self._left:.1f} s were left"
            )
        else:
            with self._noted(way):
                self._made[way] = way.make()
                self._round(way, _WARM_UP, _WARM_UP)

    def _close(self, way: Way) -> None:
        made = self._made.pop(way, None)
        if made is not None:
            with contextlib.suppress(Exception):  # an environment that cannot be closed: how fast it is was found
                made.close()

    @contextlib.contextmanager
    def _noted(self, way: Way) -> Iterator[None]:
        """Note why a way cannot run, and end it."""
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
        """Measure the ways in turn, until the time is over; each at least once, unless that takes long."""
        each = min(_LONGEST, max(_SHORTEST, self._left / (_ROUNDS * max(1, len(ways)))))
        while ways:
            most = max(_LONGEST, self._left / len(ways))
            for way in list(ways):
                self.doing = way.name
                if self._next_round(way) > max(_LONGEST, self._left):
                    ways.remove(way)  # its last round, or its warm-up, has to do
                    continue
                with self._noted(way):
                    self._round(way, each, most)
                if way in self._obstacles:
                    ways.remove(way)
            if sum(max(each, self._tallies[way][-1].seconds) for way in ways) > self._left:
                return
            ways.reverse()  # none always comes behind the same other one

    def _next_round(self, way: Way) -> float:
        """Return how long a round takes at least: nothing ends it before each environment was stepped."""
        tallies = self._tallies[way]
        making = way.n_in_turn * way.in_flight * self._costs.construction if len(tallies) == 1 else 0.0
        return max(self._first_timesteps(way, made=True), tallies[-1].seconds - making)

    def _first_timesteps(self, way: Way, *, made: bool) -> float:
        """Return the seconds until each environment of a process was reset and stepped; see `Costs`."""
        others = 0.0 if made else (way.in_flight - 1) * self._costs.construction  # made in turn, and stepped together
        return others + self._costs.first_timesteps(way.n_in_turn, made=made)

    def report(self) -> BenchReport:
        """Return what was measured."""
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
    """Return what is measured, and why on so many processes; see `Measurement` for the arguments."""
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
    """Return the numbers in flight that are measured, the least first."""
    return numbers_in_flight(costs) if settings.n_envs is None else tuple(sorted({1, settings.n_envs}))


def _workers_in_flight(costs: Costs, most: int) -> tuple[int, str]:
    """Return how many workers are measured with the most in flight, and why: several, where one has no time left."""
    if most < enough_in_flight(costs):
        return 1, "it has time for more in flight"
    return usable_cores(), f"one is busy with {most:,} in flight, and there are {count(usable_cores(), 'core')} to use"


def _in_a_line(error: Exception) -> str:
    """Return the message of an error, without what a sampler's next call does."""
    text = error.worded(None) if isinstance(error, WorkerError) else str(error)
    line = text.strip().partition("\n")[0]
    return line if line and isinstance(error, WorkerError | UsageError) else summary_of(error)
