"""The intervals by which agents on a suite are judged: over tasks for the gate, and task by task."""

from typing import Any

import numpy as np
import pytest

from streamsampler.evaluation.comparison import Pairs, rate_difference_interval
from streamsampler.evaluation.gate import gate_interval
from streamsampler.evaluation.intervals import Unknown
from streamsampler.evaluation.suites.means import suite_mean_interval, task_interval
from streamsampler.evaluation.suites.scores import TaskScores
from streamsampler.evaluation.suites.suite_gate import suite_gate_interval
from streamsampler.evaluation.suites.suite_pairs import SuitePairs

RNG = np.random.default_rng(5)
NORMAL, SKEWED = RNG.normal(0, 1, (3, 120)), RNG.exponential(1, (3, 120)) - 1


def scores(values, n, first=0) -> list[TaskScores]:
    return [TaskScores(column[:n], tuple(range(first * k, first * k + n))) for k, column in enumerate(values)]


def pairs(differences, successes=None) -> Pairs:
    n = len(differences)
    return Pairs(
        first="old", second="new", returns=(np.zeros(n), np.asarray(differences)), seeds=tuple(range(n)),
        level=0.95, test=None, successes=successes,
    )  # fmt: skip


def suite_pairs(**tasks: Pairs) -> SuitePairs:
    return SuitePairs(first="old", second="new", tasks=tasks, normalise=None, level=0.95)


@pytest.mark.parametrize("n", [20, 50, 120])
def test_the_gate_of_a_suite_reaches_as_far_as_either_interval(n):
    tasks = scores(SKEWED, n)
    found: Any = suite_gate_interval(tasks)
    of_tasks: Any = suite_mean_interval(tasks, 0.975, of="difference")
    of_column: Any = gate_interval(SKEWED[:, :n].mean(axis=0))
    assert found.low == pytest.approx(min(of_tasks.low, of_column.low), abs=1e-12)
    assert found.high == pytest.approx(max(of_tasks.high, of_column.high), abs=1e-12)


def test_the_gate_of_a_single_task_is_that_of_the_task_alone():
    for n in (20, 50, 120):
        assert suite_gate_interval(scores(SKEWED[:1], n)) == gate_interval(SKEWED[0, :n])


def test_few_pairs_have_no_gate_without_bounds_whichever_seeds_tasks_have():
    for first in (0, 3):
        assert suite_gate_interval(scores(NORMAL, 19, first)) == Unknown("a task has 19 pairs, fewer than 20")
        bounded = [TaskScores(it.values, it.seeds, (-9.0, 9.0)) for it in scores(NORMAL, 19, first)]
        assert suite_gate_interval(bounded)
    apart = scores(NORMAL, 40, first=40)
    assert suite_gate_interval(apart) == suite_mean_interval(apart, 0.975, of="difference")


def test_tasks_are_judged_by_intervals_that_hold_for_skewed_differences():
    tasks = {f"task_{k}": pairs(SKEWED[k, :40] + k) for k in range(3)}
    found = suite_pairs(**tasks)
    levels = {name: it.interval.level for name, it in found.judged.items()}
    assert list(found.sure) == ["task_1", "task_2"]
    for (name, judged), task in zip(found.judged.items(), found.differences, strict=True):
        assert judged.interval == task_interval(task, levels[name])


def test_the_success_rate_of_a_single_task_has_the_interval_of_the_task_alone():
    first, second = np.arange(60) % 5 < 2, np.arange(60) % 5 > 1
    own = pairs(NORMAL[0, :60], (first, second))
    found = suite_pairs(push=own)
    assert found.success_difference_interval == own.success_difference_interval == rate_difference_interval(36, 24, 60)
    both = suite_pairs(push=own, lift=own).success_difference_interval
    assert both == rate_difference_interval(36, 24, 60), "two tasks that are one"
