"""A suite goes on until its mean is known well enough, where that helps most."""

import functools
from typing import Any

import numpy as np
import pytest

from streamsampler import evaluate
from streamsampler.errors import UsageError
from streamsampler.evaluation.suites.scores import TaskScores
from streamsampler.evaluation.suites.suite_precision import SuitePrecision, covariance_of
from tests.evaluation.envs import Known, zero


def scores(*deviations, n=30, shared=True, seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"task {number}": TaskScores(
            rng.normal(0, deviation, n), tuple(range(n)) if shared else tuple(range(number * n, number * n + n))
        )
        for number, deviation in enumerate(deviations)
    }


def test_more_trajectories_go_to_the_task_that_varies_most():
    more = SuitePrecision(0.1, fewest=30, most=10_000).more(scores(1, 4, 1))
    assert max(more, key=more.__getitem__) == "task 1"
    assert sum(more.values()) == 23  # a quarter of 90


def test_tasks_that_vary_together_get_more_than_a_task_that_varies_alone():
    rng = np.random.default_rng(0)
    together, alone = rng.normal(0, 1, 30), rng.normal(0, 1.3, 30)
    tasks = {name: TaskScores(it, tuple(range(30))) for name, it in {"a": together, "b": together, "c": alone}.items()}
    more = SuitePrecision(0.01, fewest=30, most=10_000).more(tasks)
    assert more["a"] + more["b"] > more.get("c", 0)


def test_nothing_more_where_the_interval_is_narrow_or_there_are_the_most():
    tasks = scores(1, 4)
    assert SuitePrecision(10, fewest=30, most=10_000).more(tasks) == {}
    assert SuitePrecision(0.001, fewest=30, most=30).more(tasks) == {}


def test_a_round_ends_where_the_interval_is_expected_to_be_narrow_enough():
    tasks = scores(1, 1, n=100)
    interval = 1.96 * np.sqrt(covariance_of(list(tasks.values())).sum() / 100) / 2
    assert 0 < sum(SuitePrecision(float(0.98 * interval), 30, 10_000).more(tasks).values()) <= 12


def test_equal_values_go_on_until_few_may_be_others():
    equal = {name: TaskScores(np.ones(30), tuple(range(30))) for name in "ab"}
    precision = SuitePrecision(1, fewest=30, most=10_000)
    n = 30
    while more := precision.more({name: TaskScores(np.ones(n), tuple(range(n))) for name in equal}):
        n += more["a"]
    assert n == 299


def test_covariances_are_of_common_seeds():
    values = np.arange(6.0)
    first, second = TaskScores(values, tuple(range(6))), TaskScores(2 * values[2:], (2, 3, 4, 5))
    assert covariance_of([first, second])[0, 1] == pytest.approx(2 * values[2:].var(ddof=1))
    assert covariance_of([first, TaskScores(values, tuple(range(10, 16)))])[0, 1] == 0


SUITE: dict[str, Any] = {"push": Known, "rare": functools.partial(Known, returns="rare")}


def test_the_same_trajectories_for_any_number_of_workers():
    one, other = (
        evaluate(zero, SUITE, until_halfwidth=0.35, seed=1, n_workers=n, normalise={"push": (0, 5), "rare": (0, 1)})
        for n in (0, 2)
    )
    assert one == other
    assert one.to_json() == other.to_json()
    assert one.mean_interval.halfwidth <= 0.35
    assert "is at most 0.35" in one.stopped
    for name, env in SUITE.items():
        own = evaluate(zero, env, n_trajectories=len(one[name]), seed=1, n_workers=0)
        assert np.array_equal(own.returns, one[name].returns)


def test_the_most_trajectories_end_it():
    found = evaluate(zero, SUITE, until_halfwidth=1e-6, max_trajectories=40, seed=1, n_workers=0)
    assert {len(found[name]) for name in found} <= {30, 40}
    assert "there were 40 trajectories of each task, the most" in found.stopped or "not 1e-06" in found.stopped


def test_a_success_rate_may_decide():
    says = functools.partial(Known, success="success")
    found = evaluate(
        zero, {"one": says, "other": says}, until_halfwidth=0.2, precision_of="success", seed=1, n_workers=0
    )
    assert found.success_interval.halfwidth <= 0.2
    with pytest.raises(UsageError, match="task 'push': no success rate"):
        evaluate(zero, {"push": Known}, until_halfwidth=0.2, precision_of="success", n_workers=0)
    found = evaluate(
        zero, {"push": Known, "one": says}, until_halfwidth=0.2, precision_of="success", seed=1, n_workers=0
    )
    assert list(found) == ["one"]
    assert found.success_interval.halfwidth <= 0.2
    assert found.failed == {
        "push": "no success rate: no info of the first 10 trajectories has a key 'success' or 'is_success'"
    }
    with pytest.raises(UsageError, match="guarantee is not for a suite"):
        evaluate(zero, SUITE, until_halfwidth=0.2, guarantee=True, n_workers=0)
