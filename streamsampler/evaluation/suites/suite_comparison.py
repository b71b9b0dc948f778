"""The result of a comparison on a suite: the suites of all agents, and their differences by task and seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import (
    Evaluation,
    number,
    percent,
    shown_seeds,
)
from streamsampler.evaluation.found import Found
from streamsampler.evaluation.gate import GateVerdict, checked_margin
from streamsampler.evaluation.intervals import LEVEL, Unknown
from streamsampler.evaluation.journal import INTERRUPTED, JournalContents
from streamsampler.evaluation.rules import PrecisionOf
from streamsampler.evaluation.suites.suite_evaluation import Scale, SuiteEvaluation
from streamsampler.evaluation.suites.suite_pairs import SuitePairs


def position_names(agents: Sequence[str], tasks: Sequence[str]) -> list[str]:
    """Return a name for each agent and task, in the order of their positions in a journal.

    Raises:
        UsageError: Two names are equal.
    """
    names = [f"{agent} in {task}" for agent in agents for task in tasks]
    if alike := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{alike!r} is the name of two pairs of an agent and a task: rename agents or tasks")
    return names


@suggesting()
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SuiteComparison(Found):
    """The result of `streamsampler.compare` on a suite: each agent's suite, and the differences from the first agent.

    `comparison["old"]` is an agent's `SuiteEvaluation`; `comparison.tasks["push"]` the `Comparison` in a task;
    `comparison.pairs[0]` the differences of the second agent from the first. With more than two agents the confidence
    of each interval is raised, so that all of them together hold as often as the interval of two agents.

    Attributes:
        names: The agents' names.
        suites: The suite of each agent.
        stopped: Reason for the end of the trajectories.
        margin: Largest tolerated loss of an agent; None without a verdict.
        decide_on: Quantity of the verdict and the tests: "return" or "success".
        until_decided: Probability of a wrong decision of all tests together; None without tests.

    Raises:
        DataError: Fewer than two agents are given, or their tasks differ.
    """

    KIND: ClassVar[str] = "suite comparison"

    names: tuple[str, ...]
    suites: tuple[SuiteEvaluation, ...]
    stopped: str
    margin: float | None = None
    decide_on: PrecisionOf = "return"
    until_decided: float | None = None

    def __post_init__(self) -> None:
        if len(self.names) != len(self.suites) or len(self.names) < 2:
            raise DataError(f"a comparison has at least two agents: {len(self.suites)} suites, {len(self.names)} names")
        first, *others = self.suites
        for other in others:
            if (other.names, other.normalise) != (first.names, first.normalise):
                raise DataError(
                    f"the suites are of other tasks: {', '.join(first.names)} and {', '.join(other.names)}, with "
                    f"normalise {first.normalise} and {other.normalise}"
                )
        if not self.tasks:
            reasons = "; ".join(f"{name}: {error}" for name, error in self.failed.items())
            raise DataError(f"{' and '.join(self.names)} have no common task without failure: {reasons}")

    @classmethod
    def of_suites(cls, suites: Mapping[str, SuiteEvaluation], **facts: Any) -> SuiteComparison:
        """Return the comparison of suites by agent name.

        Raises:
            DataError: Agents failed in different tasks, so that none is common; has the suites as `found`.
        """
        try:
            return cls(names=tuple(suites), suites=tuple(suites.values()), **facts)
        except DataError as error:
            error.found = dict(suites)
            raise

    def __getitem__(self, name: str) -> SuiteEvaluation:
        """Return an agent's suite by the agent's name."""
        try:
            return self.suites[self.names.index(name)]
        except ValueError:
            raise KeyError(f"{name!r}: the keys are the names of agents, {', '.join(self.names)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @cached_property
    def tasks(self) -> dict[str, Comparison]:
        """The comparison in each common task, by the task's name."""
        return {
            name: Comparison(
                names=self.names,
                evaluations=tuple(suite[name] for suite in self.suites),
                stopped=self.suites[0][name].stopped,
                bounds=self.suites[0][name].bounds,
            )
            for name in self.suites[0].names
            if all(name in suite.tasks for suite in self.suites)
        }

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations of all agents in all tasks."""
        return tuple(each for suite in self.suites for each in suite.evaluations)

    @property
    def failed(self) -> dict[str, str]:
        """The errors of failed tasks, by agent and task."""
        each = zip(self.names, self.suites, strict=True)
        return {f"{agent}: {task}": error for agent, suite in each for task, error in suite.failed.items()}

    @cached_property
    def pairs(self) -> tuple[SuitePairs, ...]:
        """Each other agent paired with the first, in each task, on their common seeds."""
        n_tests = len(self.names) - 1
        return tuple(
            SuitePairs(
                first=self.names[0],
                second=name,
                tasks={task: comparison.pairs[position] for task, comparison in self.tasks.items()},
                normalise=self.normalise,
                level=1 - (1 - LEVEL) / n_tests,
                alpha=None if self.until_decided is None else self.until_decided / n_tests,
                decide_on=self.decide_on,
                margin=self.margin,
            )
            for position, name in enumerate(self.names[1:])
        )

    def __str__(self) -> str:
        first = self.suites[0]
        what = "mean return" if first.normalise is None else "mean score"
        cells = [["", *self.names], [what, *(number(suite.mean) for suite in self.suites)]]
        cells.append(["interquartile mean", *(number(suite.interquartile_mean) for suite in self.suites)])
        if all(suite.success_rate is not None for suite in self.suites):
            cells.append(["success rate", *(percent(suite.success_rate or 0.0) for suite in self.suites)])
        cells.append(["trajectories", *(f"{sum(map(len, suite.evaluations)):,}" for suite in self.suites)])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        texts = [f"{', '.join(self.names)} in {count(len(first.names), 'task')}, on the same seeds"]
        for name, *values in cells:
            shown = "  ".join(f"{value:>{width}}" for value, width in zip(values, widths[1:], strict=True))
            texts.append(f"  {name:{widths[0]}}  {shown}".rstrip())
        texts += [*map(str, self.pairs)]
        texts += [] if self.margin is None else [str(self.verdict())]
        if self.failed:
            texts.append(f"note: {count(len(self.failed), 'evaluation')} failed, and the differences lack these tasks:")
            texts += [f"note: {name}: {error}" for name, error in self.failed.items()]
        texts.append(f"seeds: {shown_seeds(first.evaluations[0].seeds)}")
        texts.append(f"stopped: {self.stopped}")
        return "\n".join(texts)

    def __repr__(self) -> str:
        return f"SuiteComparison({', '.join(self.names)}: {count(len(self.tasks), 'task')})"

    def verdict(self, margin: float | None = None, *, decide_on: PrecisionOf | None = None) -> GateVerdict:
        """Decide whether any agent is worse than the first by more than a margin; see `Comparison.verdict`.

        Args:
            margin: Largest tolerated loss of an agent, at least 0: of returns, of scores with `normalise`, or of
                success rates. By default the requested margin.
            decide_on: "return" or "success"; by default as requested.

        Raises:
            UsageError: No margin is given, or it is invalid.
        """
        of = self.decide_on if decide_on is None else decide_on
        margin = self.margin if margin is None else margin
        if margin is None:
            raise UsageError("the margin is missing: give the largest tolerated loss, such as verdict(0.05)")
        checked = checked_margin(margin, of)
        decisions = tuple(pairs.decision(checked, of) for pairs in self.pairs)
        if lacking := [name for name in self.suites[0].names if name not in self.tasks]:
            # A failed task must not let its agent pass by its absence.
            why = Unknown(f"no pairs in {', '.join(lacking)}")
            advice = "each task needs pairs of all agents"
            decisions = tuple(replace(it, interval=why, all_equal=False, advice=advice) for it in decisions)
        return GateVerdict(decisions)

    @property
    def normalise(self) -> Mapping[str, Scale] | None:
        """The returns of the scores 0 and 1, by task; None for returns as they are."""
        return self.suites[0].normalise

    @property
    def amount_asked(self) -> Mapping[str, Any] | None:
        """The arguments of the request."""
        return self.suites[0].asked

    def by_position(self) -> dict[int, Evaluation]:
        """Return the evaluations of all agents in all tasks, by position."""
        n = len(self.suites[0].names)
        suites = enumerate(self.suites)
        return {agent * n + task: it for agent, suite in suites for task, it in suite.by_position().items()}

    def names_by_position(self) -> list[str]:
        """Return a name for each agent and task."""
        return position_names(self.names, self.suites[0].names)

    @classmethod
    def names_in_journal(cls, head: Mapping[str, Any]) -> list[str]:
        """Return a name for each agent and task."""
        return position_names(head["agents"], head["tasks"])

    @classmethod
    def facts_of_journal(cls, journal: JournalContents) -> dict[str, Any]:
        """Return the trajectories of a journal as JSON values; see `Found`."""
        names, found = journal.head["tasks"], list[dict[str, Any]]()
        for agent in range(len(journal.head["agents"])):
            own = range(agent * len(names), (agent + 1) * len(names))
            evaluations = {names[at - own.start]: it for at, it in journal.evaluations.items() if at in own}
            if not evaluations:
                break
            found.append({**journal.head, "failed": {}, "stopped": INTERRUPTED, "evaluations": evaluations})
        if len(found) < 2:
            raise ValueError("only the first agent has trajectories, so no pairs exist yet")
        return {**journal.head, "agents": journal.head["agents"][: len(found)], "stopped": INTERRUPTED, "suites": found}

    def facts(self) -> dict[str, Any]:
        """Return the contents as JSON values; see `Found`."""
        return {
            "agents": list(self.names),
            "stopped": self.stopped,
            "until_decided": self.until_decided,
            "decide_on": self.decide_on,
            **({} if self.margin is None else {"margin": self.margin, "verdict": self.verdict().facts()}),
            "summary": [pairs.summary() for pairs in self.pairs],
            "suites": [suite.contents() for suite in self.suites],
        }

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> SuiteComparison:
        """Return the comparison with these contents; see `Found`."""
        return cls(
            names=tuple(map(str, facts["agents"])),
            suites=tuple(map(SuiteEvaluation.of_facts, facts["suites"])),
            stopped=str(facts["stopped"]),
            margin=None if facts.get("margin") is None else float(facts["margin"]),
            decide_on=facts["decide_on"],
            until_decided=facts.get("until_decided"),
        )


def interrupted_comparison(
    suites: Mapping[str, SuiteEvaluation], facts: Mapping[str, Any]
) -> SuiteComparison | SuiteEvaluation:
    """Return the comparison of the suites so far, or the first suite without two agents and a common task."""
    try:
        return SuiteComparison.of_suites(suites, stopped=INTERRUPTED, **facts)
    except DataError:
        return next(iter(suites.values()))
