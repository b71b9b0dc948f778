"""Intervals, tests and quantiles: as SciPy has them, and refused where none holds."""

import math
import warnings
from typing import Any

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
    Interval,
    Unknown,
    bootstrap_intervals,
    in_two_groups,
    interquartile_mean,
    is_skewed,
    log_beta,
    mean_interval,
    normal_quantile,
    skewness,
    student_quantile,
    student_tail,
    studentised_interval,
    t_interval,
    wilson_interval,
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


def test_intervals_and_statistics_are_those_of_scipy():
    for n in (2, 10, 31, 500):
        found, wanted = t_interval(normal(n), 0.9), stats.ttest_1samp(normal(n), 0).confidence_interval(0.9)
        assert (found.low, found.high) == close(tuple(wanted), rel=EXACT)
        assert found.method == "t"
        assert found.halfwidth == close((wanted.high - wanted.low) / 2, rel=EXACT)
    for successes, n in ((0, 1), (0, 30), (30, 30), (7, 12), (499, 1_000)):
        found, wanted = wilson_interval(successes, n), stats.binomtest(successes, n).proportion_ci(method="wilson")
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
    values = np.array([0.0] * 2 + [1.0] * 38)
    assert mean_interval(values) == t_interval(values), "a mean of nearly equal values has Student's"
    assert mean_interval(np.full(40, 5.0)) == Interval(5.0, 5.0, "t")
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
    for unknown in bootstrap_intervals(values).values():
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


# ---------------------------------------------------------------------- whenever one stops


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


def test_values_outside_their_bounds_are_refused():
    with pytest.raises(UsageError, match=r"bounds are \(0, 1\), and there is a value of 1\.5"):
        BettingSequence().add(1.5)
    for bounds in ((1, 0), (0, math.inf), (math.nan, 1)):
        with pytest.raises(UsageError, match="two finite numbers that rise"):
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


# ---------------------------------------------------------------------- pairs


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
    assert 0.0 in nothing
    assert rate_difference_interval(1, 0, 9) == Unknown("9 pairs, fewer than 10")
