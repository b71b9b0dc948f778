"""The rounds of a suite are decided by the trajectories of earlier rounds, whatever an interrupted run has finished."""

from typing import Any

import numpy as np
import pytest

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.agents import Row, columns_of
from streamsampler.evaluation.amounts import Amount, amount_of
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.suites.suite_evaluation import scores_of, successes_of
from streamsampler.evaluation.suites.suite_plan import SuitePlan
from streamsampler.evaluation.suites.suite_precision import SuitePrecision

DEVIATIONS = {"push": 2.0, "lift": 2.7, "reach": 2.1}
SEEDS = range(1000, 1090)


def row(task: str, index: int, success: bool | None = None) -> Row | None:
    """Return a trajectory of a task; None where it is left out."""
    rng = np.random.default_rng([index, *task.encode()])
    if rng.random() < (0.2 if task == "lift" else 0.0):
        return None
    value = float(rng.normal(0, DEVIATIONS.get(task, 1.0)))
    return Row(index, 1000 + index, value, length=1, terminated=True, truncated=False, success=success)


def evaluation_of(rows: list[Row], left_out: int) -> Evaluation:
    return Evaluation(
        **columns_of(rows), names=None, stopped="", left_out=left_out, asked={}, agent={}, environment="Task",
        settings={}, versions={}, seed=3, success_meaning="end", guaranteed=None, bounds=None, part=None,
        failures=(), anomalies=0, first_anomaly=None,
    )  # fmt: skip


def after(task: str, amount: Amount, known: Evaluation | None, most: int) -> tuple[Evaluation | None, int]:
    """Return the evaluation of a task after the trajectories that it lacks, or after `most`, and how many were run."""
    rows = [] if known is None else known.rows
    index = first = 0 if known is None else len(rows) + known.left_out
    while (index if amount.is_fixed else len(rows)) < amount.n and index - first < most:
        if (found := row(task, index)) is not None:
            rows.append(found)
        index += 1
    n_run = index - first
    if n_run == most and rows:  # the run does not know of those left out after its last trajectory
        index = rows[-1].trajectory + 1
    return (evaluation_of(rows, index - len(rows)) if rows else None), n_run


def plan_of(known: dict[str, Evaluation], halfwidth: float = 0.4, *, fixed: bool = False, most: int = 90) -> SuitePlan:
    seeds = SEEDS if fixed else None
    amount = amount_of(until_halfwidth=halfwidth, max_trajectories=most, min_trajectories=30, seeds=seeds)
    precision = SuitePrecision(halfwidth, 30, most)
    plan = SuitePlan.of_amounts(dict.fromkeys(DEVIATIONS, amount), precision, lambda _, it: scores_of(it, None))
    for name, evaluation in known.items():
        plan.know(name, evaluation)
    return plan


def run(plan: SuitePlan, n: int = 10**9) -> int:
    """Run so many trajectories of what a plan lacks, or all; return how many were run."""
    n_run = 0
    while names := plan.next_tasks():
        for name in names:
            if n_run >= n:
                return n_run
            state = plan.states[name]
            evaluation, more = after(name, state.amount_by_now, state.evaluation, n - n_run)
            plan.finish(name, evaluation)
            n_run += more
    return n_run


def evaluations(plan: SuitePlan) -> dict[str, Evaluation]:
    return plan.evaluations(dict.fromkeys(plan.states, ""))


@pytest.mark.parametrize("step", [19, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fixed", [False, True])
def test_an_interrupted_plan_goes_on_to_the_trajectories_of_one_run(fixed, step):
    whole = plan_of({}, fixed=fixed)
    n_whole = run(whole)
    assert n_whole > 120  # several rounds
    for n in range(0, n_whole, step):
        begun = plan_of({}, fixed=fixed)
        run(begun, n)
        resumed = plan_of(evaluations(begun), fixed=fixed)
        assert run(resumed) <= n_whole
        assert evaluations(resumed) == evaluations(whole)
        assert list(resumed.surplus()) == []


@pytest.mark.parametrize(("halfwidth", "most"), [(0.3, 90), (0.4, 200), (1e-6, 100)])
def test_a_finished_plan_goes_on_to_more(halfwidth, most):
    short = plan_of({}, 0.5)
    run(short)
    resumed, whole = plan_of(evaluations(short), halfwidth, most=most), plan_of({}, halfwidth, most=most)
    assert run(resumed) < run(whole)
    assert evaluations(resumed) == evaluations(whole)


def test_a_task_that_failed_in_a_round_fails_in_the_same_round_again():
    plans = [plan_of({}), plan_of({})]
    for plan in plans:
        while names := plan.next_tasks():
            for name in names:
                state = plan.states[name]
                if name == "lift" and state.wanted > 30:
                    plan.fail(name, UsageError("fails"))
                else:
                    plan.finish(name, after(name, state.amount_by_now, state.evaluation, 10**9)[0])
        if plan is plans[0]:
            for name, evaluation in evaluations(plan).items():
                plans[1].know(name, evaluation)
    assert list(evaluations(plans[0])) == ["push", "reach"]
    assert evaluations(plans[0]) == evaluations(plans[1])


def test_trajectories_that_are_not_needed_are_surplus():
    long = plan_of({}, 0.3)
    run(long)
    wide = plan_of(evaluations(long), 0.5)
    assert wide.next_tasks() == []
    assert {name for name, _, _ in wide.surplus()} == {"push", "lift", "reach"} & {
        name for name, it in evaluations(long).items() if len(it) > wide.states[name].wanted
    }
    assert any(n < len(evaluation) for _, evaluation, n in wide.surplus())


def test_a_task_that_does_not_mention_success_fails_alone():
    def scored(name: str, evaluation: Evaluation) -> Any:
        if evaluation.successes is None:
            raise UsageError("no success rate")
        return successes_of(evaluation)

    amount = amount_of(until_halfwidth=0.2, precision_of="success")
    plan = SuitePlan.of_amounts({"says": amount, "silent": amount}, SuitePrecision(0.2, 10, 10_000, "success"), scored)
    while names := plan.next_tasks():
        for name in names:
            wanted = plan.states[name].wanted
            success = (lambda index: index % 2 == 0) if name == "says" else (lambda _: None)
            rows = [
                Row(i, i, 0.0, length=1, terminated=True, truncated=False, success=success(i)) for i in range(wanted)
            ]
            plan.finish(name, evaluation_of(rows, 0))
    assert list(evaluations(plan)) == ["says"]
    assert list(plan.failed) == ["silent"]
    assert plan.states["silent"].wanted == 10
    assert plan.states["says"].wanted > 10
