"""Compare agents on a suite until it is sure which one is better, or whether one is worse by more than a margin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamsampler.core.errors import UsageError
from streamsampler.core.progress import Display, ProgressArgument, display
from streamsampler.core.words import count
from streamsampler.evaluation.agent_errors import naming_agent
from streamsampler.evaluation.agents import Row
from streamsampler.evaluation.amounts import Amount, HowMany, at_most, refuse_amounts, refuse_useless
from streamsampler.evaluation.evaluation import number
from streamsampler.evaluation.evaluation_call import EvaluationInterruptedError
from streamsampler.evaluation.gate import checked_margin
from streamsampler.evaluation.intervals import Bounds
from streamsampler.evaluation.journal import INTERRUPTED
from streamsampler.evaluation.rules import PrecisionOf, check_successes
from streamsampler.evaluation.run_file import RunFile
from streamsampler.evaluation.sequential import check_alpha
from streamsampler.evaluation.suites.evaluate_suite import SuiteArguments
from streamsampler.evaluation.suites.sequential_suite import bounds_over_tasks
from streamsampler.evaluation.suites.suite_arguments import with_task
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison, interrupted_comparison
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation
from streamsampler.evaluation.suites.suite_rounds import SuiteRounds
from streamsampler.evaluation.suites.task_agents import TaskAgents
from streamsampler.evaluation.suites.task_runs import TaskRuns

_AMOUNTS = ("n_trajectories", "seeds", "scenarios", "until_decided")


@dataclass(frozen=True)
class SuiteAmount:
    """How many trajectories a comparison on a suite was asked for, and until when.

    Attributes:
        how_many: How many of each task; with `until_decided` the most.
        seeds: The seeds, if there are any.
        scenarios: The scenarios, if there are any.
        until_decided: See `streamsampler.compare`; None where it was not asked for.
        decide_on: See `streamsampler.compare`.
    """

    how_many: HowMany
    seeds: Any
    scenarios: Any
    until_decided: Any
    decide_on: PrecisionOf

    @classmethod
    def asked(
        cls, run: RunFile, how_many: HowMany, *, seeds: Any, scenarios: Any, until_decided: Any, decide_on: PrecisionOf,
        max_trajectories: Any, part: Any, tasks: Any,
    ) -> SuiteAmount:  # fmt: skip
        """Return what arguments of `streamsampler.compare` ask for; what the file asked for if they give no amount.

        Raises:
            UsageError: They cannot work.
        """
        given = {"n_trajectories": how_many.n, "seeds": seeds, "scenarios": scenarios, "until_decided": until_decided}
        given |= {"decide_on": decide_on, "max_trajectories": max_trajectories}
        given = run.completed(given, _AMOUNTS, {"decide_on": "return", "max_trajectories": None})
        if given["until_decided"] is None:
            refuse_useless({"max_trajectories": max_trajectories}, "until_decided")
            how_many = HowMany(given["n_trajectories"], how_many.name)
            return cls(how_many, given["seeds"], given["scenarios"], None, decide_on)
        refuse_amounts("until_decided", how_many, scenarios)
        if part is not None or tasks is not None:
            raise UsageError(
                f"{'a part is' if tasks is None else 'tasks are'} for n_trajectories, seeds or scenarios: when "
                "until_decided is sure is known only when all pairs of all tasks are there"
            )
        most = at_most(given["seeds"], given["max_trajectories"])
        n = HowMany(most.n, "max_trajectories") if most.seeds is None else HowMany()
        return cls(n, most.seeds, None, check_alpha(given["until_decided"]), given["decide_on"])


@dataclass(frozen=True)
class SuiteDecision:
    """What a comparison on a suite goes on for, checked.

    Attributes:
        alpha: How often all tests together may decide wrongly.
        of: What they are about: "return" or "success".
        bounds: The bounds of returns of each task; None for success rates.
        margin: By how much an agent may be worse and still count as not worse; None where no verdict was asked for.
    """

    alpha: float
    of: PrecisionOf
    bounds: Mapping[str, Bounds | None]
    margin: float | None

    @classmethod
    def checked(cls, arguments: SuiteArguments, alpha: float, of: PrecisionOf, margin: Any) -> SuiteDecision:
        """Return what arguments of `streamsampler.compare` ask for.

        Raises:
            UsageError: They cannot work.
        """
        bounds = {name: amount.bounds for name, amount in arguments.amounts.items()}
        whole = bounds_over_tasks(of, bounds, arguments.normalise)
        checked = None if margin is None else checked_margin(margin, of, None if of == "success" else whole)
        return cls(alpha, of, bounds, checked)

    def with_amounts(self, arguments: SuiteArguments) -> SuiteArguments:
        """Return the arguments, whose amounts say what was asked for."""
        said = {"until_decided": self.alpha, "decide_on": self.of}
        amounts = {}
        for name, amount in arguments.amounts.items():
            most = {"max_trajectories": amount.n} if amount.seeds is None else {"seeds": amount.seeds}
            amounts[name] = replace(amount, asked="", arguments={**said, **most})
        return replace(arguments, amounts=amounts)

    @property
    def facts(self) -> dict[str, Any]:
        """What the comparison keeps of it, by the names of a `SuiteComparison`."""
        return {"until_decided": self.alpha, "decide_on": self.of, "margin": self.margin}


def decide_suite(
    agents: Mapping[str, Any], arguments: SuiteArguments, decision: SuiteDecision, run: RunFile,
    progress: ProgressArgument,
) -> SuiteComparison:  # fmt: skip
    """Compare agents on a suite until each is decided; see `streamsampler.compare` for arguments and errors.

    All agents share workers, and all their tasks: in each round, the tasks of an agent follow those of the one before.

    Args:
        agents: The agents by name, each one for all tasks, a function of a task's name, or a dict by tasks.
        arguments: What is evaluated; its amounts are the most of each task.
        decision: What it goes on for.
        run: The file that the result goes into, and the trajectories that are there.
        progress: See `streamsampler.evaluate`.
    """
    call = SuiteRace(agents, arguments, decision, run)
    head = {name: value for name, value in decision.facts.items() if value is not None}
    run.begin(arguments.asked, agents=list(agents), **arguments.journal_facts, **head)
    with run:
        comparison = call.run(progress)
        run.finish(comparison)
    return comparison


class SuiteRace:
    """A comparison on a suite that goes on until each agent is decided, up to its result.

    Args:
        agents: The agents by name.
        arguments: What is evaluated.
        decision: What it goes on for.
        run: The file that the result goes into, and the trajectories that are there.

    Raises:
        UsageError: It is unclear which task has which agent, or an agent does not fit the spaces of a task.
    """

    def __init__(
        self, agents: Mapping[str, Any], arguments: SuiteArguments, decision: SuiteDecision, run: RunFile
    ) -> None:
        self._arguments, self._decision, self._file = arguments, decision, run
        self._tasks = list(arguments.envs)
        self._rounds = SuiteRounds(
            list(agents), arguments.amounts, decision.alpha, decision.of, decision.bounds, arguments.normalise,
            decision.margin,
        )  # fmt: skip
        options, names = arguments.options, iter(self._rounds.plan.states)
        self._agents: dict[str, Any] = {}
        for agent, given in agents.items():
            with naming_agent(agent, {}, are_kept=False):
                of_tasks = TaskAgents(
                    given, arguments.envs, options.get("env_kwargs"), deterministic=arguments.deterministic,
                    vec_normalize=arguments.vec_normalize, policy_of=options.get("policy_of"),
                )  # fmt: skip
            self._agents |= {next(names): of_tasks[task] for task in self._tasks}
        self._positions = {name: position for position, name in enumerate(self._agents)}
        self._shown: Display | None = None
        self._n_rows = self._n_timesteps = 0
        self._now = ""

    def run(self, progress: ProgressArgument) -> SuiteComparison:
        """Run rounds until each agent is decided or there are the most trajectories, and return the result.

        Raises:
            UsageError: The trajectories that are there are of another run, or more than are needed.
            EvaluationInterruptedError: Ctrl-C; has the result so far.
            SamplerError: An agent failed in each task: its first error.
            DataError: There is no task in which no agent failed.
        """
        for name, position in self._positions.items():
            if (saved := self._file.saved(position)) is not None:
                self._rounds.know(name, saved.evaluation)
        self._n_rows, self._n_timesteps = earlier = self._rounds.plan.n_known
        with display(progress, self._most, "trajectories", earlier=earlier[::-1], note=self._note) as self._shown:
            try:
                self._run()
            except KeyboardInterrupt as interrupt:
                if not any(state.n for state in self._rounds.plan.states.values()):
                    raise
                found = self._interrupted()
                raise EvaluationInterruptedError(found, sum(map(len, found.evaluations))) from interrupt
            self._shown.expect(self._n_rows)
            self._shown.update(self._so_far, complete=True)
        for name, (there, needed) in self._rounds.excess.items():
            raise UsageError(
                f"{self._file.source} has {count(there, 'trajectory')} of {name}, and {needed:,} are enough: ask for "
                "more"
            )
        return self._comparison(self._rounds.reason)

    @property
    def _most(self) -> int:
        return self._arguments.amounts[self._tasks[0]].n * len(self._positions)

    def _run(self) -> None:
        plan = self._rounds.plan
        environments = [self._arguments.envs[task] for _ in self._rounds.agents for task in self._tasks]
        runs = TaskRuns(
            self._agents, dict(zip(self._agents, environments, strict=True)), self._arguments.open_envs,
            self._arguments.success, self._arguments.return_of, self._arguments.options, self._arrived,
            self._file.source or Path("the trajectories before"),
            lambda name: self._file.entry(self._positions[name]),
        )  # fmt: skip
        # Also those that lack nothing: whether they are of this run is found when their calls are made.
        names = [name for name, state in plan.states.items() if state.n]
        with runs:
            while names := names or self._rounds.lacking():
                for done in runs.run({name: plan.states[name] for name in names}):
                    if done.error is not None:
                        plan.fail(done.name, done.error)
                    else:
                        plan.finish(done.name, done.evaluation)
                self._check_successes()
                names = []

    def _check_successes(self) -> None:
        """Check that infos say of success, where it decides.

        Raises:
            UsageError: No info of a task does, in enough trajectories to know.
        """
        if self._decision.of == "return":
            return
        for agent in self._rounds.agents:
            for task, evaluation in self._rounds.evaluations(agent).items():
                if evaluation.successes is None:
                    with naming_agent(agent, {}, are_kept=False):
                        with_task(task, check_successes, len(evaluation))

    def _arrived(self, name: str, row: Row) -> None:
        self._now = name
        self._n_rows, self._n_timesteps = self._n_rows + 1, self._n_timesteps + row.length
        if self._shown is not None:
            self._shown.update(self._so_far, complete=False)

    def _so_far(self) -> tuple[int, int]:
        return self._n_timesteps, self._n_rows

    def _note(self) -> str:
        intervals = [
            self._rounds.tests[agent].interval for agent in self._rounds.undecided if agent in self._rounds.tests
        ]
        shown = [f"[{number(each.low)}, {number(each.high)}]" for each in intervals]
        return f"differences {', '.join(shown)}" if shown else self._now

    def _suites(self, stopped: str) -> dict[str, SuiteEvaluation]:
        """Return the suite of each agent that has trajectories."""
        found: dict[str, SuiteEvaluation] = {}
        for agent in self._rounds.agents:
            evaluations, failed = self._rounds.evaluations(agent), self._rounds.failed(agent)
            if evaluations:
                found[agent] = SuiteEvaluation(
                    names=tuple(self._tasks),
                    tasks={
                        task: replace(it, stopped=stopped, asked=self._amount(task).arguments)
                        for task, it in evaluations.items()
                    },
                    failed={task: str(error) for task, error in failed.items()},
                    normalise=self._arguments.normalise,
                    stopped=stopped,
                    asked=self._arguments.asked,
                )
        return found

    def _amount(self, task: str) -> Amount:
        return self._arguments.amounts[task]

    def _comparison(self, stopped: str) -> SuiteComparison:
        suites = self._suites(stopped)
        for agent in self._rounds.agents:
            if agent not in suites:
                with naming_agent(agent, suites, are_kept=self._file.path is not None):
                    raise next(iter(self._rounds.failed(agent).values()))
        return SuiteComparison.of_suites(suites, stopped=stopped, **self._decision.facts)

    def _interrupted(self) -> SuiteComparison | SuiteEvaluation:
        """Return the comparison of the agents so far; of fewer than two, or without common tasks, the first suite."""
        return interrupted_comparison(self._suites(INTERRUPTED), self._decision.facts)
