"""Comparisons: the same seeds for all, differences pair by pair, and decisions that do not depend on workers."""

import functools
import json
from typing import Any, cast

import numpy as np
import pytest

from streamsampler import compare, evaluate
from streamsampler.errors import StorageError, UsageError
from streamsampler.evaluation.comparison import (
    Comparison,
    correlation,
    probability_of_improvement,
    rate_difference_interval,
)
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.intervals import LEVEL, Interval, Unknown, bounded_interval, mean_interval, unseen_share
from streamsampler.evaluation.sequential import ReturnTest, SuccessTest
from tests.evaluation.envs import Known, value_of, zero

BOUNDS = (-10, 30)


class Levels(Known):
    """Known, where the first action decides: 1 gets half a point more, and always succeeds."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(0)
        if self.t == 1:
            self.chosen = int(action)
        if self.success is not None:
            info[self.success] = bool(self.chosen) or info[self.success]
        ends = terminated or truncated
        return observation, reward + 0.5 * self.chosen * ends, terminated, truncated, info


RARE = functools.partial(Levels, returns="rare")
SUCCEEDS = functools.partial(Levels, success="success")


def one(observation):
    return 1


def also_zero(observation):
    return 0


def compared(agents=(zero, one), env=Levels, **options):
    return compare(agents if isinstance(agents, dict) else list(agents), env, **{"seed": 2, "n_workers": 0, **options})


def test_all_have_the_same_seeds_and_each_is_what_evaluate_finds():
    found = compared({"zero": zero, "one": one, "noisy": "random"}, num_trajectories=40)
    assert found.names == ("zero", "one", "noisy")
    for name, agent in (("zero", zero), ("one", one), ("noisy", "random")):
        assert found[name] == evaluate(agent, Levels, num_trajectories=40, seed=2, n_workers=0)
    first, second = found.pairs
    assert (first.first, first.second, second.second) == ("zero", "one", "noisy")
    assert np.allclose(first.differences, 0.5)
    assert (first.mean_difference, first.verdict) == (pytest.approx(0.5), None)
    assert second.level == pytest.approx(1 - (1 - LEVEL) / 2), "the level is not shared among comparisons"
    assert second.mean_difference_interval == mean_interval(second.differences, second.level, of="difference")
    assert second.correlation == correlation(*second.returns)
    assert second.probability_of_improvement == probability_of_improvement(*second.returns)
    assert isinstance(second.improvement_interval, Interval)
    assert second.probability_of_improvement in second.improvement_interval
    with pytest.raises(KeyError):
        found["two"]

    title, names, *lines = str(found).splitlines()
    assert title == "zero, one, noisy in Levels, on the same seeds"
    assert names.split() == ["zero", "one", "noisy"]
    mean = next(line for line in lines if "mean return" in line)
    assert mean.split()[2:] == [f"{each.mean:.5g}" for each in found.evaluations]
    difference = [line for line in lines if "difference of means" in line][-1]
    assert difference.endswith(second.mean_difference_interval.method)
    assert any("as good as" in line for line in lines)
    assert compared([zero, zero, "random"], num_trajectories=2).names == ("zero", "zero #2", "random")


def test_given_seeds_and_scenarios_are_those_of_all():
    found = compared(seeds=[5, 7, 8])
    assert [each.seeds for each in found.evaluations] == [(5, 7, 8)] * 2
    assert found["one"].returns.tolist() == [value_of(seed) + 0.5 for seed in (5, 7, 8)]
    scenarios = [{"seed": 5, "name": "easy"}, {"seed": 6, "options": {"level": 50}, "name": "hard"}]
    assert compared(scenarios=scenarios)["one"]["hard"].value == value_of(6, 50) + 0.5


def decided_after(test, first, second):
    """Return after how many pairs a test decides, and how."""
    for n, pair in enumerate(zip(first, second, strict=True), start=1):
        test.add(*pair)
        if test.verdict is not None:
            return n, test.verdict
    return None


@pytest.mark.slow
def test_returns_are_decided_on_after_the_shortest_prefix():
    returns = [each.returns for each in compared(env=RARE, num_trajectories=800).evaluations]
    n, verdict = decided_after(ReturnTest(0.05, (-1, 3)), *returns)
    found, mirrored = (
        compared(agents, RARE, until_decided=0.05, bounds=(-1, 3), n_workers=n_workers)
        for agents, n_workers in (((zero, one), 2), ((one, zero), 0))
    )
    assert [len(each) for each in found.evaluations] == [n, n]
    (pairs,) = found.pairs
    assert (pairs.verdict, verdict) == ("second", "second")
    assert (pairs.mean_difference_interval.low > 0, pairs.mean_difference_interval.method) == (True, "betting")
    assert "decided: one is better (betting on the differences)" in str(found)
    assert (mirrored.pairs[0].verdict, len(mirrored.evaluations[0])) == ("first", n)


def test_success_rates_are_decided_on_by_discordant_pairs():
    whole = compared(env=SUCCEEDS, num_trajectories=60)
    n, _ = decided_after(SuccessTest(0.05), *(each.successes for each in whole.evaluations))
    found = compared(env=SUCCEEDS, until_decided=0.05, decide_on="success")
    assert [len(each) for each in found.evaluations] == [n, n]
    (pairs,) = found.pairs
    failures = int((~found["zero"].successes).sum())
    assert (pairs.verdict, pairs.discordant) == ("second", (0, failures))
    assert pairs.success_difference == pytest.approx(failures / n)
    assert pairs.success_difference_interval == rate_difference_interval(failures, 0, n)


def test_agents_that_are_equal_are_not_told_apart_and_others_stop_when_they_are():
    found = compared([zero, also_zero], until_decided=0.05, bounds=BOUNDS, max_trajectories=40)
    assert (len(found.evaluations[0]), found.pairs[0].verdict) == (40, None)
    assert found.stopped == "undecided after 40 trajectories, the most"
    assert "undecided" in str(found)
    assert "all differences are equal" in str(found)

    agents = {"first": zero, "same": also_zero, "better": one}
    found = compared(agents, SUCCEEDS, until_decided=0.1, decide_on="success", max_trajectories=60)
    n_first, n_same, n_better = (len(each) for each in found.evaluations)
    assert n_first == n_same == 60 > n_better
    two = compared(env=SUCCEEDS, until_decided=0.05, decide_on="success")
    assert len(two.evaluations[1]) == n_better, "alpha is divided by the number of comparisons"
    assert [pairs.verdict for pairs in found.pairs] == [None, "second"]
    assert [len(pairs) for pairs in found.pairs] == [60, n_better]


def test_an_agent_and_itself_differ_in_at_most_so_many_pairs():
    """No interval without a width, which would claim that no pair differs."""
    for env in (Levels, RARE, functools.partial(RARE, success="success")):
        found = compared([zero, also_zero], env, num_trajectories=50)
        (pairs,) = found.pairs
        assert pairs.mean_difference_interval == Unknown("all differences are equal")
        assert pairs.unseen_share == unseen_share(50)
        assert "all differences are equal; with 95 % confidence at most 5.82 % of pairs have another one" in str(found)
        improvement: Any = pairs.improvement_interval
        assert improvement.low < 0.5 < improvement.high
        for known in (pairs.success_difference_interval,) if pairs.successes else ():
            assert cast("Any", known).low < 0 < cast("Any", known).high
        assert json.loads(found.to_json())["summary"][0]["unseen_share"] == unseen_share(50)
    bounded: Any = compared([zero, also_zero], num_trajectories=50, bounds=BOUNDS)
    share = 1 - 0.025 ** (1 / 50)
    interval = bounded.pairs[0].mean_difference_interval
    assert (interval.low, interval.high) == pytest.approx((-40 * share, 40 * share))
    assert Comparison.from_json(bounded.to_json()) == bounded
    assert bounded["zero"].bounds == BOUNDS
    three = compared([zero, also_zero, one], num_trajectories=50)
    assert three.pairs[0].unseen_share == unseen_share(50, 0.975)
    assert "with 97.5 % confidence at most 7.11 % of pairs" in str(three)
    alone = compared([zero, also_zero], num_trajectories=1)
    assert "all differences are equal" not in str(alone)


def test_differences_of_two_valued_returns_are_scaled_to_both_signs():
    (pairs,) = compared(env=RARE, num_trajectories=60, agents=[zero, "random"]).pairs
    assert pairs.mean_difference_interval == bounded_interval(pairs.differences, (-0.5, 0.5))
    assert pairs.mean_difference in cast("Any", pairs.mean_difference_interval)


def test_what_one_agent_leaves_out_is_in_no_pair():
    class Fails(Levels):
        def step(self, action):
            if action and self.seed % 3 == 0:
                raise ValueError("no")
            return super().step(action)

    fixed = compared(env=Fails, seeds=range(30), on_failure="drop")
    assert len(fixed["one"]) == 20
    assert np.allclose(fixed.pairs[0].differences, 0.5)
    race = compared(env=Fails, until_decided=0.05, bounds=BOUNDS, max_trajectories=30, on_failure="drop")
    assert np.allclose(race.pairs[0].differences, 0.5)


def test_what_is_saved_is_loaded_again(tmp_path):
    for found in (
        compared([zero, one, "random"], num_trajectories=12),
        compared(env=SUCCEEDS, until_decided=0.05, decide_on="success"),
        compared(env=SUCCEEDS, until_decided=0.05, bounds=BOUNDS, max_trajectories=20),
    ):
        path = found.save(tmp_path / "found.json")
        assert Comparison.load(path) == found
        assert str(Comparison.from_json(found.to_json())) == str(found)
    facts = json.loads(path.read_text())
    assert facts["summary"][0]["n_pairs"] == 20
    for changed, words in (
        ({**facts, "bounds": []}, "is no comparison of streamsampler: list index out of range"),
        ({**facts, "evaluations": facts["evaluations"][:1]}, "at least two agents"),
        (json.loads(found["one"].to_json()), "is no comparison of streamsampler"),
    ):
        with pytest.raises(StorageError, match=words):
            Comparison.from_json(json.dumps(changed))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"agents": [zero], "num_trajectories": 5}, "at least two agents, got 1"),
        ({"agents": "random", "num_trajectories": 5}, "agents must be a dict by name, or a list"),
        ({"agents": zero, "num_trajectories": 5}, r"write compare\(\[first, second\], env"),
        ({"agents": {"a": [zero, one], "b": one}, "num_trajectories": 5}, r"agents\['a'\] is a list of 2 agents"),
        ({"seeds": [1, 1]}, "seed 1 is repeated"),
        ({}, "the number of trajectories is missing"),
        ({"num_trajectories": 5, "until_decided": 0.05}, "leave out num_trajectories"),
        ({"num_trajectories": 5, "max_trajectories": 9}, "max_trajectories is for until_decided"),
        ({"num_trajectories": 5, "bounds": (0, 1)}, "bounds are .0, 1., but a return is .* of trajectory 0"),
        ({"num_trajectories": 5, "bounds": (1, 0)}, "two finite numbers in ascending order"),
        ({"until_decided": 0.05}, "until_decided needs bounds"),
        ({"until_decided": 0.05, "bounds": (1, 0)}, "two finite numbers in ascending order"),
        ({"until_decided": 0.05, "bounds": (0, 1)}, "bounds are .0, 1., but a return is"),
        ({"until_decided": 0.05, "bounds": (0, 1), "decide_on": "success"}, "bounds are those of returns"),
        (
            {"until_decided": 0.7, "bounds": (0, 1)},
            "until_decided must be a small probability of a wrong decision between equal agents",
        ),
        (
            {"until_decided": True, "bounds": (0, 1)},
            "until_decided must be a small probability of a wrong decision between equal agents",
        ),
        ({"until_decided": 0.05, "decide_on": "success"}, "no info of the first 10 trajectories"),
        ({"until_decided": 0.05, "decide_on": "length"}, 'decide_on must be "return" or "success"'),
        ({"until_decided": 0.05, "seeds": [1], "max_trajectories": 2, "bounds": (0, 1)}, "but there are 1 seeds"),
        ({"num_trajectories": 5, "success": "twice"}, 'success must be "end" or "once"'),
        ({"num_trajectories": 5, "sampler": 1}, "leave out sampler"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        compare(**cast("Any", {"agents": [zero, one], "env": Levels, "n_workers": 0, **arguments}))


@pytest.mark.parametrize(
    "asked", [{"num_trajectories": 2_000}, {"until_decided": 0.05, "bounds": (-1e4, 1e4)}], ids=["fixed", "race"]
)
def test_what_is_finished_survives_ctrl_c(asked):
    """In the trajectories of the second agent, or of both at once."""

    def interrupt(snapshot):
        if snapshot.n_trajectories >= 5 and ("bounds" in asked or str(snapshot.note).startswith("one")):
            raise KeyboardInterrupt

    interrupt.interval = 0.0  # type: ignore[attr-defined]
    with pytest.raises(EvaluationInterruptedError) as caught:
        compared(progress=interrupt, **asked)
    found = caught.value.found
    assert found.stopped == "interrupted"
    assert 4 <= len(found.pairs[0]) < 2_000
    assert np.allclose(found.pairs[0].differences, 0.5)
    assert len(found["zero"]) == 2_000 or "bounds" in asked


@pytest.mark.parametrize("interrupted", ["zero", "one", "start", "end", "other"])
def test_what_earlier_agents_have_survives_ctrl_c(interrupted):
    """While the first agent runs, before the second one has a trajectory, and while workers start or end."""
    least = 5 if interrupted == "zero" else 0

    def interrupt(snapshot):
        if (snapshot.note or "").startswith(interrupted) and snapshot.n_trajectories >= least:
            raise KeyboardInterrupt

    class Interrupting(Levels):
        n_made = 0

        def __init__(self):
            super().__init__()
            Interrupting.n_made += 1
            if interrupted == "start" and Interrupting.n_made > 1:
                raise KeyboardInterrupt

        def close(self):
            if interrupted == "end":
                raise KeyboardInterrupt

    interrupt.interval = 0.0  # type: ignore[attr-defined]
    agents = {"zero": zero, "one": one, "other": also_zero}
    with pytest.raises(EvaluationInterruptedError) as caught:
        compared(agents, Interrupting, num_trajectories=500, progress=interrupt)
    found = caught.value.found
    assert found.stopped == "interrupted"
    assert isinstance(found, Comparison if interrupted == "other" else Evaluation)
    whole = evaluate(zero, Levels, num_trajectories=500, seed=2, n_workers=0)
    for each, more in zip(found.evaluations, (0, 0.5), strict=False):
        assert each.returns.tolist() == (whole.returns[: len(each)] + more).tolist()
        assert (len(each) == 500) is (interrupted != "zero")


def test_pairs_are_printed():
    found = compared(num_trajectories=40)
    assert f"\n{found.pairs[0]}\n" in str(found)
    assert str(found.pairs[0]).startswith("one minus zero: 40 pairs\n  difference of means")
    assert (
        repr(found.pairs[0])
        == "Pairs(one minus zero: 40 pairs, mean difference 0.5, no interval: all differences are equal)"
    )
    with pytest.raises(KeyError, match="0: the keys are the names of agents, zero, one"):
        found[0]
    with pytest.raises(UsageError, match="all agents in one list or dict"):
        cast("Any", compare)(zero, one, Levels, n_trajectories=5)


def test_progress_names_the_agent_that_runs():
    notes = []

    def follow(snapshot):
        notes.append((snapshot.complete, snapshot.note))

    compared({"one": zero, "two": one}, num_trajectories=12, progress=follow)
    assert notes[0] == (False, "one")
    first, second = (note for complete, note in notes if complete)
    assert first.startswith("one: return ")
    assert second.startswith("two: return ")
