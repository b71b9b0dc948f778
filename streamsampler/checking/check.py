"""Check an environment and an agent against the rules of samplers, and find the fastest worker.

`CheckRun` has the state of a check. All user code runs in worker processes, so that it may hang or die.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

from streamsampler.checking.apart import call_apart, close_after_use
from streamsampler.checking.bench import BenchInterruptedError, BenchSettings, MakeAgent, bench_workers
from streamsampler.checking.benchmark_report import BenchReport
from streamsampler.checking.env_facts import Facts, facts_of, waits
from streamsampler.checking.findings import (
    Finding,
    finding_of_ends,
    finding_of_error,
    finding_of_obstacles,
    finding_of_refusal,
    findings_of_anomalies,
    not_checked,
)
from streamsampler.checking.limits import CheckSetup, EnoughError, TimeIsUpError
from streamsampler.checking.other_checkers import run_gymnasium_checker, run_pettingzoo_tests
from streamsampler.checking.probes import Probed, stepped, with_agent
from streamsampler.checking.repeated import IN_FLIGHT, run_elsewhere, run_in_flight, run_twice
from streamsampler.checking.report import CheckReport
from streamsampler.checking.row_probe import probe_rows
from streamsampler.checking.runs import Ran, finding_of_masks, run
from streamsampler.checking.waiting import CANCEL, WAITS, findings_of_waiting
from streamsampler.checking.way import env_code
from streamsampler.core.errors import Phase, SamplerError, SerializationError, UsageError, positive, positive_seconds
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import Display, ProgressArgument, display
from streamsampler.core.seeding import check_seed
from streamsampler.core.words import count, duration
from streamsampler.environments.updates import EnvLike, EnvUpdate, as_env_update, describe
from streamsampler.evaluation.agents import EvaluatedAgent, agent_facts, evaluated_agent
from streamsampler.samplers.provenance import packages_of, versions_of
from streamsampler.workers.factory import usable_cores

STAGES = "environment", "seeds", "another process", "waiting", "Gymnasium's checker", "agent", "workers"
_ACTS, _COMPARED = 1_000, 1_000
"""Most timesteps of the agent's trajectories, and of trajectories that run twice."""
_LEAST = 1e-3  # seconds: a valid argument even when no time is left


@dataclass(frozen=True)
class CheckSettings:
    """The arguments of a check; see `check`.

    Raises:
        UsageError: A value is out of range.
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


def _probed(agent: Any, env: Any) -> Probed:
    """Return the measured costs of environment and agent, in the environment's process."""
    return with_agent(agent, stepped(env, 0.0, agent))


class CheckRun:
    """A running check.

    Args:
        env: The environment.
        code: Its name in a call, as Python code.
        make_agent: See `check_update`.
        settings: The arguments.

    Attributes:
        shown: The progress display, or None.
        doing: The current stage.
        findings: The findings so far.
    """

    def __init__(self, env: EnvUpdate, code: str, make_agent: MakeAgent | None, settings: CheckSettings) -> None:
        self.env, self.code, self.make_agent, self.settings = env, code, make_agent, settings
        self.shown: Display | None = None
        self.doing = STAGES[0]
        self.findings: list[Finding] = []
        deadline = monotonic() + settings.time_limit
        self._limits = CheckSetup(
            deadline, settings.step_timeout, settings.seed, settings.max_episode_length, self.show
        )
        self._compared = self._limits  # of the batch and its repetitions
        self._agent: Any = "random"
        self._agent_name = "random actions"
        self._facts: Facts | None = None
        self._step_seconds = 0.0
        self._refused = ""
        self._batch: Any = None
        self._workers: BenchReport | None = None
        self._timesteps = self._latest = 0

    def all(self) -> None:
        for stage, checks in zip(STAGES, self._stages(), strict=True):
            self.doing = stage
            self.show(0)
            checks()
            self._timesteps += self._latest
            self._latest = 0

    def _stages(self) -> tuple[Callable[[], None], ...]:
        return (
            self._environment, self._seeds, self._other_processes, self._waiting, self._others, self._agent_alone,
            self._fastest,
        )  # fmt: skip

    def show(self, timesteps: int, *, complete: bool = False) -> None:
        """Show progress."""
        self._latest = max(self._latest, timesteps)
        if self.shown is not None:
            done = len(STAGES) if complete else STAGES.index(self.doing)
            self.shown.update(lambda: (self._timesteps + self._latest, done), complete=complete)

    def report(self) -> CheckReport:
        return CheckReport(
            environment=describe(self.env) if self._facts is None else self._facts.name,
            agent=self._agent_name,
            findings=tuple(self.findings),
            workers=self._workers,
            n_cores=usable_cores(),
            seed=self.settings.seed,
            versions=versions_of(packages_of(self.env)),
        )

    @property
    def _known(self) -> Facts:
        assert self._facts is not None
        return self._facts

    def _tried(self, name: str, function: Callable[..., Any], *arguments: Any, doing: str = "") -> Any:
        """Return a function's result, or None if it fails, and record the failure as a finding."""
        try:
            return function(*arguments)
        except TimeIsUpError:
            self._skip(name, "the time limit was reached", "Check with a longer time limit")
        except EnoughError:
            self._skip(name, "no trajectory ended within the time limit", "Check with a longer time limit")
        except SamplerError as error:
            self.findings.append(finding_of_error(name, error, self.settings.step_timeout, doing))
        return None

    def _skip(self, name: str, why: str, advice: str = "") -> None:
        self.findings.append(not_checked(name, why, advice))

    def _obstacle(self, *names: str) -> str:
        """Return why samplers' use of the environment cannot be checked; empty if it can."""
        if self._facts is None or self._failed("made", "runs"):
            return "the environment does not run"
        if self._refused:
            return f"samplers refuse {self._refused}"
        if not self._step_seconds:
            return "see runs"  # which was not checked
        return "the agent does not run" if self._failed(*names) else ""

    def _failed(self, *names: str) -> bool:
        return any(finding.name in names and finding.verdict == "failure" for finding in self.findings)

    def _share(self, most: float, part: float) -> float:
        """Return the seconds for a stage: at most `most`, and at most a part of the time limit."""
        return min(most, part * self.settings.time_limit, self._limits.seconds_left)

    def _environment(self) -> None:
        if not self._make():
            return
        if self._known.is_refused:
            self._refused = "the environment: see wrappers"
            self.findings.append(self._known.wrappers)
            self._skip("runs", self._obstacle())
        else:
            self._run_environment()
        if self.make_agent is not None:
            self._agent = self.make_agent(self._known.spaces)
            self._agent_name = str(agent_facts(self._agent)["name"])

    def _run_environment(self) -> None:
        within, limits = self.settings.ends_within, self._limits
        ran = self._tried("runs", lambda: run("random", self.env, self._known, limits, within, self._share(5.0, 0.2)))
        if ran is not None:
            self.findings += self._findings_of(ran)
        self.findings.append(self._known.wrappers)
        if self._failed("runs"):
            self._skip("close", "the environment does not run")
        elif self._tried("close", call_apart, close_after_use, self.env, limits, doing=str(Phase.CLOSE)):
            self.findings.append(Finding("close", "pass", "the environment closes"))

    def _make(self) -> bool:
        """Make the environment, and record its facts; return whether this succeeded."""
        try:
            made_in, self._facts = call_apart(facts_of, self.env, self._limits)
        except TimeIsUpError:
            within = duration(self.settings.time_limit)
            self.findings.append(
                Finding("made", "failure", f"the environment was not made within {within}",
                        "Find out where its construction waits; if it is only slow, check with a longer time limit")
            )  # fmt: skip
        except SerializationError as error:
            self.findings.append(
                Finding("made", "failure", str(error), "Pass a function that makes the environment, or its id")
            )
        except SamplerError as error:
            self.findings.append(finding_of_error("made", error, self.settings.step_timeout))
        else:
            self.findings.append(Finding("made", "pass", f"in {duration(made_in)}, in a process of its own"))
            return True
        return False

    def _findings_of(self, ran: Ran) -> Iterator[Finding]:
        """Yield the findings of a run with random actions."""
        error, settings = ran.error, self.settings
        if error is not None:
            refusal = finding_of_refusal(error)
            if refusal is None:
                yield finding_of_error("runs", error, settings.step_timeout)
                return
            self._refused = f"the environment's values: see {refusal.name}"
            yield not_checked("runs", f"see {refusal.name}")
            yield refusal
            return
        self._step_seconds = ran.step_seconds
        ended = len(ran.lengths)
        what = f"{count(ended, 'trajectory')} ended, {count(ran.timesteps, 'timestep')} with random actions"
        yield Finding("runs", "pass", what)
        if ran.batches:
            yield from findings_of_anomalies(ran.stats, ran.n_bad_rewards)
        else:
            yield from (not_checked(name, "no trajectory ended") for name in ("observations", "rewards"))
        yield finding_of_ends(
            ran.lengths, ran.n_terminated, ran.endless, settings.ends_within, settings.max_episode_length,
            self._known.time_limit,
        )  # fmt: skip

    def _compared_limits(self) -> CheckSetup:
        """Return limits that leave time to run a trajectory several times."""
        if self._known.n_slots is not None:
            return self._limits
        affordable = max(1, int(self._share(4.0, 0.15) / 6 / self._step_seconds))
        longest = min(_COMPARED, affordable, self.settings.max_episode_length or _COMPARED)
        return replace(self._limits, max_episode_length=longest)

    def _seeds(self) -> None:
        if obstacle := self._obstacle() or ("see wrappers" if self._failed("wrappers") else ""):
            self._skip("seed", obstacle)
            return
        self._compared = self._compared_limits()
        found = self._tried("seed", run_twice, *self._again())
        if found is not None:
            finding, batch = found
            self.findings.append(finding)
            self._batch = None if finding.verdict == "failure" else batch

    def _again(self) -> tuple[Any, ...]:
        return self._agent, self.env, self._known, self._compared, 3 * self._share(4.0, 0.15)

    def _other_processes(self) -> None:
        if self._batch is None:
            self._skip("processes", self._obstacle() or "see seed")
        elif finding := self._tried("processes", run_elsewhere, *self._again(), self._batch):
            self.findings.append(finding)

    def _waiting(self) -> None:
        """Check the waits of an asynchronous environment, and trajectories in flight."""
        if self._facts is None or not waits(self._agent, self._facts):
            return
        runs = self._batch is not None  # with its agent
        if self._known.waits:
            obstacle = self._obstacle()
            if not obstacle and self._known.several:
                obstacle = "with several agents steps are not timed, and not cancelled"
            if obstacle:
                self._skip(WAITS, obstacle)
                self._skip(CANCEL, obstacle)
            elif found := self._apart(WAITS, partial(findings_of_waiting, self._agent if runs else "random")):
                self.findings += found[1]
        if not runs:
            self._skip(IN_FLIGHT, self._obstacle() or "see seed")
        elif finding := self._tried(IN_FLIGHT, run_in_flight, *self._again(), self._batch):
            self.findings.append(finding)

    def _others(self) -> None:
        facts = self._facts
        several = facts is not None and facts.several
        name, test = ("PettingZoo", run_pettingzoo_tests) if several else ("Gymnasium", run_gymnasium_checker)
        if facts is None or self._failed("runs"):
            self._skip(name, "the environment does not run")
        elif facts.n_slots is not None:
            self._skip(name, "its checker is not for vector environments")
        elif several and facts.waits:
            self._skip(name, "its tests are for ordinary methods")
        else:
            self.findings += (self._apart(name, test) or (0.0, []))[1]

    def _apart(self, name: str, function: Callable[[Any], Any]) -> Any:
        """Call a function of many timesteps in a process, without a limit for each step."""
        limits = self._limits
        limits = replace(limits, step_timeout=max(limits.step_timeout, limits.seconds_left))
        return self._tried(name, call_apart, function, self.env, limits)

    def _agent_alone(self) -> None:
        if self.make_agent is None:
            return
        if obstacle := self._obstacle():
            self._skip("agent", obstacle)
            return
        seconds = self._share(3.0, 0.1)
        ran = self._tried("agent", lambda: run(self._agent, self.env, self._known, self._limits, _ACTS, seconds))
        if ran is None:
            return
        self.findings += self._findings_of_agent(ran)
        in_rows = not self._known.several and not waits(self._agent, self._known)
        if in_rows and not self._failed("agent", "actions"):
            found = self._apart("rows", partial(probe_rows, self._agent, self._known.spaces))
            self.findings += [] if found is None else [found[1]]

    def _findings_of_agent(self, ran: Ran) -> Iterator[Finding]:
        error, n = ran.error, ran.timesteps
        refusal = None if error is None else finding_of_refusal(error)
        if error is not None and (refusal is None or refusal.name != "actions"):
            yield finding_of_error("agent", error, self.settings.step_timeout)
            return
        yield Finding("agent", "pass", f"it acted in {count(n, 'timestep')}" if n else "it acts")
        yield Finding("actions", "pass", "all are in the action space") if refusal is None else refusal
        if (masks := finding_of_masks(self._agent, self._known, ran)) is not None:
            yield masks

    def _fastest(self) -> None:
        """Measure several kinds of workers."""
        obstacle = self._obstacle("agent", "actions")
        if not obstacle and self._known.several:
            obstacle = "with several agents they are not compared: try VecWorker if policies are row_independent"
        if obstacle:
            self._skip("workers", obstacle)
            return
        found = self._apart("workers", partial(_probed, self._agent))
        if found is None:
            return
        construction, probed = found
        probed = replace(
            probed,
            time_limit=self._known.time_limit,
            costs=replace(probed.costs, construction=construction / (probed.n_slots or 1)),
        )
        settings, seconds = self.settings, max(_LEAST, self._share(6.0, 0.1))
        asked = BenchSettings(
            seconds, max_episode_length=settings.max_episode_length, step_timeout=settings.step_timeout
        )
        try:
            self._workers = bench_workers(self.env, self.code, self._agent, asked, probed, self.show)
        except BenchInterruptedError as interrupt:
            self._workers = interrupt.found
            raise
        if self._workers.recommendation is None:
            self.findings.append(finding_of_obstacles(self._workers))


class CheckInterruptedError(KeyboardInterrupt):
    """Ctrl-C during a check: a `KeyboardInterrupt` with the findings so far.

    Attributes:
        found: The `CheckReport` of these findings.
    """

    def __init__(self, found: CheckReport) -> None:
        super().__init__("interrupted")
        self.found = found


@suggesting()
def check(
    env: EnvLike,
    agent: EvaluatedAgent | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = CheckSettings.seed,
    max_episode_length: int | None = CheckSettings.max_episode_length,
    ends_within: int = CheckSettings.ends_within,
    time_limit: float = CheckSettings.time_limit,
    step_timeout: float = CheckSettings.step_timeout,
    deterministic: bool | None = None,
    vec_normalize: Any = None,
    progress: ProgressArgument = False,
) -> CheckReport:
    """Check an environment and an agent against the rules of samplers, and find the fastest way to run them.

    Everything runs in worker processes, so that hangs and deaths become findings. A finding is a pass, a warning or a
    failure, with its reason and advice.

    Args:
        env: The environment, as samplers take it: an id, a function that makes an environment, …; also a vector
            environment.
        agent: The agent, as samplers take it; also a model of Stable-Baselines3 or its `.zip` file, another object with
            `predict`, or a torch module. None for random actions.
        env_kwargs: Keyword arguments for making the environment.
        seed: Source of all seeds.
        max_episode_length: Timesteps after which samplers would truncate trajectories.
        ends_within: Timesteps within which a trajectory should end.
        time_limit: Seconds for the whole check, about. Later stages are reported as "not checked".
        step_timeout: Longest time of a reset, an action or a timestep, in seconds.
        deterministic: See `streamsampler.evaluate`.
        vec_normalize: See `streamsampler.evaluate`.
        progress: See `streamsampler.Sampler.obtain_samples`; counts stages.

    Returns:
        The report, for `print`.

    Raises:
        UsageError: An argument is out of range (a ValueError).
        TypeError: `env` is no environment.
        CheckInterruptedError: Ctrl-C; has the report so far. (A KeyboardInterrupt.)
    """
    settings = CheckSettings(seed, max_episode_length, ends_within, time_limit, step_timeout)

    def make_agent(spaces: Any) -> Any:
        return evaluated_agent(agent, deterministic, vec_normalize, lambda: spaces[1])

    if agent is None and (deterministic is not None or vec_normalize is not None):
        raise UsageError("deterministic and vec_normalize need an agent: pass the agent, too")
    update, code = as_env_update(env, env_kwargs=env_kwargs), env_code(env, env_kwargs)
    return check_update(update, code, None if agent is None else make_agent, settings, progress)


def check_update(
    env: EnvUpdate, code: str, make_agent: MakeAgent | None, settings: CheckSettings, progress: ProgressArgument = False
) -> CheckReport:
    """Check as `check` does, with an agent made from the environment's spaces."""
    run = CheckRun(env, code, make_agent, settings)
    with display(progress, len(STAGES), "checks", note=lambda: run.doing, doing="checking") as run.shown:
        try:
            run.all()
        except KeyboardInterrupt as interrupt:
            raise CheckInterruptedError(run.report()) from interrupt
        run.show(0, complete=True)
    return run.report()
