"""Decide which tasks of a suite lack trajectories, from the present trajectories. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.amounts import Amount
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.suites.scores import TaskScores
from streamsampler.evaluation.suites.suite_precision import SuitePrecision


@dataclass
class TaskState:
    """The state of one task.

    Attributes:
        amount: The requested amount; with a part, the requested trajectories.
        wanted: Number of trajectories requested so far.
        evaluation: Its evaluation so far, perhaps with trajectories of later rounds from an earlier run; None before
            its first trajectory.
        error: Reason of its failure, or None.
        n_short: How often too few of the run trajectories were left: each time twice as many are run.
    """

    amount: Amount
    wanted: int
    evaluation: Evaluation | None = None
    error: Exception | None = None
    n_short: int = 0

    @property
    def n(self) -> int:
        """Number of trajectories."""
        return 0 if self.evaluation is None else len(self.evaluation)

    @property
    def n_run(self) -> int:
        """Number of requested trajectories that were run: a dropped trajectory has been replaced, or counts."""
        if self.evaluation is None:
            return 0
        return self.n + (self.evaluation.left_out if self.amount.is_fixed else 0)

    @property
    def n_by_now(self) -> int:
        """Number of trajectories requested so far, plus present trajectories of later rounds."""
        return self.wanted if self.amount.rule is None else min(max(self.wanted, self.n_run), self.amount.n)

    @property
    def amount_by_now(self) -> Amount:
        """The amount requested so far."""
        amount, n = self.amount, self.n_by_now
        if amount.rule is None:
            return amount
        seeds = None if amount.seeds is None else amount.seeds[:n]
        return replace(amount, n=n, seeds=seeds, rule=None)

    @property
    def of_round(self) -> Evaluation | None:
        """The first trajectories, as many as requested so far: a run without interruption has no others."""
        evaluation = self.evaluation
        if evaluation is None or self.amount.rule is None:
            return evaluation
        kept = int(np.searchsorted(evaluation.indices, self.wanted)) if self.amount.is_fixed else self.wanted
        return None if kept == 0 else _first_of(evaluation, kept)

    @property
    def lacks_trajectories(self) -> bool:
        """Whether trajectories must be run: dropped ones have been replaced, unless each has a place of its own."""
        return self.error is None and (self.evaluation is None or self.n_run < self.wanted)


def _first_of(evaluation: Evaluation, n: int) -> Evaluation:
    """Return the first n trajectories of an evaluation."""
    if n >= len(evaluation):
        return evaluation
    columns = ("returns", "lengths", "terminated", "truncated", "successes", "indices", "seeds", "names")
    values = {name: getattr(evaluation, name) for name in columns}
    return replace(evaluation, **{name: value[:n] for name, value in values.items() if value is not None})


@dataclass
class SuitePlan:
    """The trajectories requested for each task of a suite.

    With a precision, rounds follow until the mean over tasks is precise enough. A round is a function of the
    trajectories of earlier rounds, and of nothing else. Trajectories of an earlier run may belong to later rounds: the
    rounds are decided again, each on the first trajectories of each task.

    Attributes:
        states: The state of each task, by name.
        precision: The requested precision of the mean over tasks; None for fixed numbers.
        scores_of: Returns the scores of a task for this mean; raises a `UsageError` for a task without scores, which
            fails.
    """

    states: dict[str, TaskState] = field(default_factory=dict)
    precision: SuitePrecision | None = None
    scores_of: Callable[[str, Evaluation], TaskScores] | None = None

    @classmethod
    def of_amounts(
        cls, amounts: Mapping[str, Amount], precision: SuitePrecision | None = None,
        scores_of: Callable[[str, Evaluation], TaskScores] | None = None,
    ) -> SuitePlan:  # fmt: skip
        """Return the plan of a new suite."""
        plan = cls(precision=precision, scores_of=scores_of)
        for name, amount in amounts.items():
            n = amount.n if amount.part is None else amount.part.trajectories
            plan.states[name] = TaskState(amount, wanted=n if precision is None else min(n, precision.fewest))
        return plan

    def next_tasks(self) -> list[str]:
        """Return the tasks that lack trajectories; an empty list if all tasks without failure have enough."""
        while not (lacking := self._lacking()) and self._begin_round():
            pass
        return lacking

    def _lacking(self) -> list[str]:
        return [name for name, state in self.states.items() if state.lacks_trajectories]

    def _begin_round(self) -> bool:
        """Request more trajectories; return False if there are enough."""
        if self.precision is None or not (scores := self.scores()):
            return False
        before = [state.wanted for state in self.states.values()]
        for name, n in self.precision.more(scores).items():
            self.states[name].wanted = min(self.states[name].wanted + n, self.states[name].amount.n)
        return before != [state.wanted for state in self.states.values()]

    def scores(self) -> dict[str, TaskScores]:
        """Return the scores of each task with trajectories, up to this round. A task without scores fails."""
        assert self.scores_of is not None
        scores: dict[str, TaskScores] = {}
        for name, state in self.states.items():
            if (evaluation := state.of_round) is not None:
                try:
                    scores[name] = self.scores_of(name, evaluation)
                except UsageError as error:
                    self.fail(name, error)
        return scores

    def know(self, name: str, evaluation: Evaluation) -> None:
        """Set the trajectories of a task from an earlier run."""
        self.states[name].evaluation = evaluation

    def surplus(self) -> Iterator[tuple[str, Evaluation, int]]:
        """Yield the tasks with more trajectories from an earlier run than requested.

        Yields:
            The task, its evaluation, and the number of needed trajectories.
        """
        for name, state in self.states.items():
            needed = 0 if (it := state.of_round) is None else len(it)
            if state.evaluation is not None and len(state.evaluation) > needed:
                yield name, state.evaluation, needed

    @property
    def n_known(self) -> tuple[int, int]:
        """Number of present trajectories, and of timesteps."""
        known = [state.evaluation for state in self.states.values() if state.evaluation is not None]
        return sum(map(len, known)), sum(int(it.lengths.sum()) for it in known)

    def finish(self, name: str, evaluation: Evaluation | None) -> None:
        """Record the trajectories of a task after a round; None if none is left."""
        state = self.states[name]
        state.evaluation = state.evaluation if evaluation is None else evaluation
        state.n_short += state.lacks_trajectories

    def fail(self, name: str, error: Exception) -> None:
        """Record the failure of a task; its trajectories are not used."""
        self.states[name].error, self.states[name].evaluation = error, None

    @property
    def failed(self) -> dict[str, Exception]:
        """The errors of failed tasks, by name."""
        return {name: state.error for name, state in self.states.items() if state.error is not None}

    @property
    def n_wanted(self) -> int:
        """Number of requested trajectories of all tasks without failure."""
        return sum(state.n_by_now for state in self.states.values() if state.error is None)

    def evaluations(self, stopped: Mapping[str, str]) -> dict[str, Evaluation]:
        """Return the evaluation of each task with trajectories."""
        return {
            name: replace(state.evaluation, stopped=stopped[name], asked=state.amount.arguments)
            for name, state in self.states.items()
            if state.evaluation is not None
        }
