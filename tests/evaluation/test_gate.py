"""The gate: whether agents are worse than the first one by more than a margin, or how many more pairs would tell."""

import json
import math
from dataclasses import replace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import compare, merge
from streamsampler.errors import StorageError, UsageError
from streamsampler.evaluation.comparison import Comparison, Pairs, rate_difference_interval
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.gate import GateDecision, GateVerdict, checked_margin, gate_interval
from streamsampler.evaluation.intervals import Interval, Unknown, bounded_interval, mean_interval
from streamsampler.evaluation.rules import BettingSequence
from streamsampler.evaluation.sequential import (
    ReturnTest,
    SuccessTest,
    anytime_interval,
    expected_pairs,
    make_test,
)
from streamsampler.evaluation.suites.means import task_interval
from streamsampler.evaluation.suites.scores import TaskScores

ORDER = ("worse", "undecided", "not worse")


def decision(low=-1.0, high=1.0, **changed) -> GateDecision:
    """Return a decision about an interval of 100 pairs, whose difference is in the middle."""
    interval = changed.pop("interval", Interval(low, high, "t"))
    arguments: dict[str, Any] = {
        "first": "old", "second": "new", "margin": 0.0, "of": "mean returns", "n_pairs": 100,
        "difference": (low + high) / 2, "interval": interval, "all_equal": False,
    }  # fmt: skip
    return GateDecision(**{**arguments, **changed})


@pytest.mark.parametrize(
    ("low", "high", "margin", "outcome"),
    [
        (0.5, 2.0, 0.0, "not worse"),
        (-4.9, 2.0, 5.0, "not worse"),
        (-5.0, 2.0, 5.0, "undecided"),
        (-9.0, -5.0, 5.0, "undecided"),
        (-9.0, -5.1, 5.0, "worse"),
        (-9.0, -0.1, 0.0, "worse"),
        (0.0, 1.0, 0.0, "undecided"),
        (-1.0, 0.0, 0.0, "undecided"),
    ],
)
def test_an_interval_decides_where_the_margin_is_outside(low, high, margin, outcome):
    assert decision(low, high, margin=margin).outcome == outcome


def test_a_difference_of_0_in_all_pairs_is_not_worse_and_another_one_is_undecided_without_an_interval():
    unknown = Unknown("all differences are equal")
    equal = decision(interval=unknown, all_equal=True, difference=0.0)
    assert (equal.outcome, equal.more) == ("not worse", None)
    assert str(equal) == (
        "new is not worse than old: the difference of mean returns is 0 in all 100 pairs; "
        "with 95 % confidence at most 2.95 % of pairs have another one"
    )
    other = decision(interval=unknown, all_equal=True, difference=-1.0, margin=5.0)
    assert (other.outcome, other.more) == ("undecided", None)
    assert str(other) == (
        "undecided: new may be worse than old by more than 5: difference of mean returns -1, "
        "no interval: all differences are equal; with bounds of returns there is one"
    )
    infinite = decision(interval=Unknown("a difference is not finite"), difference=math.nan)
    assert (infinite.outcome, infinite.more, infinite.facts()["difference"]) == ("undecided", None, None)
    assert str(infinite).endswith("no interval: a difference is not finite")


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({"low": -3, "high": 5}, 1500),  # 4 must become 1
        ({"low": -5, "high": 3, "margin": 0}, 1500),
        ({"low": -5, "high": 4, "difference": -1.0, "margin": 3.0}, 300),  # the side of the margin: 4 must become 2
        ({"low": -9, "high": 1, "difference": -3.0, "margin": 1.0}, 300),
        ({"low": -1, "high": 1}, None),
        ({"low": -1, "high": 1.001, "margin": 0}, None),  # so near that it would take a million pairs
        ({"low": 1, "high": 2}, None),
        ({"low": -1, "high": 1, "expected": 7}, 7),
        ({"interval": Unknown("15 pairs, fewer than 20"), "n_pairs": 15}, 5),
        ({"interval": Unknown("differences are skewed"), "n_pairs": 24}, 6),
        ({"interval": Unknown("an unforeseen reason"), "n_pairs": 50}, None),
    ],
)
def test_how_many_more_pairs_grows_with_the_square_of_the_width(changed, more):
    assert decision(**changed).more == more


def test_a_decision_says_in_a_line_what_is_known():
    assert str(decision(1, 2, margin=0.0)) == ("new is not worse than old: difference of mean returns 1.5, 95 % [1, 2]")
    assert str(decision(-9, -6, margin=5.0)) == (
        "new is worse than old by more than 5: difference of mean returns -7.5, 95 % [-9, -6]"
    )
    assert str(decision(-3, 5)).endswith(
        "difference of mean returns 1, 95 % [-3, 5]; it likely takes about 1,500 more pairs"
    )
    assert str(decision(-1, 1)).endswith("; too near to 0 to predict the number of further pairs")
    few = decision(interval=Unknown("15 pairs, fewer than 20"), n_pairs=15)
    assert str(few).endswith("; it likely takes at least 5 more pairs")
    assert str(decision(-1, 2, tested="not worse")).endswith("difference of mean returns 0.5, as the test decided")


def test_one_agent_that_is_worse_or_undecided_decides_for_all():
    better, unsure, worse = decision(1, 2), decision(-3, 5), decision(-2, -1)
    assert (GateVerdict((better, unsure, worse)).outcome, GateVerdict((better, unsure)).outcome) == ORDER[:2]
    assert [bool(GateVerdict(each)) for each in ((better, better), (better, unsure), (better, worse))] == [
        True,
        False,
        False,
    ]
    assert GateVerdict((better, unsure, decision(-2, 4))).more == 1500
    assert GateVerdict((better, unsure, decision(-1, 1))).more is None
    assert GateVerdict((better,)).more is None
    verdict = GateVerdict((better, unsure))
    assert list(verdict) == [better, unsure]
    assert str(verdict).splitlines() == [f"verdict: {better}", f"verdict: {unsure}"]
    assert repr(verdict) == f"GateVerdict({better}; {unsure})"
    facts = verdict.facts()
    assert (facts["outcome"], facts["more_pairs"], facts["agents"][1]["more_pairs"]) == ("undecided", 1500, 1500)


@given(st.floats(-10, 10), st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_a_larger_margin_never_speaks_against_an_agent(low, width, margin, wider):
    first, second = (decision(low, low + width, margin=it).outcome for it in (margin, margin + wider))
    assert ORDER.index(first) <= ORDER.index(second)


@pytest.mark.parametrize("margin", [-0.1, math.nan, math.inf, True, "5", None, 1j])
def test_a_margin_that_is_no_number_from_0_on_is_refused(margin):
    with pytest.raises(UsageError, match="margin must be a number of at least 0"):
        checked_margin(margin, "return")


def test_a_margin_that_no_agent_exceeds_is_refused():
    with pytest.raises(UsageError, match="margin of success rates must be below 1"):
        checked_margin(5, "success")
    with pytest.raises(UsageError, match=r"margin is 500, and bounds are \(0, 500\)"):
        checked_margin(500, "return", (0.0, 500.0))
    assert checked_margin(np.float32(2), "return", (0.0, 500.0)) == 2.0
    assert checked_margin(0, "success", (0.0, 0.5)) == 0.0


RNG = np.random.default_rng(3)
NORMAL, SKEWED = RNG.normal(0, 1, 200), RNG.exponential(1, 200)


def test_few_pairs_have_an_interval_only_within_bounds():
    assert gate_interval(NORMAL[:19]) == Unknown("19 pairs, fewer than 20")
    assert gate_interval(NORMAL[:5], bounds=(-9.0, 9.0)) == bounded_interval(NORMAL[:5], (-9.0, 9.0))
    assert gate_interval(np.full(5, np.nan), bounds=(-9.0, 9.0)) == Unknown("5 pairs, fewer than 20")
    assert gate_interval(np.full(30, np.inf)) == Unknown("a difference is not finite")


BOTH = "t and studentised bootstrap"


@pytest.mark.parametrize(
    ("values", "level", "method"),
    [
        (NORMAL[:20], 0.975, BOTH),
        (NORMAL[:29], 0.975, BOTH),
        (NORMAL[60:90], 0.975, "t"),
        (NORMAL[:199], 0.975, "t"),
        (NORMAL[:200], 0.95, "t"),
        (SKEWED[:20], 0.975, BOTH),
        (SKEWED[:30], 0.975, BOTH),
        (SKEWED[:199], 0.975, BOTH),
        (SKEWED[:200], 0.95, "studentised bootstrap"),
    ],
)
def test_the_interval_is_wider_where_the_usual_one_misses_on_one_side(values, level, method):
    found: Any = gate_interval(values)
    if len(values) < 200:
        assert found == task_interval(TaskScores(values, tuple(range(len(values)))), level)
    else:
        assert found == mean_interval(values, level, of="difference")
    assert (round(found.level, 6), found.method) == (level, method)


def test_few_skewed_pairs_have_an_interval():
    few = np.exp(NORMAL[20:40])
    assert mean_interval(few, of="difference") == Unknown("differences are skewed, and there are fewer than 30")
    assert gate_interval(few) == task_interval(TaskScores(few, tuple(range(20))), 0.975)
    within: Any = gate_interval(few, bounds=(-90.0, 90.0))
    assert within == mean_interval(few, bounds=(-90.0, 90.0), of="difference")
    ends = float(NORMAL[:20].min()), float(NORMAL[:20].max())
    normal: Any = gate_interval(NORMAL[:20], bounds=ends)
    assert normal == task_interval(TaskScores(NORMAL[:20], tuple(range(20)), ends), 0.975)
    assert gate_interval(np.full(30, 2.0)) == Unknown("all differences are equal")


def test_where_few_pairs_differ_the_interval_reaches_twice_as_far():
    for others, farther in (([-1.0], 2), ([-1.0, -1.0], 2), ([-1.0] * 3, 1), ([-1.0, 1.0, 1.0], 1), ([-1, -2, -3], 2)):
        values = np.array([*others, *[0.0] * (50 - len(others))])
        found: Any = gate_interval(values)
        usual: Any = mean_interval(values, of="difference")
        assert (found.low, found.high) == pytest.approx((min(farther * usual.low, usual.low), farther * usual.high))
    many = np.array([*np.arange(-10.0, 0), *[0.0] * 40])
    assert gate_interval(many) == mean_interval(many, of="difference")
    one = np.array([-1.0, *[0.0] * 49])
    assert gate_interval(one, bounds=(-5.0, 5.0)) == bounded_interval(one, (-5.0, 5.0))


def test_a_test_with_a_margin_goes_on_until_the_margin_is_outside():
    rng = np.random.default_rng(1)
    first = rng.uniform(0.3, 0.7, 600)
    for change, outcome in ((0.0, "not worse"), (-0.25, "worse")):
        test = ReturnTest(0.05, (0.0, 1.0), 0.1)
        betting, n = BettingSequence(-1, 1, 0.95), 0
        while test.outcome == "undecided":
            assert not betting.interval.low > -0.1
            assert not betting.interval.high < -0.1
            test.add(first[n], first[n] + change)
            betting.add(change)
            n += 1
        assert (test.outcome, test.interval) == (outcome, betting.interval)
        assert 10 < n < 300
    assert test.verdict == "first"


def test_the_test_fits_the_margin():
    for margin, kind in ((None, SuccessTest), (0.0, SuccessTest), (0.1, ReturnTest)):
        test = make_test(0.05, "success", None, margin)
        assert (type(test), test.margin) == (kind, margin or 0.0)
    assert make_test(0.05, "return", (0, 9), 2.0).margin == 2.0
    lost = SuccessTest(0.05)
    assert lost.outcome == "undecided"
    for _ in range(20):
        lost.add(1.0, 0.0)
    assert (lost.outcome, lost.verdict) == ("worse", "first")


def test_pairs_like_those_that_were_seen_say_how_many_more_it_takes():
    seen = np.random.default_rng(2).normal(0.0, 0.05, 40).clip(-1, 1)
    n = expected_pairs(seen, (-1.0, 1.0), 0.95, 0.1)
    assert n is not None
    repeated = np.resize(seen, 40 + n)
    assert anytime_interval(repeated, (-1.0, 1.0), 0.95).low > -0.1
    assert not anytime_interval(repeated[:-1], (-1.0, 1.0), 0.95).low > -0.1
    assert expected_pairs(seen, (-1e6, 1e6), 0.95, 0.1) is None


def pairs(differences, successes=None, **changed) -> Pairs:
    first = np.full(len(differences), 10.0)
    arguments: dict[str, Any] = {"first": "old", "second": "new", "level": 0.95, "test": None, "successes": successes}
    return Pairs(**{**arguments, **changed}, returns=(first, first + differences))


def test_differences_within_rounding_are_0():
    assert pairs(np.full(5, 1e-13)).decision(0.0, "return").outcome == "not worse"
    assert pairs(np.full(5, -1e-3)).decision(0.0, "return").outcome == "undecided"
    huge = pairs(np.where(np.arange(40) == 3, np.inf, 0.0)).decision(0.0, "return")
    assert huge.outcome == "undecided"


def test_successes_have_bounds_and_their_own_margin():
    first = np.arange(60) % 2 == 0
    second = first.copy()
    second[:3] = ~second[:3]
    found = pairs(NORMAL[:60], (first, second))
    decided = found.decision(0.2, "success")
    assert (decided.of, round(60 * decided.difference)) == ("success rates", -1)
    assert decided.interval == found.success_difference_interval
    assert (decided.outcome, found.decision(0.05, "success").outcome) == ("not worse", "undecided")
    assert pairs(NORMAL[:60], (first, first)).decision(0.0, "success").outcome == "not worse"
    halves = pairs(NORMAL[:60], (np.arange(60) % 5 < 2, np.arange(60) % 5 > 1))
    assert halves.decision(0.2, "success").interval == rate_difference_interval(36, 24, 60), "t holds less often"
    without = pairs(NORMAL[:60]).decision(0.2, "success")
    assert (without.outcome, without.more) == ("undecided", None)
    assert str(without).endswith("no interval: the infos have no success flag")
    few = pairs(NORMAL[:5], (first[:5], second[:5])).decision(0.2, "success")
    assert (few.interval, few.more) == (Unknown("5 pairs, fewer than 10"), 15)


def with_test(test, first, second, **changed) -> Pairs:
    for mine, other in zip(first, second, strict=True):
        test.add(float(mine), float(other))
    return pairs(np.zeros(len(first)), (first, second), test=test, **changed)


def test_the_verdict_after_a_test_is_by_an_interval_that_holds_whenever_one_stops():
    first, second = np.arange(40) % 4 > 0, np.arange(40) % 4 > 1
    differences = second.astype(float) - first.astype(float)
    found = with_test(make_test(0.05, "success", None), first, second, decide_on="success")
    assert found.decision(0.0, "success").outcome == "worse"
    assert str(found.decision(0.0, "success")).endswith(", as the test decided")
    assert found.decision(0.2, "success").interval == anytime_interval(differences, (-1.0, 1.0), 0.95)
    assert found.decision(5.0, "return").outcome == "not worse", "all differences of returns are 0"
    unknown = replace(found, successes=None).decision(0.2, "success")
    assert (unknown.interval, unknown.more) == (Unknown("the infos have no success flag"), None)
    unbounded = replace(found, returns=(NORMAL[:40], NORMAL[40:80])).decision(5.0, "return")
    assert unbounded.interval == Unknown("success rates decided when to stop, and returns have no bounds")

    test = make_test(0.1, "success", None, 0.2)
    found = with_test(test, first, second, decide_on="success")
    assert found.decision(0.2, "success").interval == test.interval == found.success_difference_interval
    assert found.decision(0.2, "success").more == expected_pairs(differences, (-1.0, 1.0), 0.9, 0.2)
    assert found.mean_difference_interval == Unknown("all differences are equal"), "the test is of success rates"


class Told(gymnasium.Env):
    """Has trajectories of one timestep: action 0 gets a normal return, action k changes it by k times `gain`.

    Seeds below `n_lost` of 10 are those in which only action 0 succeeds.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, gain=0.0, n_lost=0, noise=1.0, says=True):
        self.gain, self.n_lost, self.noise, self.says = gain, n_lost, noise, says

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return np.zeros(1), {}

    def step(self, action):
        rng, action = np.random.default_rng(self.seed), int(action)
        value = float(rng.uniform(40, 60)) + (self.gain + self.noise * float(rng.uniform(-1, 1))) * action
        succeeds = action == 0 or self.seed % 10 >= self.n_lost
        return np.zeros(1), value, True, False, {"success": succeeds} if self.says else {}


def zero(observation):
    return 0


def one(observation):
    return 1


def two(observation):
    return 2


AGENTS = {"old": zero, "new": one}
BOUNDS = (0, 100)


def compared(agents=None, seeds=range(40), n_workers=0, **options) -> Comparison:
    kwargs = {name: options.pop(name) for name in ("gain", "n_lost", "noise", "says") if name in options}
    return compare(agents or AGENTS, Told, seeds=seeds, n_workers=n_workers, env_kwargs=kwargs, **options)


def test_a_comparison_says_whether_agents_are_worse():
    found = compared(gain=-1.0)
    assert [found.verdict(margin).outcome for margin in (3, 0.9, 0.2)] == ["not worse", "undecided", "worse"]
    assert "verdict" not in str(found) + found.to_json().split("summary")[0]
    assert found.verdict(3)
    assert not found.verdict(0.9)
    with pytest.raises(UsageError, match="the margin is missing"):
        found.verdict()
    with pytest.raises(UsageError, match="margin must be a number of at least 0"):
        found.verdict(-1)
    with pytest.raises(UsageError, match="decide_on must be"):
        found.verdict(1, decide_on=cast("Any", "length"))
    lost = compared(n_lost=5).verdict(0.1, decide_on="success")
    assert (lost.outcome, lost.decisions[0].difference) == ("worse", -0.5)


def test_levels_are_shared_among_agents():
    found = compared({"old": zero, "new": one, "newer": two}, seeds=range(200), gain=-1.0, margin=1.5)
    middle, last = found.verdict()
    assert (middle.outcome, last.outcome, found.verdict().outcome) == ("not worse", "worse", "worse")
    assert [each.interval for each in (middle, last)] == [each.mean_difference_interval for each in found.pairs]
    assert cast("Any", middle.interval).level == pytest.approx(0.975)


def test_a_margin_that_was_asked_for_is_kept(tmp_path):
    found = compared(n_lost=1, margin=0.05, decide_on="success")
    assert str(found).splitlines()[-1] == str(found.verdict())
    loaded = Comparison.load(found.save(tmp_path / "found.json"))
    assert loaded == found
    assert loaded.verdict() == found.verdict() == found.verdict(0.05, decide_on="success")
    facts = json.loads(found.to_json())
    assert (facts["margin"], facts["verdict"]) == (0.05, found.verdict().facts())
    assert facts["verdict"]["outcome"] == "undecided"
    for changed in ({"margin": -1}, {"margin": "much"}, {"margin": 2}, {"decide_on": "length"}):
        with pytest.raises(StorageError, match="is no comparison of streamsampler"):
            Comparison.from_json(json.dumps({**facts, **changed}))


def decided_after(test, first, second):
    """Return after how many pairs a test decides."""
    for n, pair in enumerate(zip(first, second, strict=True), start=1):
        test.add(*map(float, pair))
        if test.outcome != "undecided":
            return n
    return None


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({"margin": 10, "bounds": BOUNDS}, "not worse"),
        ({"margin": 5, "bounds": BOUNDS, "gain": -25}, "worse"),
        ({"margin": 0, "bounds": BOUNDS, "gain": -25}, "worse"),
        ({"margin": 0.3, "decide_on": "success", "n_lost": 1}, "not worse"),
        ({"margin": 0.2, "decide_on": "success", "n_lost": 7}, "worse"),
        ({"margin": 0, "decide_on": "success", "n_lost": 7}, "worse"),
    ],
)
def test_a_comparison_goes_on_until_the_margin_is_decided(options, outcome):
    found = compared(seeds=range(400), until_decided=0.05, **options)
    of = "successes" if "decide_on" in options else "returns"
    kwargs = {name: options[name] for name in ("gain", "n_lost") if name in options}
    whole = [getattr(each, of) for each in compared(seeds=range(400), **kwargs).evaluations]
    n = decided_after(make_test(0.05, found.decide_on, options.get("bounds"), options["margin"]), *whole)
    assert [len(each) for each in found.evaluations] == [n, n]
    assert (found.stopped, found.verdict().outcome) == ("decided", outcome)
    assert str(found).splitlines()[-1] == str(found.verdict())
    assert Comparison.from_json(found.to_json()).verdict() == found.verdict()


@pytest.mark.slow
def test_workers_do_not_change_when_it_is_decided():
    asked: dict[str, Any] = {"seeds": range(400), "until_decided": 0.05, "margin": 10, "bounds": BOUNDS}
    assert compared(n_workers=4, **asked) == compared(**asked)


def test_what_is_not_decided_says_so_and_equal_agents_are_not_worse():
    found = compared(seeds=range(30), until_decided=0.05, margin=5, bounds=BOUNDS)
    assert found.stopped == "undecided after 30 trajectories, the most"
    verdict = found.verdict()
    assert (verdict.outcome, verdict.more, str(found).count("undecided after")) == (
        "undecided",
        verdict.decisions[0].more,
        1,
    )
    assert verdict.more is not None
    longer = compared(seeds=range(30 + 2 * verdict.more), until_decided=0.05, margin=5, bounds=BOUNDS)
    assert longer.verdict().outcome == "not worse"
    equal = compared({"old": zero, "same": zero}, seeds=range(10), until_decided=0.05, margin=0, bounds=BOUNDS)
    assert (len(equal.pairs[0]), equal.verdict().outcome) == (10, "not worse")


def test_agents_go_on_until_each_is_decided():
    agents = {"old": zero, "new": one, "newer": two}
    found = compared(agents, seeds=range(400), until_decided=0.1, margin=8, bounds=BOUNDS, gain=-20.0)
    assert [each.outcome for each in found.verdict()] == ["worse", "worse"]
    assert len(found.pairs[0]) > len(found.pairs[1])


def test_ctrl_c_keeps_the_margin():
    def interrupt(snapshot):
        if snapshot.n_trajectories >= 25:
            raise KeyboardInterrupt

    interrupt.interval = 0.0  # type: ignore[attr-defined]
    asked: dict[str, Any] = {"until_decided": 0.05, "margin": 1e-3, "bounds": BOUNDS}
    with pytest.raises(EvaluationInterruptedError) as caught:
        compared(seeds=range(4_000), progress=interrupt, **asked)
    found = caught.value.found
    assert (found.margin, found.verdict().outcome) == (1e-3, "undecided")


def test_parts_are_merged_before_the_verdict(tmp_path):
    paths = [compared(part=(i, 2)).save(tmp_path / f"{i}.json") for i in (1, 2)]
    whole = cast("Comparison", merge(paths, tmp_path / "whole.json"))
    assert whole.verdict(3) == compared(margin=3).verdict()
    other = compared(part=(2, 2), decide_on="success").save(tmp_path / "other.json")
    with pytest.raises(UsageError, match="decide_on"):
        merge([paths[0], other], tmp_path / "whole.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": -1}, "margin must be a number of at least 0, .* got -1"),
        ({"margin": math.nan, "until_decided": 0.05, "bounds": BOUNDS}, "margin must be a number of at least 0"),
        ({"margin": 100, "bounds": BOUNDS}, "no agent can lose more"),
        ({"margin": 5, "decide_on": "success"}, "margin of success rates must be below 1"),
        ({"margin": 5, "until_decided": 0.05}, "until_decided needs bounds"),
        ({"margin": 5, "part": (1, 2)}, "leave out margin"),
        ({"margin": 0.5, "decide_on": "success", "says": False}, "no info of the first 40 trajectories"),
    ],
)
def test_gates_that_cannot_work_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        compared(**options)


def test_without_successes_few_trajectories_are_undecided():
    found = compared(seeds=range(5), margin=0.5, decide_on="success", says=False)
    assert "the infos have no success flag" in str(found)
    assert found.verdict().outcome == "undecided"
