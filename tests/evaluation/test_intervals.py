"""Intervals, tests and quantiles: as SciPy has them, and refused where none holds."""

import math
import warnings
from typing import Any, cast

import numpy as np
import pytest
from scipy import special, stats

from streamsampler.errors import UsageError
from streamsampler.evaluation.comparison import (
    correlation,
    improvement_interval,
    probability_of_improvement,
    rate_difference_interval,
    unpaired_equivalent,
)
from streamsampler.evaluation.intervals import (
    Unknown,
    bootstrap_intervals,
    bounded_interval,
    in_two_groups,
    interquartile_mean,
    is_skewed,
    mean_interval,
    middle_intervals,
    proportion_interval,
    skewness,
    studentised_interval,
    t_interval,
    unseen_share,
)
from streamsampler.evaluation.quantiles import (
    beta_quantile,
    log_beta,
    normal_quantile,
    student_quantile,
    student_tail,
)
from streamsampler.evaluation.rules import BettingSequence, DiscordantPairs

close = pytest.approx
EXACT = 1e-9


def normal(n, seed=0):
    return np.random.default_rng(seed).normal(3, 2, n)


def test_quantiles_are_those_of_scipy():
    for probability in (0.0005, 0.025, 0.1, 0.5, 0.75, 0.95, 0.975, 0.99999):
        assert normal_quantile(probability) == close(stats.norm.ppf(probability), rel=EXACT, abs=EXACT)
        for df in (1, 2, 3, 5, 9, 10, 29, 99, 1_000, 4_999, 5_000, 10**6):
            assert student_quantile(probability, df) == close(stats.t.ppf(probability, df), rel=EXACT, abs=EXACT)
    for t in (0.0, 0.3, 1.0, 2.5, 40.0):
        for df in (1, 4, 30, 700):
            assert student_tail(t, df) == close(stats.t.sf(t, df), rel=EXACT, abs=EXACT)
    assert [log_beta(a, 0.5) for a in (0.5, 3, 900)] == close(
        [special.betaln(a, 0.5) for a in (0.5, 3, 900)], rel=EXACT
    )
    for a, b in ((1, 1), (1, 299), (3, 8), (299, 1), (400, 600), (10, 99_991)):
        for probability in (0.0005, 0.025, 0.5, 0.975, 0.99999):
            wanted = stats.beta.ppf(probability, a, b)
            assert beta_quantile(probability, a, b) == close(wanted, rel=EXACT)
    assert (beta_quantile(0.0, 2, 3), beta_quantile(1.0, 2, 3)) == (0, 1)


def test_intervals_and_statistics_are_those_of_scipy():
    for n in (2, 10, 31, 500):
        found, wanted = t_interval(normal(n), 0.9), stats.ttest_1samp(normal(n), 0).confidence_interval(0.9)
        assert (found.low, found.high) == close(tuple(wanted), rel=EXACT)
        assert found.method == "t"
        assert found.halfwidth == close((wanted.high - wanted.low) / 2, rel=EXACT)
    for successes, n in ((0, 1), (0, 30), (30, 30), (7, 12), (499, 1_000)):
        found, wanted = proportion_interval(successes, n), stats.binomtest(successes, n).proportion_ci(method="exact")
        assert (found.low, found.high) == close((wanted.low, wanted.high), rel=EXACT, abs=EXACT)
        assert 0 <= found.low <= successes / n <= found.high <= 1
    for n in (3, 10, 101):
        first, second = normal(n), np.round(normal(n, 1))
        assert skewness(first**3) == close(stats.skew(first**3, bias=False), rel=EXACT)
        assert interquartile_mean(first) == close(stats.trim_mean(first, 0.25), rel=EXACT)
        u = stats.mannwhitneyu(second, np.round(first)).statistic
        assert probability_of_improvement(np.round(first), second) == close(u / n**2, rel=EXACT)
        assert correlation(first, second) == close(stats.pearsonr(first, second).statistic, rel=EXACT)


def test_the_percentile_bootstrap_is_scipys_but_for_what_is_drawn():
    values = np.random.default_rng(4).exponential(size=300)
    found = bootstrap_intervals(values)
    for name, statistic in (("median", np.median), ("iqm", lambda x, axis: stats.trim_mean(x, 0.25, axis=axis))):
        wanted = stats.bootstrap(
            (values,), statistic, n_resamples=9_999, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        assert (found[name].low, found[name].high) == close(tuple(wanted), abs=0.1 * (wanted.high - wanted.low))
        assert found[name].method == "percentile bootstrap"
    assert found == bootstrap_intervals(values), "its generator has no fixed seed"


def test_the_studentised_bootstrap_leans_where_the_values_do():
    values = np.random.default_rng(4).exponential(size=40)
    found, t = studentised_interval(values), t_interval(values)
    mean = values.mean()
    assert found.high - mean > mean - found.low > 0
    assert found.high > t.high
    mirrored = studentised_interval(-values)
    assert (-mirrored.high, -mirrored.low) == close((found.low, found.high))


def test_few_or_uneven_values_have_no_interval():
    values = normal(29)
    assert isinstance(mean_interval(values[:9]), Unknown)
    assert mean_interval(values[:10]).method == "t"
    skewed = np.exp(normal(30))
    assert is_skewed(skewed[:29])
    assert "skewed" in mean_interval(skewed[:29]).why
    assert mean_interval(skewed).method == "studentised bootstrap"
    grouped = np.concatenate([np.zeros(3), 100 + normal(17)])
    assert in_two_groups(grouped)
    assert "two groups" in mean_interval(grouped).why
    assert not in_two_groups(values)
    assert not is_skewed(values)
    for unknown in middle_intervals(values).values():
        assert unknown == Unknown("29 trajectories, fewer than 30")
    assert improvement_interval(values[:9], values[:9]) == Unknown("9 pairs, fewer than 10")


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0], [2.0] * 12, [0.1] * 40, []])
def test_values_that_do_not_vary_are_neither_skewed_nor_grouped(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = np.array(values)
        assert len(array) < 3 or skewness(array) == 0
        assert not is_skewed(array)
        assert not in_two_groups(array)


def ones(k, n):
    return np.repeat([1.0, 0.0], [k, n - k])


def test_two_values_have_the_exact_interval_of_their_shares_scaled_to_them():
    for n, k in ((10, 5), (11, 3), (30, 1), (40, 38), (200, 100), (200, 197)):
        wanted = stats.binomtest(k, n).proportion_ci(method="exact")
        for low, high in ((0.0, 1.0), (-200.0, 300.0), (0.1, 0.1 + 1e-6)):
            found: Any = mean_interval(low + (high - low) * ones(k, n))
            assert found.method == "Clopper-Pearson"
            ends = low + wanted.low * (high - low), low + wanted.high * (high - low)
            assert (found.low, found.high) == close(ends, rel=EXACT, abs=1e-8 * (high - low))
    for n, k in ((10, 1), (20, 2), (29, 28), (29, 27)):
        found = mean_interval(ones(k, n))
        reached, other = (found.low, found.high) if k < n / 2 else (1 - found.high, 1 - found.low)
        wanted = stats.binomtest(min(k, n - k), n).proportion_ci(method="exact")
        assert (reached, other) == (0, close(wanted.high, rel=EXACT)), "what most have may be what nearly all have"


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.98])
def test_intervals_of_two_values_hold_wherever_they_are_printed(rate):
    for n in [*range(10, 34), 60, 120]:
        chances = stats.binom.pmf(np.arange(n + 1), n, rate)
        found = [(mean_interval(ones(k, n)), middle_intervals(ones(k, n))) for k in range(1, n)]
        for name, intervals, true in (
            ("mean", [mean for mean, _ in found], rate),
            ("median", [middle["median"] for _, middle in found], np.round(rate + 1e-9) if rate != 0.5 else 0.5),
            ("iqm", [middle["iqm"] for _, middle in found], min(1.0, max(0.0, 2 * rate - 0.5))),
        ):
            held = sum(chance for chance, it in zip(chances[1:-1], intervals, strict=True) if true in cast("Any", it))
            assert held / chances[1:-1].sum() >= 0.93, (name, n)


def test_equal_values_have_no_interval_unless_their_bounds_are_known():
    for n in (10, 50, 400):
        values = np.full(n, 5.0)
        assert mean_interval(values) == Unknown("all returns are equal")
        assert set(middle_intervals(values).values()) == {Unknown("all returns are equal")}
        share = 1 - stats.binomtest(n, n).proportion_ci(method="exact").low
        found: Any = mean_interval(values, bounds=(0, 10))
        assert (found.low, found.high) == close((5 - 5 * share, 5 + 5 * share))
        found = mean_interval(values, bounds=(0, 5))
        assert (found.low, found.high, found.method) == (close(5 - 5 * share), 5, "Clopper-Pearson")
        middle: Any = middle_intervals(values, bounds=(0, 10))
        assert (middle["median"].low, middle["median"].high) == (5, 5), "fewer than half differ"
        assert middle["iqm"].low == close(5 - 5 * max(0, 2 * share - 0.5))
    assert [n for n in (298, 299) if unseen_share(n) <= 0.01] == [299]
    rounded = np.array([0.1 + 0.2] * 9 + [0.3] * 9)
    assert mean_interval(rounded) == Unknown("all returns are equal")
    assert mean_interval(np.append(rounded, 5)).method == "Clopper-Pearson"


def test_where_most_are_equal_the_others_may_be_farther_away_than_those_that_were_seen():
    few = np.append(np.full(94, 500.0), 400 + np.arange(6))
    found: Any = mean_interval(few)
    assert found.method == "Gaffke"
    assert found == bounded_interval(few, (300, 500))
    many = np.append(np.full(80, 500.0), 400 + np.arange(20))
    assert mean_interval(many) == bounded_interval(many, (400, 500))
    two: Any = mean_interval(np.array([0.0] * 48 + [1.0, 2.0]))
    assert two.low == 0, "it reaches what most have"
    groups = np.concatenate([normal(40) / 100, 50 + normal(3) / 100])
    assert mean_interval(groups).method == "Gaffke"


def test_an_interval_of_bounded_values_is_gaffkes():
    values = np.random.default_rng(3).beta(2, 5, 12)
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.ones(13), 200_000)
    wanted = [np.quantile(weights @ np.append(values, end), tail) for end, tail in ((0, 0.025), (1, 0.975))]
    found = bounded_interval(values, (0, 1))
    assert (found.low, found.high) == close(wanted, abs=0.004)
    assert found == bounded_interval(values, (0, 1)), "its generator has no fixed seed"
    for k in (0, 3, 12):
        assert bounded_interval(ones(k, 12), (0, 1)) == proportion_interval(k, 12)
    few: Any = mean_interval(values[:3], bounds=(0, 1))
    assert few == bounded_interval(values[:3], (0, 1)), "fewer than ten have one, too"
    wide: Any = mean_interval(normal(40), bounds=(-100, 100))
    assert wide == t_interval(normal(40)), "bounds that are far away do not widen an interval that holds without"
    near = 0.5 + normal(12, 2) / 8
    assert cast("Any", mean_interval(near, bounds=(0.9, 5))).low == 0.9


@pytest.mark.parametrize("values", [[math.nan] * 12, [1.0] * 40 + [math.inf], [math.inf, -math.inf] * 10])
def test_values_that_are_not_finite_have_no_interval(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mean_interval(np.array(values)) == Unknown("a return is not finite")
        assert set(middle_intervals(np.array(values)).values()) == {Unknown("a return is not finite")}


def slow_betting(values, mean, level=0.95):
    """Say whether a bet refutes a mean in [0, 1]: as the paper has it, without a grid."""
    above = below = 1.0
    for t in range(1, len(values) + 1):
        seen = values[: t - 1]
        means = [(0.5 + sum(seen[: i + 1])) / (i + 2) for i in range(t - 1)]
        variance = (0.25 + sum((x - m) ** 2 for x, m in zip(seen, means, strict=True))) / t
        bet = math.sqrt(2 * math.log(2 / (1 - level)) / (variance * t * math.log(t + 1)))
        gain = values[t - 1] - mean
        above *= 1 + (min(bet, 0.5 / mean) if mean else bet) * gain
        below *= 1 - (min(bet, 0.5 / (1 - mean)) if mean < 1 else bet) * gain
        if max(above, below) / 2 >= 1 / (1 - level):
            return True
    return False


def test_a_betting_sequence_is_all_means_that_no_bet_refuted():
    low, high = -200, 300
    values = np.random.default_rng(2).beta(2, 5, 60).tolist()
    betting = BettingSequence(low, high)
    widths = []
    for n, value in enumerate(values, 1):
        betting.add(low + (high - low) * value)
        widths.append(betting.interval.halfwidth)
        if n in (12, 20, 60):  # The first mean of the grid that is not refuted, and the one before it, to the step.
            for end, step in ((betting.interval.low, 1 / 2000), (betting.interval.high, -1 / 2000)):
                mean = (end - low) / (high - low)
                assert slow_betting(values[:n], mean)
                assert not slow_betting(values[:n], mean + step)
    assert sorted(widths, reverse=True) == widths
    for mean in np.linspace(0.05, 0.95, 19):
        inside = betting.interval.low <= low + (high - low) * mean <= betting.interval.high
        assert inside is not slow_betting(values, mean), mean


def test_values_that_are_no_numbers_of_runs_are_refused_and_a_list_is_taken():
    runs = np.arange(24.0).reshape(12, 2) ** 2
    means = runs.mean(axis=1)
    assert mean_interval(means.tolist()) == mean_interval(means)
    with pytest.raises(UsageError, match=r"shape \(12, 2\) .* such as returns\.mean\(axis=1\)"):
        mean_interval(runs)
    with pytest.raises(UsageError, match=r"level must be between 0 and 1, such as 0\.95, not 95"):
        mean_interval(means, 95)


def test_values_outside_their_bounds_are_refused():
    with pytest.raises(UsageError, match=r"bounds are \(0, 1\), but a value is 1\.5"):
        BettingSequence().add(1.5)
    for bounds in ((1, 0), (0, math.inf), (math.nan, 1)):
        with pytest.raises(UsageError, match="two finite numbers in ascending order"):
            BettingSequence(*bounds)


def test_discordant_pairs_are_a_mixture_of_bets():
    pairs = DiscordantPairs()
    for first, second in [(True, True), (False, True), (False, False), (False, True), (True, False)] + 9 * [
        (False, True)
    ]:
        pairs.add(first, second)
    assert (pairs.wins, pairs.losses) == (11, 1)
    wanted = special.betaln(11.5, 1.5) - special.betaln(0.5, 0.5) + 12 * math.log(2)
    assert pairs.log_capital == close(wanted, rel=EXACT)
    assert pairs.p_value == close(math.exp(-wanted), rel=EXACT)
    for _ in range(8):
        pairs.add(True, False)
    assert pairs.p_value == close(math.exp(-wanted), rel=EXACT), "a test that has decided takes it back"


def test_pairs_are_worth_what_their_correlation_saves():
    shared = normal(4_000, 1)
    first, second = shared + normal(4_000, 2) / 2, shared + normal(4_000, 3) / 2
    r: Any = correlation(first, second)
    assert r == close(0.8, abs=0.02)
    assert unpaired_equivalent(first, second) == close(4_000 / (1 - r), rel=0.01)
    assert correlation(first, np.ones(4_000)) is None
    assert unpaired_equivalent(first, first + 1) == math.inf
    assert unpaired_equivalent(np.ones(5), np.ones(5)) is None
    assert correlation(np.array([1.0, 2.0]), np.array([2.0, 1.0])) == close(-1.0)


def test_intervals_of_pairs_hold_what_they_should():
    first = normal(200, 1)
    second = first + 1 + normal(200, 2) / 10
    found: Any = improvement_interval(first, second)
    assert 0.5 < found.low < probability_of_improvement(first, second) < found.high < 1
    same: Any = improvement_interval(first, first)
    assert 0.5 in same
    difference: Any = rate_difference_interval(30, 10, 100)
    assert (difference.low > 0, 0.2 in difference) == (True, True)
    nothing: Any = rate_difference_interval(0, 0, 50)
    assert -nothing.low == nothing.high == close(unseen_share(50, 0.975))
    assert rate_difference_interval(1, 0, 9) == Unknown("9 pairs, fewer than 10")


@pytest.mark.parametrize("n", [10, 40])
def test_the_probability_of_improvement_has_a_width_also_where_one_agent_is_always_better(n):
    first = normal(n)
    for second, low, high in ((first + 100, 0.0, 1.0), (first, 0.0, 1.0), (first - 100, 0.0, 1.0)):
        found: Any = improvement_interval(first, second)
        p = probability_of_improvement(first, second)
        assert low <= found.low <= p <= found.high <= high
        assert found.high - found.low > 0.9 / n


def test_differences_are_scaled_to_either_sign():
    """Of pairs of which few differ, those that differ the other way may not have been seen."""
    won: Any = mean_interval(ones(6, 100), of="difference")
    lost: Any = mean_interval(-ones(6, 100), of="difference")
    assert won == bounded_interval(ones(6, 100), (-1, 1))
    assert (lost.low, lost.high) == close((-won.high, -won.low), abs=0.003)
    both = np.repeat([1.0, -1.0, 0.0], [3, 2, 45])
    assert mean_interval(both, of="difference") == bounded_interval(both, (-1, 1))
    assert mean_interval(np.repeat([2.0, 5.0], 10), of="difference").method == "Clopper-Pearson"
    assert mean_interval(np.zeros(20), of="difference") == Unknown("all differences are equal")
    assert mean_interval(np.zeros(9), of="difference") == Unknown("9 pairs, fewer than 10")
