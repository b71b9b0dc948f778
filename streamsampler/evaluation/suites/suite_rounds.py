"""Decide the number of trajectories of agents on a suite until a test decides which is better. Pure.

In each round, the first agent and all undecided agents have the same number of trajectories of each task, and in the
next round a quarter more. A round is a function of the trajectories of earlier rounds, and of nothing else: it is the
same for any number of workers, and for resumed runs. All trajectories of a round are kept, since the test stays valid
with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from streamsampler.core.words import count
from streamsampler.evaluation.amounts import Amount
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.intervals import Bounds
from streamsampler.evaluation.rules import PrecisionOf
from streamsampler.evaluation.sequential import ReturnTest
from streamsampler.evaluation.suites.sequential_suite import bounds_over_tasks, task_pairs, tested
from streamsampler.evaluation.suites.suite_evaluation import Scale
from streamsampler.evaluation.suites.suite_plan import SuitePlan, TaskState

FIRST_ROUND = 20
_GROWTH = 0.25


def next_round(n: int, most: int) -> int:
    """Return the number of trajectories of each task in the round after a round of n; after 0 in the first round."""
    return min(most, FIRST_ROUND if n == 0 else n + math.ceil(_GROWTH * n))


@dataclass
class RoundState(TaskState):
    """The state of one agent in one task, in rounds.

    Attributes:
        is_over: Whether no later round has it: the agent is decided, or an agent failed in the task.
    """

    is_over: bool = False

    @property
    def amount_by_now(self) -> Amount:
        """The amount of the round."""
        seeds = None if self.amount.seeds is None else self.amount.seeds[: self.wanted]
        return replace(self.amount, n=self.wanted, seeds=seeds)

    @property
    def lacks_trajectories(self) -> bool:
        """Whether it lacks trajectories for the round."""
        return not self.is_over and super().lacks_trajectories

    def n_rows(self, n: int) -> int:
        """Return the number of the evaluation's trajectories in a round of n."""
        assert self.evaluation is not None
        return int((self.evaluation.indices < n).sum()) if self.amount.is_fixed else min(n, self.n)


@dataclass
class SuiteRounds:
    """The rounds of a comparison on a suite, until each agent is decided.

    Attributes:
        agents: The names of the agents; each is compared with the first.
        amounts: The most trajectories of each task, the same for all agents, by the task's name.
        alpha: Probability of a wrong decision, of all tests together.
        of: The tested quantity: "return" or "success".
        bounds: Bounds of the returns of each task, by its name; None if unknown.
        normalise: The returns of the scores 0 and 1, by task; None for returns as they are.
        margin: Largest tolerated loss of an agent; None for 0.
        plan: The state of each agent and task.
        n: Number of trajectories of each task in this round.
        undecided: The undecided agents.
        tests: The latest test of each agent but the first, by name.
    """

    agents: Sequence[str]
    amounts: Mapping[str, Amount]
    alpha: float
    of: PrecisionOf
    bounds: Mapping[str, Bounds | None]
    normalise: Mapping[str, Scale] | None = None
    margin: float | None = None
    plan: SuitePlan = field(init=False)
    n: int = field(init=False)
    undecided: list[str] = field(init=False)
    tests: dict[str, ReturnTest] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._most = next(iter(self.amounts.values())).n
        self.n = next_round(0, self._most)
        self.undecided = list(self.agents[1:])
        each = ((agent, task) for agent in self.agents for task in self.amounts)
        self._states = {(agent, task): RoundState(self.amounts[task], self.n) for agent, task in each}
        names = [f"{agent} in {task}" for agent, task in self._states]
        self.plan = SuitePlan(dict(zip(names, self._states.values(), strict=True)))

    def know(self, name: str, evaluation: Evaluation) -> None:
        """Set the trajectories of an agent in a task from an earlier run, by the name in the plan.

        They may belong to later rounds. Until the first call of `lacking`, all of them count as requested.
        """
        state = self.plan.states[name]
        assert isinstance(state, RoundState)
        state.evaluation = evaluation
        state.wanted = min(max(state.wanted, state.n_run), state.amount.n)

    def lacking(self) -> list[str]:
        """Return the plan's names without enough trajectories; empty if all agents are decided or at their most."""
        self._want()
        while not (lacking := self.plan.next_tasks()):
            tasks = self.common_tasks
            for task in self.amounts:
                for agent in self.agents:
                    self._states[agent, task].is_over |= task not in tasks
            for agent in list(self.undecided) if tasks else ():
                self.tests[agent] = test = self._test(agent, tasks)
                if test.outcome != "undecided":
                    self.undecided.remove(agent)
                    for task in tasks:
                        self._states[agent, task].is_over = True
            if not self.undecided or not tasks or self.n >= self._most:
                return []
            self.n = next_round(self.n, self._most)
            self._want()
        return lacking

    def _want(self) -> None:
        for state in self._states.values():
            state.wanted = state.wanted if state.is_over else self.n

    @property
    def common_tasks(self) -> list[str]:
        """The tasks without a failed agent so far."""
        return [task for task in self.amounts if all(self._states[agent, task].error is None for agent in self.agents)]

    def _test(self, agent: str, tasks: Sequence[str]) -> ReturnTest:
        """Return the test of an agent, with the trajectories of this round."""
        alpha = self.alpha / (len(self.agents) - 1)
        bounds = bounds_over_tasks(self.of, {task: self.bounds[task] for task in tasks}, self.normalise)
        pairs = []
        for task in tasks:
            states = self._states[self.agents[0], task], self._states[agent, task]
            first, second = (state.evaluation for state in states)
            assert first is not None
            assert second is not None
            scale = None if self.normalise is None else self.normalise[task]
            n_rows = states[0].n_rows(self.n), states[1].n_rows(self.n)
            pairs.append(task_pairs(first, second, self.of, scale, n_rows))
        known = [each for each in pairs if each is not None]
        return tested(known if len(known) == len(pairs) else [], alpha, bounds, self.margin)

    def evaluations(self, agent: str) -> dict[str, Evaluation]:
        """Return the evaluations of an agent by the task's name."""
        each = ((task, self._states[agent, task].evaluation) for task in self.amounts)
        return {task: it for task, it in each if it is not None}

    def failed(self, agent: str) -> dict[str, Exception]:
        """Return the errors of an agent's failed tasks, by the task's name."""
        each = ((task, self._states[agent, task].error) for task in self.amounts)
        return {task: it for task, it in each if it is not None}

    @property
    def excess(self) -> dict[str, tuple[int, int]]:
        """The numbers of present and of needed trajectories, where earlier runs have finished more than needed."""
        return {
            name: (state.n_run, state.wanted)
            for name, state in zip(self.plan.states, self._states.values(), strict=True)
            if state.evaluation is not None and state.n_run > state.wanted
        }

    @property
    def reason(self) -> str:
        """Reason for the end of the trajectories, in words."""
        if not self.undecided:
            return "decided"
        return f"undecided after {count(self.n, 'trajectory')} of each task, the most"
