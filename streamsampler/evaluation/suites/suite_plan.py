"""Decide which tasks of a suite lack trajectories, from those that there are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from streamsampler.evaluation.amounts import Amount
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.suites.scores import TaskScores
from streamsampler.evaluation.suites.suite_precision import SuitePrecision


@dataclass
class TaskState:
    """The state of one task.

    Attributes:
        amount: What it is to have in the end; with a part, which of its trajectories.
        wanted: How many trajectories it is to have by now.
        evaluation: Its evaluation so far; None before its first trajectory.
        error: Why it failed; None where it did not.
        n_short: How often too few trajectories were left of those that were run: each time twice as many are run.
    """

    amount: Amount
    wanted: int
    evaluation: Evaluation | None = None
    error: Exception | None = None
    n_short: int = 0

    @property
    def n(self) -> int:
        """How many trajectories it has."""
        return 0 if self.evaluation is None else len(self.evaluation)

    @property
    def amount_by_now(self) -> Amount:
        """What it is to have by now."""
        amount = self.amount
        if amount.rule is None:
            return amount
        seeds = None if amount.seeds is None else amount.seeds[: self.wanted]
        return replace(amount, n=self.wanted, seeds=seeds, rule=None)

    @property
    def lacks_trajectories(self) -> bool:
        """Whether trajectories are to be run: those left out have been replaced, unless each has a place of its own."""
        if self.error is not None or self.evaluation is None:
            return self.error is None
        left_out = self.evaluation.left_out if self.amount.is_fixed else 0
        return self.n + left_out < self.wanted


@dataclass
class SuitePlan:
    """The trajectories that a suite is to have: so many of each task.

    With a precision there are several rounds, until the mean over tasks is known well enough. A round is a function of
    the trajectories that there are, and of nothing else.

    Attributes:
        states: The state of each task, by name.
        precision: The precision that the mean over tasks is to have; None where numbers are given.
        scores_of: Returns the scores of a task, of which that mean is.
    """

    states: dict[str, TaskState] = field(default_factory=dict)
    precision: SuitePrecision | None = None
    scores_of: Callable[[str, Evaluation], TaskScores] | None = None

    @classmethod
    def of_amounts(
        cls, amounts: Mapping[str, Amount], precision: SuitePrecision | None = None,
        scores_of: Callable[[str, Evaluation], TaskScores] | None = None,
    ) -> SuitePlan:  # fmt: skip
        """Return the plan of a suite that begins."""
        plan = cls(precision=precision, scores_of=scores_of)
        for name, amount in amounts.items():
            n = amount.n if amount.part is None else amount.part.trajectories
            plan.states[name] = TaskState(amount, wanted=n if precision is None else min(n, precision.fewest))
        return plan

    def next_tasks(self) -> list[str]:
        """Return the tasks that lack trajectories; none if there are enough of all that did not fail."""
        lacking = self._lacking()
        if not lacking and self.precision is not None and (scores := self.scores()):
            for name, n in self.precision.more(scores).items():
                self.states[name].wanted = min(self.states[name].wanted + n, self.states[name].amount.n)
            lacking = self._lacking()
        return lacking

    def _lacking(self) -> list[str]:
        return [name for name, state in self.states.items() if state.lacks_trajectories]

    def scores(self) -> dict[str, TaskScores]:
        """Return the scores of each task that has trajectories."""
        assert self.scores_of is not None
        has = {name: it.evaluation for name, it in self.states.items() if it.evaluation is not None}
        return {name: self.scores_of(name, evaluation) for name, evaluation in has.items()}

    def know(self, name: str, evaluation: Evaluation) -> None:
        """Take over the trajectories of a task that an earlier run has finished."""
        state = self.states[name]
        state.evaluation = evaluation
        if self.precision is not None:
            state.wanted = max(state.wanted, len(evaluation))

    @property
    def n_known(self) -> tuple[int, int]:
        """How many trajectories, and timesteps, there are."""
        known = [state.evaluation for state in self.states.values() if state.evaluation is not None]
        return sum(map(len, known)), sum(int(it.lengths.sum()) for it in known)

    def finish(self, name: str, evaluation: Evaluation | None) -> None:
        """Record the trajectories of a task after a round; None if none is left."""
        state = self.states[name]
        state.evaluation = state.evaluation if evaluation is None else evaluation
        state.n_short += state.lacks_trajectories

    def fail(self, name: str, error: Exception) -> None:
        """Record that a task failed; its trajectories are not used."""
        self.states[name].error, self.states[name].evaluation = error, None

    @property
    def failed(self) -> dict[str, Exception]:
        """The errors of tasks that failed, by name."""
        return {name: state.error for name, state in self.states.items() if state.error is not None}

    @property
    def n_wanted(self) -> int:
        """How many trajectories all tasks are to have that did not fail."""
        return sum(state.wanted for state in self.states.values() if state.error is None)

    def evaluations(self, stopped: Mapping[str, str]) -> dict[str, Evaluation]:
        """Return the evaluation of each task that has trajectories.

        Args:
            stopped: Why each task has no more trajectories, by name.
        """
        return {
            name: replace(state.evaluation, stopped=stopped[name], asked=state.amount.arguments)
            for name, state in self.states.items()
            if state.evaluation is not None
        }
