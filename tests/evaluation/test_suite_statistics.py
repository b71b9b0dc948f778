"""Statistics over tasks that share seeds: as SciPy and brute force have them, and refused where no method holds."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamsampler.errors import UsageError
from streamsampler.evaluation.comparison import improvement_interval, probability_of_improvement
from streamsampler.evaluation.intervals import (
    Interval,
    Unknown,
    bounded_interval,
    interquartile_mean,
    mean_interval,
    middle_intervals,
    proportion_interval,
    studentised_interval,
    t_interval,
)
from streamsampler.evaluation.suites.holm import holm
from streamsampler.evaluation.suites.improvement import TaskPairs, suite_improvement, suite_improvement_interval
from streamsampler.evaluation.suites.means import (
    seed_column,
    suite_mean,
    suite_mean_interval,
    suite_success_interval,
    task_interval,
    weighted_interval,
)
from streamsampler.evaluation.suites.middles import (
    stratified_bootstrap,
    suite_interquartile_mean,
    suite_interquartile_mean_interval,
)
from streamsampler.evaluation.suites.profiles import profile
from streamsampler.evaluation.suites.scores import SuiteScores, TaskScores, resampled_counts

close = pytest.approx
EXACT = 1e-9


def normal(n, seed=0):
    return np.random.default_rng(seed).normal(3, 2, n)


def ones(k, n):
    return np.repeat([1.0, 0.0], [k, n - k])


def shared(*columns, first=0):
    """Return tasks whose seeds are 0, 1, 2, …"""
    return [TaskScores(values, tuple(range(first, first + len(values)))) for values in columns]


def apart(*columns):
    """Return tasks that have no seed in common."""
    starts = np.cumsum([0, *map(len, columns)])
    return [shared(values, first=int(start))[0] for values, start in zip(columns, starts, strict=False)]


def nested(n):
    """Return three tasks with n, 2 n and 2 n trajectories on the same first seeds, correlated by them."""
    seed = normal(2 * n, 9)
    return shared((seed + normal(2 * n, 1))[:n], seed + normal(2 * n, 2), 2 * seed + normal(2 * n, 3))


def ends(interval):
    return interval.low, interval.high


def test_tasks_with_the_same_seeds_have_the_interval_of_their_means_on_each_seed():
    tasks = shared(normal(40, 1), 10 * normal(40, 2), normal(40, 3))
    column = np.mean([task.values for task in tasks], axis=0)
    wanted = stats.ttest_1samp(column, 0).confidence_interval(0.9)
    found: Any = suite_mean_interval(tasks, 0.9)
    assert ends(found) == close(tuple(wanted), rel=EXACT)
    assert (found.method, found.level) == ("t", 0.9)
    assert suite_mean(tasks) == close(column.mean())
    # The seeds say which trajectories belong together, and not their order.
    order = np.random.default_rng(0).permutation(40)
    other = [tasks[0], *(TaskScores(task.values[order], tuple(order.tolist())) for task in tasks[1:])]
    assert ends(suite_mean_interval(other, 0.9)) == close(ends(found))


def test_a_suite_of_one_task_has_the_interval_of_its_task():
    for values in (normal(12), np.exp(normal(40)), ones(9, 12), np.full(20, 5.0)):
        assert suite_mean_interval(shared(values)) == mean_interval(values)
        assert suite_interquartile_mean_interval(shared(values)) == middle_intervals(values)["iqm"]


@pytest.mark.parametrize("k", [4, 8, 11])
def test_two_tasks_that_are_one_environment_know_no_more_than_one(k):
    one: Any = mean_interval(ones(k, 12))
    found: Any = suite_mean_interval(shared(ones(k, 12), ones(k, 12)))
    assert (found.method, ends(found)) == (one.method, close(ends(one)))
    varied: Any = suite_mean_interval(shared(normal(50), normal(50)))
    assert ends(varied) == close(ends(t_interval(normal(50))))


def test_tasks_without_common_seeds_have_the_interval_of_welch_or_a_wider_one():
    first, second = normal(40, 1), 5 * normal(15, 2)
    wanted = stats.ttest_ind(first, -second, equal_var=False)
    column, df = seed_column(SuiteScores(apart(first, second)))
    assert df == close(wanted.df)
    assert column.mean() == close((first.mean() + second.mean()) / 2)
    low, high = np.array(wanted.confidence_interval()) / 2
    assert column.std(ddof=1) / math.sqrt(55) == close((high - low) / 2 / stats.t.ppf(0.975, wanted.df))
    found: Any = suite_mean_interval(apart(first, second))
    assert found.low <= low + 0.01 < high - 0.01 <= found.high


def test_the_variance_of_unequal_numbers_has_the_covariances_of_shared_seeds():
    tasks = nested(60)
    suite = SuiteScores(tasks)
    expected = 0.0
    for one in tasks:
        for other in tasks:
            n = min(len(one), len(other))  # they share the seeds of the smaller one
            covariance = np.cov(one.values[:n], other.values[:n])[0, 1]
            expected += covariance * n / (len(one) * len(other)) / len(tasks) ** 2
    column, df = seed_column(suite)
    assert column.mean() == close(suite.mean)
    assert column.var(ddof=1) / suite.n_seeds == close(expected, rel=0.05)
    assert 30 < df < suite.n_seeds
    rng = np.random.default_rng(1)
    means = [
        np.mean([(task.values * counts[: len(task)]).sum() / counts[: len(task)].sum() for task in tasks])
        for counts in rng.multinomial(120, np.full(120, 1 / 120), 4_000)
    ]
    assert column.std(ddof=1) / math.sqrt(120) == close(np.std(means), rel=0.05)


def test_a_column_of_the_same_seeds_is_the_limit_of_the_general_one(monkeypatch):
    suite = SuiteScores(shared(normal(20, 1), normal(20, 2)))
    column, df = seed_column(suite)
    monkeypatch.setattr(SuiteScores, "is_complete", False)
    general, general_df = seed_column(suite)
    assert general == close(column)
    assert general_df == close(df)


def test_few_trajectories_and_constant_tasks_have_no_interval_unless_bounds_are_known():
    few = shared(normal(50), normal(9))
    assert suite_mean_interval(few) == Unknown("a task has 9 trajectories, fewer than 10")
    assert suite_mean_interval(few, of="difference") == Unknown("a task has 9 pairs, fewer than 10")
    constant = shared(np.full(50, 3.0), np.full(50, 500.0))
    assert suite_mean_interval(constant) == Unknown("all returns of each task are equal")
    assert suite_mean_interval(shared(normal(50), np.array([math.inf] * 50))) == Unknown("a return is not finite")
    bounded = [TaskScores(task.values, task.seeds, (0, 1000)) for task in constant]
    found: Any = suite_mean_interval(bounded)
    assert ends(found) == close(ends(bounded_interval(np.full(50, 251.5), (0, 1000))))
    far = [TaskScores(task.values, task.seeds, (-20, 30)) for task in few]
    assert 3 in suite_mean_interval(far)  # type: ignore[operator]


def test_a_constant_task_widens_by_what_was_not_seen_of_it():
    tasks = shared(10 + normal(50), np.full(50, 500.0))
    plain: Any = t_interval((10 + normal(50) + 500) / 2)
    found: Any = suite_mean_interval(tasks)
    assert found.method == "t, widened"
    assert plain.low - found.low == close((1 - 0.025 ** (1 / 50)) * 500 / 2)
    assert found.high == close(plain.high), "500 is the largest score of all"
    small: Any = suite_mean_interval(shared(1000 * normal(50), np.full(50, 5.0)))
    assert small.method == "t, widened"
    near = shared(*(normal(50, seed) for seed in range(30)), np.full(50, 3.0))
    assert suite_mean_interval(near).method == "t"


def test_a_skewed_column_has_the_wider_end_of_t_and_the_bootstrap_on_either_side():
    for n in (15, 40):
        columns = [np.random.default_rng(seed).exponential(size=n) for seed in range(2)]
        column = np.mean(columns, axis=0)
        t, studentised = t_interval(column), studentised_interval(column)
        assert studentised.low > t.low
        assert studentised.high > t.high
        found: Any = suite_mean_interval(shared(*columns))
        assert ends(found) == close((t.low, studentised.high))
        assert found.method == "t and studentised bootstrap"


def test_the_interval_of_a_task_is_that_of_a_task_that_stands_for_all():
    for values in (normal(15), np.random.default_rng(1).standard_t(2, 40), ones(3, 30), np.zeros(20)):
        task = shared(values)[0]
        found: Any = task_interval(task)
        wanted: Any = suite_mean_interval([task, task], of="difference")
        if isinstance(wanted, Unknown):
            assert found == wanted
        else:
            assert (found.method, ends(found)) == (wanted.method, close(ends(wanted)))
    with pytest.raises(UsageError, match="level must be between"):
        task_interval(task, 95)


def test_rare_failures_are_scaled_to_what_each_task_may_lose():
    tasks = shared(500 * ones(19, 20), ones(18, 20)[::-1], np.full(20, 1.0))
    found: Any = suite_mean_interval(tasks)
    column = np.mean([task.values for task in tasks], axis=0)
    assert found == bounded_interval(column, (0, (500 + 1 + 500) / 3))
    assert found.method == "Gaffke"
    once: Any = suite_mean_interval(shared(ones(20, 20), ones(19, 20)))
    assert once.high == 1, "it reaches what most have"
    # One task fails on few seeds of many: the seeds are weighted.
    uneven: Any = suite_mean_interval(apart(ones(29, 30), ones(19, 20)))
    assert uneven.method == "weighted seeds"
    assert uneven.low < 0.9


def test_weighted_seeds_are_gaffkes_but_for_what_is_drawn(monkeypatch):
    suite = SuiteScores(shared(np.random.default_rng(1).beta(2, 5, 15), np.random.default_rng(2).beta(2, 5, 15)))
    wanted = weighted_interval(suite, [(0, 1), (0, 2)])
    monkeypatch.setattr(SuiteScores, "is_complete", False)
    found = weighted_interval(suite, [(0, 1), (0, 2)])
    assert ends(found) == close(ends(wanted), abs=0.004)
    assert found == weighted_interval(suite, [(0, 1), (0, 2)]), "its generator has no fixed seed"


def test_success_rates_have_an_interval_from_the_first_trajectory_on():
    assert ends(suite_success_interval(shared(ones(7, 9)))) == close(ends(proportion_interval(7, 9)))
    two: Any = suite_success_interval(shared(ones(9, 9), ones(9, 9)))
    assert ends(two) == close(ends(proportion_interval(9, 9)))
    many: Any = suite_success_interval(shared(*(np.roll(ones(25, 50), 7 * shift) for shift in range(20))))
    assert 0 < many.low < 0.5 < many.high < 1
    with pytest.raises(UsageError, match=r"a success is 0 or 1, not 0\.5"):
        suite_success_interval(shared(np.array([0.5, 1.0])))


def test_the_interquartile_mean_is_that_of_all_scores_and_each_task_weighs_the_same():
    for n, n_tasks in ((1, 1), (1, 3), (3, 5), (10, 2), (33, 7)):
        columns = [normal(n, seed) * (1 + seed) for seed in range(n_tasks)]
        wanted = interquartile_mean(np.concatenate(columns))
        assert suite_interquartile_mean(shared(*columns)) == close(wanted, rel=EXACT)
        assert suite_interquartile_mean(apart(*columns)) == close(wanted, rel=EXACT)
    first, second = normal(40, 1), normal(20, 2)
    doubled = interquartile_mean(np.concatenate([first, second, second]))
    assert suite_interquartile_mean(shared(first, second)) == close(doubled, rel=EXACT)


def brute(columns, statistic, draw, n=3_000):
    rng = np.random.default_rng(3)
    drawn = [statistic(np.stack([column[index] for column, index in zip(columns, draw(rng), strict=True)]))
             for _ in range(n)]  # fmt: skip
    return np.quantile(drawn, [0.025, 0.975])


@pytest.mark.parametrize("statistic", ["mean", "interquartile mean"])
def test_bootstraps_resample_seeds_with_their_tasks_and_tasks_apart_that_share_none(statistic):
    columns = [normal(40, 1), normal(40, 1) + normal(40, 2) / 3, normal(40, 3)]
    of = np.mean if statistic == "mean" else lambda scores: interquartile_mean(scores.ravel())
    together = brute(columns, of, lambda rng: [rng.integers(0, 40, 40)] * 3)
    stratified = brute(columns, of, lambda rng: rng.integers(0, 40, (3, 40)))
    assert together[1] - together[0] > 1.2 * (stratified[1] - stratified[0])
    for tasks, wanted in ((shared(*columns), together), (apart(*columns), stratified)):
        found = stratified_bootstrap(tasks, statistic)
        assert ends(found) == close(tuple(wanted), abs=0.08 * (wanted[1] - wanted[0]))
        assert found == stratified_bootstrap(tasks, statistic), "its generator has no fixed seed"


def test_the_interval_of_the_interquartile_mean_is_a_wider_bootstrap_from_30_on():
    columns = [normal(29, 1), normal(30, 2)]
    assert suite_interquartile_mean_interval(shared(*columns)) == Unknown("a task has 29 trajectories, fewer than 30")
    tasks = shared(*(normal(30, seed) for seed in range(4)))
    found: Any = suite_interquartile_mean_interval(tasks)
    plain = stratified_bootstrap(tasks, "interquartile mean")
    assert found.halfwidth == close(1.11 * plain.halfwidth, rel=0.04)
    assert (found.method, found.level) == ("percentile bootstrap", 0.95)
    constant = shared(np.full(30, 2.0), np.full(30, 3.0))
    assert suite_interquartile_mean_interval(constant) == Unknown("all returns of each task are equal")
    infinite = shared(np.full(30, math.inf), normal(30))
    assert suite_interquartile_mean_interval(infinite) == Unknown("a return is not finite")


def test_resamples_have_as_many_seeds_of_each_part():
    first, second = nested(5), shared(normal(8), first=100)
    suite = SuiteScores([*first, *second])
    assert [len(part) for part in suite.parts] == [10, 8]
    counts = np.concatenate(list(resampled_counts(suite, 50)))
    assert counts.shape == (50, 18)
    assert (counts[:, :10].sum(axis=1) == 10).all()
    assert (counts[:, 10:].sum(axis=1) == 8).all()


def test_a_profile_is_the_share_of_runs_above_each_threshold_averaged_over_tasks():
    thresholds = np.linspace(-3, 9, 25)
    tasks = shared(normal(30, 1), normal(20, 2))
    found = profile(tasks, thresholds)
    wanted = [np.mean([(task.values > threshold).mean() for task in tasks]) for threshold in thresholds]
    assert found.shares == close(np.array(wanted))
    assert (found.low <= found.shares).all()
    assert (found.shares <= found.high).all()
    assert all((np.diff(it) <= 0).all() for it in (found.shares, found.low, found.high))
    assert (found.low >= 0).all()
    assert (found.high <= 1).all()
    assert found.high[-1] > 0, "a share of none has a width"
    at_value = profile(shared(np.array([1.0, 2.0])), np.array([1.0]))
    assert at_value.shares == [0.5], "above, not at"


def test_a_band_is_the_exact_interval_of_the_share_at_each_threshold():
    for tasks in (shared(ones(7, 20)), shared(ones(7, 20), ones(7, 20))):
        found, wanted = profile(tasks, np.array([0.5])), proportion_interval(7, 20)
        assert (found.low[0], found.high[0]) == close(ends(wanted), abs=0.01)
    uneven = apart(ones(7, 20), ones(3, 10))
    found = profile(uneven, np.array([0.5]))
    weighted = weighted_interval(SuiteScores(uneven), [(0, 1), (0, 1)])
    assert (found.low[0], found.high[0]) == close(ends(weighted))


def test_a_profile_of_what_is_no_number_is_refused():
    with pytest.raises(UsageError, match="no number"):
        profile(shared(np.array([1.0, math.nan])), np.array([1.0]))
    with pytest.raises(UsageError, match=r"shape \(0,\)"):
        profile(shared(normal(5)), np.array([]))


def test_the_probability_of_improvement_is_averaged_over_tasks():
    pairs = [TaskPairs(normal(30, k), normal(30, k + 1) + k / 2, tuple(range(30))) for k in range(3)]
    wanted = [probability_of_improvement(task.first, task.second) for task in pairs]
    assert suite_improvement(pairs) == close(np.mean(wanted))
    for task in pairs:
        found: Any = suite_improvement_interval([task])
        assert found == improvement_interval(task.first, task.second)
        twice: Any = suite_improvement_interval([task, task])
        assert ends(twice) == close(ends(found))
    found = suite_improvement_interval(pairs)
    assert found.low < suite_improvement(pairs) < found.high
    same: Any = suite_improvement_interval([pairs[1]] * 4)
    assert ends(same) == close(ends(improvement_interval(pairs[1].first, pairs[1].second)))
    apart_from_it = TaskPairs(pairs[1].first, pairs[1].second, tuple(range(30, 60)))
    narrower: Any = suite_improvement_interval([pairs[1], apart_from_it])
    assert narrower.halfwidth < 0.8 * same.halfwidth
    few = TaskPairs(normal(9), normal(9, 1), tuple(range(9)))
    assert suite_improvement_interval([pairs[0], few]) == Unknown("a task has 9 pairs, fewer than 10")
    missing = TaskPairs(np.full(12, math.nan), normal(12), tuple(range(12)))
    assert suite_improvement_interval([missing]) == Unknown("a return is no number")


def test_differences_are_equal_where_their_returns_are_but_for_rounding():
    first = np.linspace(1e6, 2e6, 30)
    pairs = TaskPairs(first, first + 0.1, tuple(range(30)), (0, 3e6))
    assert pairs.differences.is_constant
    assert pairs.differences.bounds == (-3e6, 3e6)
    bounded: Any = suite_mean_interval([pairs.differences] * 2, of="difference")
    assert bounded.low < 0 < bounded.high
    infinite = TaskPairs(np.full(30, math.inf), np.full(30, math.inf), tuple(range(30))).differences
    assert suite_mean_interval([infinite] * 2, of="difference") == Unknown("a difference is not finite")


def test_differences_that_are_mostly_0_are_scaled_to_either_sign():
    lost = -ones(3, 50)
    found: Any = suite_mean_interval(shared(lost, np.zeros(50)), of="difference")
    assert found == bounded_interval(np.mean([lost, np.zeros(50)], axis=0), (-1, 1))
    assert found.high > 0


def holm_of(p_values, alpha=0.05):
    """Return which are rejected, as Holm has it."""
    order = np.argsort(p_values)
    rejected = set()
    for rank, number in enumerate(order):
        if p_values[number] > alpha / (len(p_values) - rank):
            break
        rejected.add(int(number))
    return rejected


@pytest.mark.parametrize("seed", range(8))
def test_holm_finds_what_it_finds_of_p_values(seed):
    rng = np.random.default_rng(seed)
    columns = [rng.normal(rng.choice([0, 0.4, -0.9]), 1, 30) for _ in range(12)]
    wanted = holm_of(np.array([stats.ttest_1samp(column, 0).pvalue for column in columns]))
    found = holm([functools.partial(t_interval, column) for column in columns])
    assert {number for number, it in enumerate(found) if it.sure} == wanted
    assert wanted, "an example that shows nothing"
    for it, column in zip(found, columns, strict=True):
        assert isinstance(it.interval, Interval)
        assert it.sure == (None if 0 in it.interval else "better" if column.mean() > 0 else "worse")


def test_holm_leaves_tasks_without_an_interval_unsure():
    clear, none = (lambda level: Interval(1, 2, "t", level)), lambda _: Unknown("9 pairs, fewer than 10")
    found = holm([none, clear, clear])
    assert [it.sure for it in found] == [None, "better", "better"]
    assert found[1].interval.level == close(1 - 0.05 / 3)
    assert holm([]) == []
    with pytest.raises(UsageError, match="level must be between 0 and 1"):
        holm([clear], 95)


def test_scores_that_fit_no_seeds_are_refused():
    refused: Any = (
        (normal(3), (1, 2), None, "2 seeds for 3 scores"),
        (normal(3), (1, 2, 1), None, "seed 1 is repeated"),
        (np.zeros((2, 2)), (1, 2), None, r"shape \(2, 2\)"),
        (np.zeros(0), (), None, r"shape \(0,\)"),
        (np.array([0.5, 7.0]), (1, 2), (0, 1), r"bounds are \(0, 1\), and there is a score of 7"),
        (np.array([0.5, math.nan]), (1, 2), (0, 1), "a score of nan"),
        (np.array([0.5]), (1,), (1, 0), "two finite numbers in ascending order"),
    )
    for values, seeds, bounds, why in refused:
        with pytest.raises(UsageError, match=why):
            TaskScores(values, seeds, bounds)
    for refuse in (suite_mean, suite_mean_interval, suite_interquartile_mean, suite_improvement):
        with pytest.raises(UsageError, match="at least one task"):
            refuse([])
    for interval in (suite_mean_interval, suite_interquartile_mean_interval, suite_success_interval):
        with pytest.raises(UsageError, match="level must be between 0 and 1"):
            interval(shared(ones(1, 2)), 95)
    with pytest.raises(UsageError, match="2 seeds for 1 score"):
        TaskPairs(normal(2), normal(1), (1, 2))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(10, 25), min_size=2, max_size=4),
    starts=st.lists(st.integers(0, 30), min_size=4, max_size=4),
    kinds=st.lists(st.sampled_from(["normal", "two", "constant", "skewed"]), min_size=4, max_size=4),
    seed=st.integers(0, 10_000),
)
def test_intervals_contain_the_mean_and_are_mirrored_with_the_scores(sizes, starts, kinds, seed):
    rng = np.random.default_rng(seed)
    draw: dict[str, Any] = {
        "normal": lambda n: rng.normal(3, 2, n),
        "two": lambda n: (rng.random(n) < 0.8) * 500.0,
        "constant": lambda n: np.full(n, 7.0),
        "skewed": lambda n: rng.exponential(4, n),
    }
    tasks = [
        TaskScores(draw[kind](n), tuple(range(start, start + n)))
        for n, start, kind in zip(sizes, starts, kinds, strict=False)
    ]
    found = suite_mean_interval(tasks)
    if not isinstance(found, Interval):
        assert found.why == "all returns of each task are equal"
        return
    assert found.low < suite_mean(tasks) < found.high or math.isclose(found.halfwidth, 0, abs_tol=1e-9)
    mirrored: Any = suite_mean_interval([TaskScores(-task.values, task.seeds) for task in tasks])
    assert mirrored.method == found.method
    assert (-mirrored.high, -mirrored.low) == close(ends(found), abs=0.03 * (found.high - found.low))
    wider: Any = suite_mean_interval(tasks, 0.99)
    assert wider.low <= found.low
    assert found.high <= wider.high
