"""Compare agents on a suite: pairs by task and seed."""

import functools
import re
from typing import Any

import numpy as np
import pytest

from streamsampler import compare, evaluate
from streamsampler.errors import DataError, RolloutError, UsageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
from tests.evaluation.envs import Known, zero

SUITE: dict[str, Any] = {"push": Known, "lift": functools.partial(Known, success="success")}
HOW: dict[str, Any] = {"seed": 1, "n_workers": 0}


def one(observation):
    return 1


def mixed(task):
    return one if task == "push" else zero


def test_pairs_are_taken_by_task_and_seed():
    found = compare({"zero": zero, "one": one}, SUITE, n_trajectories=12, **HOW)
    assert isinstance(found, SuiteComparison)
    for name, agent in (("zero", zero), ("one", one)):
        assert found[name] == evaluate(agent, SUITE, n_trajectories=12, **HOW)
    for task, env in SUITE.items():
        own = compare({"zero": zero, "one": one}, env, n_trajectories=12, **HOW)
        assert isinstance(own, Comparison)
        assert np.array_equal(found.tasks[task].pairs[0].differences, own.pairs[0].differences)
        assert found.pairs[0][task].seeds == own.evaluations[0].seeds
    assert found.pairs[0].mean_difference == pytest.approx(1)
    assert found.pairs[0].probability_of_improvement > 0.5
    assert found.pairs[0].success_difference is None  # one of the tasks says nothing of success
    with pytest.raises(KeyError, match="no pairs of 'reach'; the tasks with pairs are push, lift"):
        found.pairs[0]["reach"]
    with pytest.raises(KeyError, match="the keys are the names of agents, zero, one"):
        found["two"]


def test_differences_are_of_scores_where_returns_are_normalised():
    scales = {"push": (0, 2), "lift": (4, 0)}
    found = compare([zero, one], SUITE, n_trajectories=12, normalise=scales, **HOW)
    assert found.pairs[0].mean_difference == pytest.approx((1 / 2 - 1 / 4) / 2)


def test_where_an_agent_is_better_is_said():
    found = compare({"old": zero, "new": mixed, "best": one}, SUITE, n_trajectories=20, **HOW)
    assert [pairs.second for pairs in found.pairs] == ["new", "best"]
    assert found.pairs[0].level == 0.975
    assert found.pairs[0]["lift"].mean_difference == 0
    assert "lift" not in found.pairs[0].sure
    text = str(found)
    assert "new minus old: 40 pairs in 2 tasks" in text
    assert "sure for all tasks together" in text


def test_a_comparison_is_saved_and_loaded(tmp_path):
    found = compare([zero, one], SUITE, n_trajectories=12, **HOW)
    assert SuiteComparison.load(found.save(tmp_path / "both.json")) == found


def test_a_task_that_failed_for_one_agent_has_no_pairs():
    def careless(observation):
        if observation.shape == (4,):
            raise ValueError("four numbers")
        return 0

    suite = {**SUITE, "cart": "CartPole-v1"}
    found = compare({"zero": zero, "careless": careless}, suite, n_trajectories=3, **HOW)
    assert list(found.tasks) == ["push", "lift"]
    assert list(found.failed) == ["careless: cart"]
    assert "1 evaluation failed" in str(found)
    with pytest.raises(RolloutError, match="four numbers"):
        compare({"zero": zero, "careless": careless}, suite, n_trajectories=3, tasks=["cart"], **HOW)


def test_wrong_arguments_are_refused():
    with pytest.raises(UsageError, match="normalise needs a suite"):
        compare([zero, one], Known, n_trajectories=3, normalise={"push": (0, 1)}, **HOW)
    with pytest.raises(UsageError, match="the suite is empty"):
        compare([zero, one], {}, n_trajectories=3, **HOW)


class Fails:
    """Raises in some tasks, by the number of numbers in an observation."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def get_action(self, observation):
        if len(observation) in self.sizes:
            raise ValueError(f"{len(observation)} in an observation")
        return 0, {}


TWO_SIZES: dict[str, Any] = {"push": Known, "cart": "CartPole-v1"}  # 1 and 4 numbers


@pytest.mark.parametrize("amount", [{"n_trajectories": 3}, {"until_decided": 0.05, "bounds": (-100, 100)}])
def test_agents_have_the_same_seeds_without_a_seed(amount):
    found: Any = compare({"zero": zero, "one": one}, SUITE, n_workers=0, **amount)
    assert found["zero"].evaluations[0].seeds == found["one"].evaluations[0].seeds
    assert found["zero"].evaluations[0].seed is not None


def test_the_error_of_an_agent_names_it_and_keeps_the_suites_before():
    with pytest.raises(RolloutError, match="in an observation") as caught:
        compare({"zero": zero, "broken": Fails(1, 4)}, TWO_SIZES, n_trajectories=3, **HOW)
    assert caught.value.found == {"zero": evaluate(zero, TWO_SIZES, n_trajectories=3, **HOW)}
    assert caught.value.__notes__[-2:] == [
        "this is the error of the agent 'broken'",
        "the trajectories of zero were complete: with out=FILE they are kept, and resume=FILE resumes them",
    ]
    with pytest.raises(RolloutError) as caught:
        compare({"zero": zero, "broken": Fails(1)}, Known, n_trajectories=3, **HOW)
    assert caught.value.found == {"zero": evaluate(zero, Known, n_trajectories=3, **HOW)}
    assert "this is the error of the agent 'broken'" in caught.value.__notes__


def test_the_trajectories_before_an_error_are_in_the_journal(tmp_path):
    out = tmp_path / "both.json"
    with pytest.raises(RolloutError) as caught:
        compare({"zero": zero, "one": Fails(1, 4)}, TWO_SIZES, n_trajectories=3, out=out, **HOW)
    assert f'resume="{out}" resumes them' in caught.value.__notes__[-1]
    assert not any("with out=FILE" in note for note in caught.value.__notes__)
    found = compare({"zero": zero, "one": one}, TWO_SIZES, n_trajectories=3, resume=out, **HOW)
    assert found == compare({"zero": zero, "one": one}, TWO_SIZES, n_trajectories=3, **HOW)


def test_agents_that_fail_in_different_tasks_have_all_reasons_in_the_error():
    with pytest.raises(DataError, match="first and second have no common task without failure: ") as caught:
        compare({"first": Fails(1), "second": Fails(4)}, TWO_SIZES, n_trajectories=3, **HOW)
    assert re.search("first: push: .*ValueError: 1 in an observation.*; second: cart: .*4 in an obs", str(caught.value))
    assert list(caught.value.found) == ["first", "second"]


def test_wrong_arguments_of_an_agent_name_it():
    with pytest.raises(UsageError, match="agent 'other': agent is a dict that lacks lift"):
        compare({"zero": zero, "other": {"push": zero}}, SUITE, n_trajectories=3, **HOW)


def test_agents_of_a_list_without_names_have_numbers():
    of_tasks = {"push": zero, "lift": one}
    found = compare([of_tasks, zero, lambda observation: 0, of_tasks], SUITE, n_trajectories=3, **HOW)
    assert found.names == ("agent 1", "zero", "agent 3", "agent 4")
    alone = compare([lambda observation: 0, zero, zero], Known, n_trajectories=3, **HOW)
    assert alone.names == ("agent 1", "zero", "zero #3")
    suites = [evaluate(agent, SUITE, n_trajectories=3, **HOW) for agent in (zero, of_tasks)]
    assert compare(suites).names == ("zero", "agent 2")


def test_scenarios_may_repeat_a_seed_with_other_options():
    scenarios = [{"seed": seed, "options": {"level": float(level)}} for seed in range(6) for level in (0, 5)]
    found = compare({"zero": zero, "one": one}, {"push": Known, "lift": Known}, scenarios=scenarios, n_workers=0)
    assert "one minus zero: 24 pairs in 2 tasks" in str(found)
    assert found.pairs[0].mean_difference == pytest.approx(1)
    assert found.pairs[0]["push"].indices == tuple(range(12))


def test_a_comparison_of_no_tasks_and_of_another_suite_is_refused(tmp_path):
    out = tmp_path / "both.json"
    compare({"zero": zero, "one": one}, SUITE, n_trajectories=3, normalise=dict.fromkeys(SUITE, (0, 9)), out=out, **HOW)
    with pytest.raises(UsageError, match="the suite is empty"):
        compare({"zero": zero, "one": one}, {}, resume=tmp_path / "none.json", n_trajectories=3)
    for other in ({}, {"other": Known}):
        with pytest.raises(UsageError, match="is of another suite comparison"):
            compare({"zero": zero, "one": one}, other, resume=out)


def test_names_that_stand_for_two_pairs_of_an_agent_and_a_task_are_refused():
    suite = {"y in z": Known, "z": Known}
    with pytest.raises(UsageError, match="'x in y in z' is the name of two pairs of an agent and a task"):
        compare({"x": zero, "x in y": one}, suite, n_trajectories=3, **HOW)
