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
    ReturnTest,
    SuccessTest,
    correlation,
    probability_of_improvement,
    rate_difference_interval,
)
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.intervals import LEVEL, Interval, mean_interval, t_interval
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


def one(observation):
    return 1


def also_zero(observation):
    return 0


def test_all_have_the_same_seeds_and_each_is_what_evaluate_finds():
    found = compare({"zero": zero, "one": one, "noisy": "random"}, Levels, num_trajectories=40, seed=3, n_workers=0)
    assert found.names == ("zero", "one", "noisy")
    for name, agent in (("zero", zero), ("one", one), ("noisy", "random")):
        assert found[name] == evaluate(agent, Levels, num_trajectories=40, seed=3, n_workers=0)
    first, second = found.pairs
    assert (first.first, first.second, second.second) == ("zero", "one", "noisy")
    assert np.allclose(first.differences, 0.5)
    assert first.mean_difference == pytest.approx(0.5)
    assert first.verdict is None
    assert second.level == pytest.approx(1 - (1 - LEVEL) / 2), "the level is not shared among comparisons"
    assert second.mean_difference_interval == mean_interval(second.differences, second.level)
    assert second.correlation == correlation(*second.returns)
    assert second.probability_of_improvement == probability_of_improvement(*second.returns)
    improvement = second.improvement_interval
    assert isinstance(improvement, Interval)
    assert second.probability_of_improvement in improvement
    with pytest.raises(KeyError):
        found["two"]


def test_given_seeds_and_scenarios_are_those_of_all():
    found = compare([zero, one], Levels, seeds=[5, 7, 7], n_workers=0)
    assert [each.seeds for each in found.evaluations] == [(5, 7, 7)] * 2
    assert found["one"].returns.tolist() == [value_of(seed) + 0.5 for seed in (5, 7, 7)]
    scenarios = [{"seed": 5, "name": "easy"}, {"seed": 6, "options": {"level": 50}, "name": "hard"}]
    named = compare([zero, one], Levels, scenarios=scenarios, n_workers=0)
    assert named["one"]["hard"].value == value_of(6, 50) + 0.5


def decided_after(test, first, second):
    for n, pair in enumerate(zip(first, second, strict=True), start=1):
        test.add(*pair)
        if test.verdict is not None:
            return n, test.verdict
    return None


@pytest.mark.parametrize("n_workers", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_returns_are_decided_on_after_the_shortest_prefix(n_workers):
    env = functools.partial(Levels, returns="rare")
    whole = compare([zero, one], env, num_trajectories=800, seed=2, n_workers=0)
    returns = [each.returns for each in whole.evaluations]
    n, verdict = decided_after(ReturnTest(0.05, (-1, 3)), *returns)
    found = compare([zero, one], env, until_decided=0.05, bounds=(-1, 3), seed=2, n_workers=n_workers)
    assert [len(each) for each in found.evaluations] == [n, n]
    assert found.pairs[0].verdict == verdict == "second"
    assert found.pairs[0].mean_difference_interval.low > 0
    assert found.pairs[0].mean_difference_interval.method == "betting"
    assert "decided: one is better (betting on the differences)" in str(found)
    mirrored = compare([one, zero], env, until_decided=0.05, bounds=(-1, 3), seed=2, n_workers=n_workers)
    assert (mirrored.pairs[0].verdict, len(mirrored.evaluations[0])) == ("first", n)


@pytest.mark.parametrize("n_workers", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_success_rates_are_decided_on_by_discordant_pairs(n_workers):
    env = functools.partial(Levels, success="success")
    whole = compare([zero, one], env, num_trajectories=60, seed=2, n_workers=0)
    n, _ = decided_after(SuccessTest(0.05), *(each.successes for each in whole.evaluations))
    found = compare([zero, one], env, until_decided=0.05, decide_on="success", seed=2, n_workers=n_workers)
    assert [len(each) for each in found.evaluations] == [n, n]
    pairs = found.pairs[0]
    assert pairs.verdict == "second"
    successes = found["zero"].successes
    assert successes is not None
    assert pairs.discordant == (0, int((~successes).sum()))
    assert pairs.success_difference == 1 - successes.mean()
    assert pairs.success_difference_interval == rate_difference_interval(int((~successes).sum()), 0, n)


def test_agents_that_are_equal_are_not_told_apart():
    found = compare(
        [zero, also_zero], Levels, until_decided=0.05, bounds=BOUNDS, max_trajectories=40, n_workers=0, seed=1
    )
    assert len(found.evaluations[0]) == 40
    assert found.pairs[0].verdict is None
    assert "not decided" in str(found)
    assert found.stopped == "not decided after 40 trajectories, the most"
    assert "all differences are equal" in str(found)


def test_each_of_several_stops_when_it_is_told_from_the_first():
    env = functools.partial(Levels, success="success")
    found = compare(
        {"first": zero, "same": also_zero, "better": one}, env, until_decided=0.1, decide_on="success", seed=1,
        max_trajectories=60, n_workers=0,
    )  # fmt: skip
    n_first, n_same, n_better = (len(each) for each in found.evaluations)
    assert n_first == n_same == 60 > n_better
    two = compare([zero, one], env, until_decided=0.05, decide_on="success", seed=1, n_workers=0)
    assert len(two.evaluations[1]) == n_better, "alpha is divided by the number of comparisons"
    assert [pairs.verdict for pairs in found.pairs] == [None, "second"]
    assert [len(pairs) for pairs in found.pairs] == [60, n_better]


def test_what_one_agent_leaves_out_is_in_no_pair():
    class Fails(Levels):
        def step(self, action):
            if action and self.seed % 3 == 0:
                raise ValueError("no")
            return super().step(action)

    options: Any = {"on_failure": "drop", "n_workers": 0, "seed": 4}
    fixed = compare([zero, one], Fails, seeds=range(30), **options)
    assert len(fixed["one"]) == 20
    assert np.allclose(fixed.pairs[0].differences, 0.5)
    race = compare([zero, one], Fails, until_decided=0.05, bounds=BOUNDS, max_trajectories=30, **options)
    assert np.allclose(race.pairs[0].differences, 0.5)


def test_what_is_saved_is_loaded_again(tmp_path):
    env = functools.partial(Levels, success="success")
    for found in (
        compare([zero, one, "random"], Levels, num_trajectories=12, seed=3, n_workers=0),
        compare([zero, one], env, until_decided=0.05, decide_on="success", seed=2, n_workers=0),
        compare([zero, one], env, until_decided=0.05, bounds=BOUNDS, max_trajectories=20, seed=2, n_workers=0),
    ):
        path = found.save(tmp_path / "found.json")
        assert Comparison.load(path) == found
        assert str(Comparison.from_json(found.to_json())) == str(found)
    facts = json.loads(path.read_text())
    assert facts["summary"][0]["n_pairs"] == 20
    with pytest.raises(StorageError, match="is no comparison of streamsampler: list index out of range"):
        Comparison.from_json(json.dumps({**facts, "bounds": []}))
    facts["evaluations"].pop()
    with pytest.raises(StorageError, match="at least two agents"):
        Comparison.from_json(json.dumps(facts))
    with pytest.raises(StorageError, match="is no comparison of streamsampler"):
        Comparison.from_json(found["one"].to_json())


def test_the_table_has_a_column_for_each_agent():
    found = compare({"a": zero, "much longer": "random"}, Levels, num_trajectories=30, seed=3, n_workers=0)
    lines = str(found).splitlines()
    assert lines[0] == "a, much longer in Levels, on the same seeds"
    assert lines[1].split() == ["a", "much", "longer"]
    mean = next(line for line in lines if "mean return" in line)
    assert mean.split()[2:] == [f"{each.mean:.5g}" for each in found.evaluations]
    difference = next(line for line in lines if "difference of means" in line)
    assert difference.endswith(found.pairs[0].mean_difference_interval.method)
    assert any("as good as" in line for line in lines)
    assert t_interval(found.pairs[0].differences).low <= found.pairs[0].mean_difference


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"agents": [zero], "num_trajectories": 5}, "at least two agents, got 1"),
        ({"agents": "random", "num_trajectories": 5}, "agents must be a dict by name, or a list"),
        ({}, "how many"),
        ({"num_trajectories": 5, "until_decided": 0.05}, "leave out num_trajectories"),
        ({"num_trajectories": 5, "bounds": (0, 1)}, "bounds is for until_decided"),
        ({"until_decided": 0.05}, "until_decided needs bounds"),
        ({"until_decided": 0.05, "bounds": (1, 0)}, "two finite numbers that rise"),
        ({"until_decided": 0.05, "bounds": (0, 1)}, "bounds are .0, 1., and there is a return of"),
        ({"until_decided": 0.05, "bounds": (0, 1), "decide_on": "success"}, "bounds are those of returns"),
        ({"until_decided": 0.7, "bounds": (0, 1)}, "until_decided is how often equal agents"),
        ({"until_decided": True, "bounds": (0, 1)}, "until_decided is how often equal agents"),
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


class Interrupting:
    """A display that sends Ctrl-C after some trajectories of the second agent, or of both at once."""

    interval = 0.0

    def __init__(self, until):
        self.until = until
        self.began, self.last = 0, 10**9

    def __call__(self, snapshot):
        self.began += snapshot.trajectories < self.last
        self.last = snapshot.trajectories
        if snapshot.trajectories >= 5 and self.began >= self.until:
            raise KeyboardInterrupt


@pytest.mark.parametrize("until", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_finished_survives_ctrl_c(until):
    asked: Any = {"num_trajectories": 2_000} if until == 2 else {"until_decided": 0.05, "bounds": (-1e4, 1e4)}
    with pytest.raises(EvaluationInterruptedError) as caught:
        compare([zero, one], Levels, seed=2, n_workers=0, progress=Interrupting(until), **asked)
    found = caught.value.found
    assert found.stopped == "interrupted"
    assert 4 <= len(found.pairs[0]) < 2_000
    assert np.allclose(found.pairs[0].differences, 0.5)
    assert len(found["zero"]) == 2_000 or until == 1


def test_agents_of_one_name_get_numbers():
    found = compare([zero, zero, "random"], Levels, num_trajectories=2, n_workers=0)
    assert found.names == ("zero", "zero #2", "random")


def test_progress_names_the_agent_that_runs():
    notes = []

    def follow(snapshot):
        notes.append((snapshot.complete, snapshot.note))

    compare({"one": zero, "two": one}, Levels, num_trajectories=12, n_workers=0, seed=3, progress=follow)
    assert notes[0] == (False, "one")
    first, second = (note for complete, note in notes if complete)
    assert first.startswith("one: return ")
    assert second.startswith("two: return ")
