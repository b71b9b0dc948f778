"""Compare agents on a suite until a test decides which is better, or whether one is worse by more than a margin."""

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
    """The requested number of trajectories of a comparison on a suite."""

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
        """Return the request in arguments of `streamsampler.compare`, or the file's request if they give no amount.

        Raises:
            UsageError: The arguments contradict each other, or a value is out of range.
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
                f"{'a part is' if tasks is None else 'tasks are'} for n_trajectories, seeds or scenarios: "
                "until_decided depends on all pairs of all tasks"
            )
        most = at_most(given["seeds"], given["max_trajectories"])
        n = HowMany(most.n, "max_trajectories") if most.seeds is None else HowMany()
        return cls(n, most.seeds, None, check_alpha(given["until_decided"]), given["decide_on"])


@dataclass(frozen=True)
class SuiteDecision:
    """The checked conditions under which a comparison on a suite ends."""

    alpha: float
    of: PrecisionOf
    bounds: Mapping[str, Bounds | None]
    margin: float | None

    @classmethod
    def checked(cls, arguments: SuiteArguments, alpha: float, of: PrecisionOf, margin: Any) -> SuiteDecision:
        """Check arguments of `streamsampler.compare`.

        Raises:
            UsageError: A value is out of range.
        """
        bounds = {name: amount.bounds for name, amount in arguments.amounts.items()}
        whole = bounds_over_tasks(of, bounds, arguments.normalise)
        checked = None if margin is None else checked_margin(margin, of, None if of == "success" else whole)
        return cls(alpha, of, bounds, checked)

    def with_amounts(self, arguments: SuiteArguments) -> SuiteArguments:
        """Return the arguments with the request in their amounts."""
        said = {"until_decided": self.alpha, "decide_on": self.of}
        amounts = {}
        for name, amount in arguments.amounts.items():
            most = {"max_trajectories": amount.n} if amount.seeds is None else {"seeds": amount.seeds}
            amounts[name] = replace(amount, asked="", arguments={**said, **most})
        return replace(arguments, amounts=amounts)

    @property
    def facts(self) -> dict[str, Any]:
        """Return the conditions as arguments of a `SuiteComparison`."""
        return {"until_decided": self.alpha, "decide_on": self.of, "margin": self.margin}


def decide_suite(
    agents: Mapping[str, Any], arguments: SuiteArguments, decision: SuiteDecision, run: RunFile,
    progress: ProgressArgument,
) -> SuiteComparison:  # fmt: skip
    """Compare agents on a suite until each is decided; see `streamsampler.compare` for arguments and errors.

    All agents and tasks share workers. In each round, the tasks of an agent follow those of the agent before.
    """
    call = SuiteRace(agents, arguments, decision, run)
    head = {name: value for name, value in decision.facts.items() if value is not None}
    run.begin(arguments.asked, agents=list(agents), **arguments.journal_facts, **head)
    with run:
        comparison = call.run(progress)
        run.finish(comparison)
    return comparison


class SuiteRace:
    """Runs a comparison on a suite until each agent is decided.

    Raises:
        UsageError: The agent of a task is ambiguous, or does not fit the task's spaces.
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
        """Run rounds until each agent is decided or the largest amount is reached, and return the result.

        Raises:
            UsageError: The file's trajectories belong to another run, or are more than needed.
            EvaluationInterruptedError: Ctrl-C; has the result so far.
            SamplerError: An agent failed in each task: its first error.
            DataError: In each task some agent failed.
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
                f"{self._file.source} has {count(there, 'trajectory')} of {name}, and {needed:,} are enough: request "
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
        # Complete tasks are included: creating their calls checks that their trajectories belong to this run.
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
        """Check that infos have a success flag, if the tests need it.

        Raises:
            UsageError: A task's infos have none, after enough trajectories to know.
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
        """Return the suite of each agent with trajectories."""
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
        """Return the comparison of the agents so far, or the first suite without two agents and a common task."""
        return interrupted_comparison(self._suites(INTERRUPTED), self._decision.facts)
