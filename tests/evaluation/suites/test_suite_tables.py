"""The result of a suite: statistics over tasks, groups, tables."""

import csv
import functools
import io
from typing import Any

import numpy as np
import pytest

from streamsampler import evaluate
from streamsampler.errors import UsageError
from streamsampler.evaluation.intervals import interquartile_mean
from tests.evaluation.envs import Known, zero

SUITE: dict[str, Any] = {"push": Known, "arm/lift": Known, "arm/reach": functools.partial(Known, returns="rare")}
SCALES = {"push": (0, 20), "arm/lift": (10, 0), "arm/reach": (0, 1)}


@functools.cache
def found(n=12, scaled=False):
    return evaluate(zero, SUITE, n_trajectories=n, seed=2, n_workers=0, normalise=SCALES if scaled else None)


def test_each_task_has_the_same_weight():
    suite = found()
    assert suite.mean == pytest.approx(np.mean([suite[name].mean for name in suite]))
    assert suite.interquartile_mean == pytest.approx(
        interquartile_mean(np.concatenate([suite[name].returns for name in suite]))
    )
    numbers = {"push": 20, "arm/lift": 10, "arm/reach": 13}
    unequal = evaluate(zero, SUITE, n_trajectories=numbers, seed=2, n_workers=0)
    assert unequal.mean == pytest.approx(np.mean([unequal[name].mean for name in unequal]))


def test_statistics_are_of_scores_where_returns_are_normalised():
    suite = found(scaled=True)
    assert suite.scores("push") == pytest.approx(suite["push"].returns / 20)
    assert suite.scores("arm/lift") == pytest.approx((suite["arm/lift"].returns - 10) / -10)
    assert suite.mean == pytest.approx(np.mean([suite.scores(name).mean() for name in suite]))
    assert suite["push"] == found()["push"]


def test_groups_have_statistics_of_their_own():
    suite = found()
    assert list(suite.groups) == ["arm"]
    arm = suite.groups["arm"]
    assert list(arm) == ["arm/lift", "arm/reach"]
    assert arm.mean == pytest.approx((suite["arm/lift"].mean + suite["arm/reach"].mean) / 2)
    with pytest.raises(KeyError, match=r"'arm' is a group of tasks: suite\.groups"):
        suite["arm"]
    with pytest.raises(KeyError, match="there is no task 'pull'; the tasks are push, arm/lift, arm/reach"):
        suite["pull"]


def test_success_rates_are_known_where_each_task_says_of_success():
    says = functools.partial(Known, success="success")
    suite = evaluate(zero, {"one": says, "other": says}, n_trajectories=20, seed=2, n_workers=0)
    assert suite.success_rate == suite["one"].success_rate
    assert suite.success_interval
    assert evaluate(zero, {"one": says, "push": Known}, n_trajectories=20, n_workers=0).success_rate is None


def test_the_profile_is_the_mean_of_the_tasks_shares():
    suite = found(scaled=True)
    found_profile = suite.profile([-1, 0.4, 0.9, 50])
    for at, share in zip([-1, 0.4, 0.9, 50], found_profile.shares, strict=True):
        assert share == pytest.approx(np.mean([(suite.scores(name) > at).mean() for name in suite]))
    assert (found_profile.shares[0], found_profile.shares[-1]) == (1, 0)
    assert (found_profile.low <= found_profile.shares).all()
    assert (found_profile.shares <= found_profile.high).all()
    with pytest.raises(UsageError, match="a threshold is no number"):
        suite.profile([float("nan")])


@pytest.mark.parametrize("scaled", [False, True])
def test_the_table_has_a_row_for_each_task_group_and_the_suite(scaled):
    suite = found(scaled=scaled)
    rows = list(csv.DictReader(io.StringIO(suite.to_csv())))
    assert [(row["kind"], row["name"]) for row in rows] == [
        ("task", "push"), ("task", "arm/lift"), ("task", "arm/reach"), ("group", "arm"), ("suite", "all tasks"),
    ]  # fmt: skip
    assert float(rows[0]["mean_return"]) == suite["push"].mean
    assert float(rows[0]["mean_return_low"]) == suite["push"].mean_interval.low
    assert float(rows[-1]["mean_score" if scaled else "mean_return"]) == suite.mean
    assert (rows[0]["mean_score"] == "") is not scaled
    lines = suite.to_markdown().splitlines()
    assert lines[0].startswith("| task | trajectories | mean return |")
    assert lines[2].startswith("| push | 12 | ")
    assert lines[-1].startswith("| **all tasks** | **36** |")
    assert len(lines) == 2 + len(rows)
    text = str(suite)
    assert all(name in text for name in suite)
    assert "group arm: 2 tasks" in text
    assert "over tasks, each with the same weight" in text


def test_why_a_task_has_no_interval_is_said():
    assert "push: no interval of the mean return holds: 3 trajectories, fewer than 10" in str(found(3))
