"""Check an environment and an agent: is all that samplers promise true of them, and how are they run fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter
from typing import Any

from gymnasium import Space

from streamsampler.agents.base import as_agent
from streamsampler.benchmarking.bench import ways_in_workers
from streamsampler.benchmarking.costs import Costs as BenchCosts
from streamsampler.benchmarking.costs import Probed
from streamsampler.benchmarking.measuring import BenchSettings, Measurement, problem_of
from streamsampler.benchmarking.report import BenchReport
from streamsampler.benchmarking.way import env_code
from streamsampler.checking.agent import InspectAgent
from streamsampler.checking.environment import Inspected, InspectEnvironment
from streamsampler.checking.findings import Finding, finding_of_error, not_checked
from streamsampler.checking.report import CheckReport
from streamsampler.checking.seeds import (
    RunGymnasiumChecker,
    RunTwice,
    Traces,
    finding_of_one_process,
    finding_of_two_processes,
)
from streamsampler.checking.several_agents import PlayTogether, RunPettingZooTests
from streamsampler.checking.speed import Costs, MeasureCosts, Speed, finding_of_costs, finding_of_obstacles
from streamsampler.checking.worker import Limits, Task, TimeIsUpError, run_task
from streamsampler.data.words import duration
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.environments.updates import EnvLike, EnvUpdate, as_env_update, describe
from streamsampler.errors import SerializationError, UsageError, WorkerError, positive, positive_seconds
from streamsampler.evaluation.agents import EvaluatedAgent, agent_facts, evaluated_agent
from streamsampler.protocol.messages import Phase
from streamsampler.samplers.payloads import packages_of, versions_of
from streamsampler.samplers.progress import Display, ProgressArgument, display
from streamsampler.seeding import check_seed
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.purity import TIMESTEPS

# ----------------------------------------------------------------------
# Run the checks, one after the other.


Spaces = tuple[Space[Any], Space[Any]]
MakeAgent = Callable[[Spaces], Any]
"""Makes the agent from observation and action space; an environment is made for it in a process of its own before."""

STAGES = "environment", "seeds", "another process", "Gymnasium's checker", "agent", "times", "workers"
_TRACED = 0, 1, 2
_FEWEST_STEPS = 20
_LEAST = 1e-3  # seconds: an argument that is valid where no time is left


@dataclass(frozen=True)
class Settings:
    """The arguments of a check; see `check`.

    Raises:
        UsageError: One cannot work.
    """

    seed: int = 0
    max_episode_length: int | None = None
    ends_within: int = 10_000
    time_limit: float = 60.0
    step_timeout: float = 10.0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        positive("ends_within", self.ends_within)
        positive_seconds("time_limit", self.time_limit)
        positive_seconds("step_timeout", self.step_timeout)
        if self.max_episode_length is not None:
            positive("max_episode_length", self.max_episode_length)


@dataclass
class CheckRun:
    """A check that is under way.

    Attributes:
        env: The environment.
        code: What stands for it in a call, as Python code.
        make_agent: See `check_update`.
        settings: The arguments.
        shown: Where progress is shown.
        doing: What is being checked.
        findings: What was found.
    """

    env: EnvUpdate
    code: str
    make_agent: MakeAgent | None
    settings: Settings
    shown: Display | None = None
    doing: str = STAGES[0]
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        deadline = monotonic() + settings.time_limit
        self._limits = Limits(deadline, settings.step_timeout, settings.seed, settings.max_episode_length)
        self._agent: Any = "random"
        self._agent_name = "random actions"
        self._inspected: Inspected | None = None
        self._costs: Costs | None = None
        self._workers: BenchReport | None = None
        self._timesteps = 0
        self._latest = 0

    def all(self) -> None:
        """Run all checks, one after the other."""
        for stage, run in zip(STAGES, self._stages(), strict=True):
            self.doing = stage
            self.show(0)
            run()
            self._timesteps += self._latest
            self._latest = 0

    def _stages(self) -> tuple[Callable[[], None], ...]:
        return (
            self._environment, self._seeds, self._another_process, self._gymnasium, self._agent_alone, self._times,
            self._fastest,
        )  # fmt: skip

    def show(self, timesteps: int, *, complete: bool = False) -> None:
        """Show progress.

        Args:
            timesteps: Those of the check in hand.
            complete: Whether all is done.
        """
        self._latest = max(self._latest, timesteps)
        if self.shown is not None:
            done = len(STAGES) if complete else STAGES.index(self.doing)
            self.shown.update(lambda: (self._timesteps + self._latest, done), complete=complete)

    def report(self) -> CheckReport:
        """Return what was found so far."""
        speed = None
        if self._inspected is not None and (self._costs is not None or self._workers is not None):
            speed = Speed(self._inspected.construction_seconds, self._costs)
        return CheckReport(
            environment=describe(self.env) if self._inspected is None else self._inspected.name,
            agent=self._agent_name,
            findings=tuple(self.findings),
            speed=speed,
            workers=self._workers,
            n_cores=usable_cores(),
            seed=self.settings.seed,
            versions=versions_of(packages_of(self.env)),
        )

    # ------------------------------------------------------------------ stages

    def _run(self, name: str, task: Task, agent: Any = None, start_method: StartMethod | None = None) -> Any:
        """Return what a task returns; None where it failed, which is a finding of that name."""
        agent = self._agent if agent is None else agent
        try:
            return run_task(task, agent, self.env, self._limits, self.show, start_method)
        except TimeIsUpError:
            self._skip(name, "the time limit was reached", "Check with a longer time limit")
        except WorkerError as error:
            self.findings.append(finding_of_error(name, error, self.settings.step_timeout))
        return None

    def _skip(self, name: str, why: str, advice: str = "") -> None:
        self.findings.append(not_checked(name, why, advice))

    def _obstacle(self, *names: str) -> str:
        """Return why what samplers do with the environment cannot be checked; empty where it can.

        Args:
            names: Further findings that are in the way if they are failures.
        """
        if self._inspected is None or self._failed("made", "runs"):
            return "the environment does not run"
        if self._inspected.refused:
            return f"samplers refuse what the environment returns: see {self._inspected.refused}"
        return "the agent does not run" if self._failed(*names) else ""

    def _failed(self, *names: str) -> bool:
        return any(finding.name in names and finding.verdict == "failure" for finding in self.findings)

    def _share(self, most: float, part: float) -> float:
        """Return the seconds that something may take: at most so many, and at most a part of the time limit."""
        return min(most, part * self.settings.time_limit, self._limits.seconds_left)

    def _environment(self) -> None:
        settings = self.settings
        task = InspectEnvironment(self._share(5.0, 0.2), settings.ends_within, settings.max_episode_length)
        try:
            self._inspected = run_task(task, "random", self.env, self._limits, self.show)
        except TimeIsUpError:
            within = duration(settings.time_limit)
            self.findings.append(
                Finding("made", "failure", f"the environment was not made within {within}",
                        "Look where making it waits; where it only takes long, check with a longer time limit")
            )  # fmt: skip
        except SerializationError as error:
            self.findings.append(
                Finding("made", "failure", str(error), "Pass a function that makes the environment, or its id")
            )
        except WorkerError as error:
            made = error.phase not in (Phase.ENV_CONSTRUCTION, Phase.AGENT_CONSTRUCTION)
            if made:
                self.findings.append(Finding("made", "pass", "in a process of its own"))
            name = "close" if error.phase == Phase.CLOSE else "runs" if made else "made"
            self.findings.append(finding_of_error(name, error, settings.step_timeout))
        else:
            assert self._inspected is not None
            seconds = duration(self._inspected.construction_seconds)
            self.findings.append(Finding("made", "pass", f"in {seconds}, in a process of its own"))
            self.findings += self._inspected.findings
        if self.make_agent is not None and self._inspected is not None:
            self._agent = self.make_agent(self._inspected.spaces)
            self._agent_name = str(agent_facts(self._agent)["name"])

    @property
    def _traced_timesteps(self) -> int:
        assert self._inspected is not None
        affordable = self._share(2.0, 0.1) / 3 / max(self._inspected.step_seconds, 1e-9)
        return int(min(TIMESTEPS, max(_FEWEST_STEPS, affordable)))

    def _seeds(self) -> None:
        self._traced: Any = None
        if obstacle := self._obstacle():
            self._skip("seed", obstacle)
            return
        task = RunTwice(self._share(4.0, 0.15), self._traced_timesteps, _TRACED)
        self._traced = self._run("seed", task)
        if self._traced is not None:
            self.findings.append(finding_of_one_process(self._traced))

    def _another_process(self) -> None:
        if self._traced is None or not self._traced.traces:
            self._skip("processes", self._obstacle() or "see seed")
            return
        task = Traces(self._share(4.0, 0.15), self._traced_timesteps, _TRACED[::-1])
        # Not by the fork server, all of whose children have one order of sets.
        there = self._run("processes", task, start_method="spawn")
        if there is not None:
            self.findings.append(finding_of_two_processes(self._traced.traces, there))

    def _gymnasium(self) -> None:
        if self._inspected is None or self._failed("runs"):
            self._skip("Gymnasium", "the environment does not run")
            return
        if self._inspected.n_slots is not None:
            self._skip("Gymnasium", "its checker is not for vector environments")
            return
        if self._inspected.several:
            self.findings += self._run("PettingZoo", RunPettingZooTests(), "random") or []
            return
        self.findings += self._run("Gymnasium", RunGymnasiumChecker(), "random") or []

    def _agent_alone(self) -> None:
        if self.make_agent is None:
            return
        if obstacle := self._obstacle():
            self._skip("agent", obstacle)
            return
        several = self._inspected is not None and self._inspected.several
        task = (PlayTogether if several else InspectAgent)(self._share(3.0, 0.1), 1_000)
        self.findings += self._run("agent", task) or []

    # ------------------------------------------------------------------ speed

    def _measuring_limits(self, seconds: float, inspected: Inspected) -> Limits:
        """Return limits under which a trajectory takes at most so long."""
        affordable = max(_FEWEST_STEPS, int(seconds / max(inspected.step_seconds, 1e-9)))
        given = self.settings.max_episode_length
        longest = max(inspected.lengths, default=None) if inspected.time_limit is None else inspected.time_limit
        known = [length for length in (given, longest) if length is not None]
        if known and min(known) <= affordable:
            return self._limits
        return replace(self._limits, max_episode_length=min(affordable, *known) if known else affordable)

    def _times(self) -> None:
        inspected = self._inspected
        if inspected is None or (obstacle := self._obstacle("agent", "actions")):
            self._skip("speed", "the environment does not run" if inspected is None else obstacle)
            return
        if inspected.several:
            self._skip("speed", "there is one way to run several agents: samplers, with DefaultWorker")
            return
        if inspected.n_slots is not None:
            self.findings.append(Finding("speed", "pass", "see below"))
            return
        seconds = self._share(2.0, 0.1)
        limits, before = self._measuring_limits(seconds / 4, inspected), self._limits
        lengths = inspected.lengths
        mean = sum(lengths) / len(lengths) if lengths else float(limits.max_episode_length or 1)
        self._limits = limits
        try:
            self._costs = self._run("speed", MeasureCosts(seconds, mean))
        finally:
            self._limits = before
        if self._costs is not None:
            self.findings.append(finding_of_costs(self._costs, asked_together=self._asked_together))

    @property
    def _asked_together(self) -> bool:
        return callable(getattr(as_agent(self._agent), "get_actions", None))

    def _fastest(self) -> None:
        """Measure workers of several kinds."""
        inspected, costs = self._inspected, self._costs
        if inspected is None or self._obstacle("agent", "actions") or (costs is None and inspected.n_slots is None):
            return
        settings = BenchSettings(
            max(_LEAST, self._share(6.0, 0.1)), max_episode_length=self.settings.max_episode_length,
            step_timeout=self.settings.step_timeout,
        )  # fmt: skip
        probed = _probed(inspected, costs, batched=self._asked_together)
        problem, why = problem_of(self.env, self.code, self._agent, settings, probed, in_workers=True)
        run = Measurement(
            problem, ways_in_workers(problem), settings.seconds, perf_counter(), probed.costs, self._agent_name, why,
        )  # fmt: skip
        run.watch = lambda: self.show(run.timesteps)
        try:
            run.all()
        finally:
            self._workers = run.report()
        if self._workers.recommendation is None:
            self.findings.append(finding_of_obstacles(self._workers))


def _probed(inspected: Inspected, costs: Costs | None, *, batched: bool) -> Probed:
    """Return what was seen as `benchmarking` has it."""
    if costs is None:  # a vector environment, whose seconds are those of all that it has
        n_slots = inspected.n_slots or 1
        known = BenchCosts(inspected.construction_seconds / n_slots, 0.0, inspected.step_seconds / n_slots)
    else:
        known = BenchCosts(
            inspected.construction_seconds, costs.milliseconds_per_reset / 1e3, costs.step / 1e3, costs.agent / 1e3,
            batched, costs.cpu_share, costs.free_share,
        )  # fmt: skip
    length = 1.0 if costs is None else costs.mean_length
    return Probed(inspected.spaces, None, known, inspected.time_limit, length, inspected.n_slots)


# ----------------------------------------------------------------------


class CheckInterruptedError(KeyboardInterrupt):
    """Ctrl-C during a check: a `KeyboardInterrupt` that has what was found.

    Attributes:
        found: The `CheckReport` of what was checked before.
    """

    def __init__(self, found: CheckReport) -> None:
        super().__init__("interrupted")
        self.found = found


def check(
    env: EnvLike,
    agent: EvaluatedAgent | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = Settings.seed,
    max_episode_length: int | None = Settings.max_episode_length,
    ends_within: int = Settings.ends_within,
    time_limit: float = Settings.time_limit,
    step_timeout: float = Settings.step_timeout,
    deterministic: bool | None = None,
    vec_normalize: Any = None,
    progress: ProgressArgument = False,
) -> CheckReport:
    """Check an environment, and an agent in it: whether samplers can keep their promises, and how to run them fastest.

    Everything runs in worker processes, so that environments and agents that hang, or end their process, are found
    out. A finding is a pass, a warning or a failure, with what was found and what to do.

    Args:
        env: Whatever samplers take: an id, a function that makes an environment, …; a vector environment, too.
        agent: Whatever samplers take; a model of Stable-Baselines3 or its `.zip` file; another object with `predict`;
            or a torch module. None for random actions.
        env_kwargs: Keyword arguments for making the environment.
        seed: What all is derived from.
        max_episode_length: Timesteps after which samplers are going to truncate trajectories.
        ends_within: Timesteps within which a trajectory is to end.
        time_limit: Seconds for all of it, about. What there is no time for is "not checked".
        step_timeout: Seconds that a reset, an action or a timestep may take.
        deterministic: See `streamsampler.evaluate`.
        vec_normalize: See `streamsampler.evaluate`.
        progress: See `streamsampler.Sampler.obtain_samples`; counts the checks.

    Returns:
        The report, which can be printed.

    Raises:
        UsageError: An argument cannot work (a ValueError).
        TypeError: `env` is no environment.
        CheckInterruptedError: Ctrl-C; has the report so far. (A KeyboardInterrupt.)
    """
    settings = Settings(seed, max_episode_length, ends_within, time_limit, step_timeout)

    def make_agent(spaces: Spaces) -> Any:
        return evaluated_agent(agent, deterministic, vec_normalize, lambda: spaces[1])

    if agent is None and (deterministic is not None or vec_normalize is not None):
        raise UsageError("deterministic and vec_normalize are for an agent that is given with them")
    update, code = as_env_update(env, env_kwargs=env_kwargs), env_code(env, env_kwargs)
    return check_update(update, code, None if agent is None else make_agent, settings, progress)


def check_update(
    env: EnvUpdate, code: str, make_agent: MakeAgent | None, settings: Settings, progress: ProgressArgument = False
) -> CheckReport:
    """Do what `check` does, with an agent that is made when the environment's spaces are known.

    Args:
        env: The environment.
        code: What stands for it in a call, as Python code.
        make_agent: Makes the agent; None for random actions.
        settings: The other arguments.
        progress: See `check`.
    """
    run = CheckRun(env, code, make_agent, settings)
    with ExitStack() as stack:
        run.shown = stack.enter_context(
            display(progress, len(STAGES), "checks", note=lambda: run.doing, doing="checking")
        )
        try:
            run.all()
        except KeyboardInterrupt as interrupt:
            raise CheckInterruptedError(run.report()) from interrupt
        run.show(0, complete=True)
    return run.report()
