"""A comparison on a suite goes on, in rounds, until each agent is decided."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from streamsampler import compare, evaluate
from streamsampler.errors import DataError, RolloutError, UsageError
from streamsampler.evaluation.amounts import Amount
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.sequential import ReturnTest
from streamsampler.evaluation.suites.sequential_suite import bounds_over_tasks
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation
from streamsampler.evaluation.suites.suite_rounds import SuiteRounds, next_round
from tests.evaluation.test_gate import Told, one, two, zero
from tests.tiers import mostly_slow

# The gains of the tasks in which actions change the return: 20, 30 and 0 less for each.
SUITE: dict[str, Any] = {
    "push": partial(Told, gain=-20.0),
    "hold": Told,
    "arm/lift": partial(Told, gain=-30.0),
}
BOUNDS = (0, 100)
HOW: dict[str, Any] = {"seed": 1, "n_workers": 0}
ASKED: dict[str, Any] = {"until_decided": 0.05, "bounds": BOUNDS, "margin": 4}
AGENTS = {"old": zero, "new": one}


def compared(agents: Any = None, suite: Any = None, **options: Any) -> SuiteComparison:
    found: Any = compare(agents or AGENTS, suite or SUITE, **{**ASKED, **HOW, **options})
    return found


def lengths(found: SuiteComparison) -> dict[str, list[int]]:
    return {name: [len(it) for it in found[name].evaluations] for name in found}


def test_bounds_are_those_of_the_mean_over_tasks():
    bounds = {"push": (0.0, 100.0), "lift": (-10, 10)}
    assert bounds_over_tasks("return", bounds, None) == (-5, 55)
    assert bounds_over_tasks("return", bounds, {"push": (0.0, 50.0), "lift": (10.0, 0.0)}) == (0, 2)
    assert bounds_over_tasks("success", dict.fromkeys(bounds), None) == (0, 1)
    with pytest.raises(UsageError, match="bounds are those of returns"):
        bounds_over_tasks("success", bounds, None)
    with pytest.raises(UsageError, match="'lift' has none"):
        bounds_over_tasks("return", {**bounds, "lift": None}, None)
    with pytest.raises(UsageError, match="task 'lift': bounds must be"):
        bounds_over_tasks("return", {**bounds, "lift": (3, 3)}, None)


def test_rounds_grow_by_a_quarter():
    sizes = [next_round(0, 60)]
    while sizes[-1] < 60:
        sizes.append(next_round(sizes[-1], 60))
    assert sizes == [20, 25, 32, 40, 50, 60]
    assert next_round(0, 7) == 7


WHOLE = {name: evaluate(AGENTS[name], SUITE, n_trajectories=200, **HOW) for name in AGENTS}


def first(evaluation: Evaluation, n: int) -> Evaluation:
    """Return an evaluation of the first trajectories."""
    columns = ("indices", "seeds", "returns", "lengths", "terminated", "truncated", "successes")
    return replace(evaluation, **{name: getattr(evaluation, name)[:n] for name in columns})


def rounds(most: int = 200, **changed: Any) -> SuiteRounds:
    amounts = {task: Amount(most, "", bounds=BOUNDS) for task in SUITE}
    options = {"alpha": 0.05, "of": "return", "bounds": dict.fromkeys(SUITE, (0.0, 100.0)), "margin": 12.0, **changed}
    return SuiteRounds(list(AGENTS), amounts, **options)


def finish(found: SuiteRounds) -> list[int]:
    """Run all rounds, and return their sizes."""
    sizes = []
    while names := found.lacking():
        sizes.append(found.n)
        for name in names:
            agent, task = name.split(" in ")
            found.plan.finish(name, first(WHOLE[agent][task], found.plan.states[name].wanted))
    return sizes


def decided_after(margin: float, alpha: float = 0.05) -> int:
    """Return after how many pairs the test of the column of means decides."""
    test = ReturnTest(alpha, (0.0, 100.0), margin)
    columns = [np.mean([it.returns for it in WHOLE[name].evaluations], axis=0).tolist() for name in AGENTS]
    for n, pair in enumerate(zip(*columns, strict=True), start=1):
        test.add(*pair)
        if test.outcome != "undecided":
            return n
    raise AssertionError("not decided")


@pytest.mark.parametrize("margin", [0.0, 4.0, 30.0])
def test_rounds_end_with_the_one_in_which_the_test_of_means_decides(margin):
    found, n = rounds(margin=margin), decided_after(margin)
    sizes = finish(found)
    assert sizes[-2] < n <= sizes[-1] == found.n
    assert found.tests["new"].outcome == ("worse" if margin < 16 else "not worse")
    assert (found.reason, found.undecided, found.excess) == ("decided", [], {})
    most = rounds(n - 1, margin=margin)
    finish(most)
    assert most.reason == f"undecided after {n - 1} trajectories of each task, the most"


@pytest.mark.parametrize("cut", range(0, 131, 7))
def test_rounds_that_go_on_are_those_of_one_run(cut):
    whole, found = rounds(margin=4.0), rounds(margin=4.0)
    finish(whole)
    for position, name in enumerate(found.plan.states):
        agent, task = name.split(" in ")
        if n := min(whole.n, max(0, cut - 3 * position)):
            found.know(name, first(WHOLE[agent][task], n))
    finish(found)
    assert found.n == whole.n
    assert {name: it.n for name, it in found.plan.states.items()} == dict.fromkeys(whole.plan.states, whole.n)


def test_more_trajectories_than_are_needed_are_in_excess():
    found = rounds(margin=4.0)
    for name in found.plan.states:
        agent, task = name.split(" in ")
        found.know(name, first(WHOLE[agent][task], 180))
    assert finish(found) == []
    assert found.excess == dict.fromkeys(found.plan.states, (180, found.n))
    assert found.n < 180


def test_a_task_in_which_an_agent_failed_is_left_out_of_later_rounds():
    found = rounds(margin=4.0)
    for name in found.lacking():
        agent, task = name.split(" in ")
        if name == "new in push":
            found.plan.fail(name, UsageError("broken"))
        else:
            found.plan.finish(name, first(WHOLE[agent][task], 20))
    finish(found)
    assert found.common_tasks == ["hold", "arm/lift"]
    assert [found.plan.states[f"{agent} in push"].n for agent in AGENTS] == [20, 0]
    assert found.evaluations("old")["hold"].returns.shape == (found.n,)
    assert found.tests["new"].outcome == "worse"


def test_a_comparison_goes_on_until_the_mean_over_tasks_is_decided():
    found = compared()
    n = len(found["old"]["push"])
    assert lengths(found) == {"old": [n] * 3, "new": [n] * 3}
    assert decided_after(4.0) <= n < 100
    assert (found.stopped, found.verdict().outcome) == ("decided", "worse")
    for name, agent in AGENTS.items():
        alone = evaluate(agent, SUITE, n_trajectories=n, bounds=BOUNDS, **HOW)
        for task in SUITE:
            mine = replace(found[name][task], asked=alone[task].asked, stopped=alone[task].stopped)
            assert mine == alone[task]
    (pairs,) = found.pairs
    assert pairs.mean_difference_interval == pairs.test.interval == found.verdict().decisions[0].interval
    assert str(found).splitlines()[-3].startswith("verdict: new is worse than old by more than 4")
    assert "sure for all tasks together" in str(found)
    assert set(pairs.sure) == {"push", "arm/lift"}
    assert {it.interval.method for it in pairs.judged.values()} == {"betting"}


def test_it_is_kept_in_the_file(tmp_path):
    found = compared()
    loaded = SuiteComparison.load(found.save(tmp_path / "both.json"))
    assert (loaded, str(loaded)) == (found, str(found))
    assert loaded.verdict() == found.verdict()
    assert json.loads(found.to_json())["until_decided"] == 0.05


def test_without_a_margin_it_says_which_agent_is_better():
    found = compared(margin=None)
    assert "decided: old is better (betting on the differences)" in str(found)
    equal = compared({"old": zero, "same": zero}, margin=None, max_trajectories=25)
    assert equal.stopped == "undecided after 25 trajectories of each task, the most"
    assert "undecided (betting on the differences)" in str(equal)


def test_each_agent_ends_in_its_own_round_and_undecided_ones_say_how_many_more():
    agents = {"old": zero, "new": two, "same": zero, "near": one}
    found = compared(agents, margin=12, max_trajectories=130, bounds=(-30, 100))
    n = {name: each[0] for name, each in lengths(found).items()}
    assert n["near"] == n["old"] == 130
    assert max(n["new"], n["same"]) < 130
    assert [each.outcome for each in found.verdict()] == ["worse", "not worse", "undecided"]
    undecided = found.verdict().decisions[2]
    assert undecided.more == undecided.expected > 0  # type: ignore[operator]
    assert found.pairs[0].test.alpha == pytest.approx(0.05 / 3)


def test_success_rates_and_scores_decide_as_well():
    suite = {"push": partial(Told, n_lost=6), "lift": partial(Told, n_lost=8)}
    found = compared(suite=suite, decide_on="success", bounds=None, margin=0.1)
    assert found.verdict().outcome == "worse"
    assert found.pairs[0].success_difference_interval == found.pairs[0].test.interval
    assert "returns have no bounds" in found.pairs[0].mean_difference_interval.why
    assert found.pairs[0].sure == {}
    scores = compared(normalise={"push": (0, 100), "hold": (0, 100), "arm/lift": (100, 0)}, margin=0.2)
    assert scores.pairs[0].test.interval.method == "betting"
    assert scores.verdict().outcome == "not worse", "less is more in a task"


def test_seeds_may_be_given():
    seeds = list(range(100, 190))
    found = compared(seeds=seeds, seed=None)
    n = len(found["old"]["push"])
    assert found["new"]["hold"].seeds == tuple(seeds[:n])
    assert n < len(seeds)


class Weak(Told):
    """Raises for some seeds."""

    def reset(self, *, seed=None, options=None):
        if seed is not None and seed % 7 == 0:
            raise ValueError("weak")
        return super().reset(seed=seed, options=options)


def test_pairs_are_those_that_no_task_left_out():
    suite: dict[str, Any] = {"push": partial(Weak, gain=-20.0), "lift": partial(Told, gain=-30.0)}
    found = compared(suite=suite, on_failure="drop")
    n = len(found["old"]["push"])
    assert lengths(found) == {"old": [n, n], "new": [n, n]}
    (pairs,) = found.pairs
    alone = evaluate(zero, suite["push"], n_trajectories=n, on_failure="drop", **HOW)
    assert np.array_equal(found["old"]["push"].indices, alone.indices)
    assert alone.left_out > 0
    assert pairs.decision(4, "return").n_pairs == n
    again = compared(suite=suite, on_failure="drop", n_workers=2)
    assert again.to_json() == found.to_json()


def interrupting(after: int):
    def interrupt(snapshot):
        if snapshot.n_trajectories >= after:
            raise KeyboardInterrupt

    interrupt.interval = 0.0  # type: ignore[attr-defined]
    return interrupt


@pytest.mark.parametrize(
    "after", mostly_slow([1, *(pytest.param(n, marks=pytest.mark.slow) for n in (70, 121, 160)), 130])
)
def test_an_interrupted_comparison_goes_on_to_the_file_of_one_run(tmp_path, after):
    whole, out = compared(out=tmp_path / "whole.json"), tmp_path / "both.json"
    with pytest.raises(EvaluationInterruptedError) as caught:
        compared(out=out, progress=interrupting(after))
    found = caught.value.found
    assert isinstance(found, SuiteEvaluation if after < 60 else SuiteComparison)
    if after >= 60:
        assert (found.margin, found.until_decided, found.stopped) == (4, 0.05, "interrupted")
    again: Any = compare(AGENTS, SUITE, resume=out, margin=4, n_workers=0)
    assert again == whole
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()


@pytest.mark.slow
def test_a_finished_file_goes_on_with_more(tmp_path):
    few, whole = tmp_path / "few.json", tmp_path / "whole.json"
    compared(out=few, max_trajectories=23)
    compared(resume=few)
    compared(out=whole)
    assert few.read_bytes() == whole.read_bytes()
    many = tmp_path / "many.json"
    compare(AGENTS, SUITE, n_trajectories=190, bounds=BOUNDS, out=many, **HOW)
    with pytest.raises(UsageError, match=r"has 190 trajectories of old in push, and \d+ are enough: request more"):
        compared(resume=many)
    with pytest.raises(UsageError, match="has 190 trajectories, and only 30 are requested"):
        compared(resume=many, max_trajectories=30)


@pytest.mark.slow
def test_workers_do_not_change_when_it_is_decided():
    whole = compared()
    for n_workers in (1, 2, 5):
        assert compared(n_workers=n_workers).to_json() == whole.to_json()


class Raises:
    def __init__(self, suite):
        self.suite = suite

    def __call__(self, task):
        def act(observation):
            if task in self.suite:
                raise ValueError(f"no action in {task}")
            return 1

        return act


def raising(*tasks):
    made = Raises(tasks)
    return lambda task: made(task)


def test_a_failed_task_is_named_and_no_agent_passes():
    found = compared({"old": zero, "new": raising("hold")}, margin=60)
    assert list(found.tasks) == ["push", "arm/lift"]
    assert list(found.failed) == ["new: hold"]
    assert "no action in hold" in str(found)
    assert (found.stopped, found.verdict().outcome, found.verdict().more) == ("decided", "undecided", None)
    assert "no pairs in hold" in str(found.verdict())


def test_agents_without_a_common_task_end_the_comparison():
    caught: Any
    with pytest.raises(RolloutError, match="no action in push") as caught:
        compared({"old": zero, "new": raising(*SUITE)})
    assert "this is the error of the agent 'new'" in caught.value.__notes__
    assert {len(it) for it in caught.value.found["old"].evaluations} == {20}
    with pytest.raises(DataError, match=r"no action in push.*; new: arm/lift: ") as caught:
        compared({"old": raising("push"), "new": raising("hold", "arm/lift")})
    assert list(caught.value.found) == ["old", "new"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part": (1, 2)}, "a part is for n_trajectories, seeds or scenarios"),
        ({"tasks": ["push"]}, "tasks are for n_trajectories, seeds or scenarios"),
        ({"n_trajectories": 30}, "until_decided decides how many trajectories there are: leave out n_trajectories"),
        ({"n_trajectories": {"push": 3}}, "leave out n_trajectories"),
        ({"scenarios": [{"seed": 1}]}, "leave out scenarios"),
        ({"bounds": None}, "until_decided needs bounds=.*'push' has none"),
        ({"bounds": {"push": BOUNDS}}, "bounds lacks 'hold'"),
        ({"bounds": (5, 5)}, "task 'push': bounds must be|bounds must be"),
        ({"decide_on": "success"}, "bounds are those of returns"),
        ({"margin": -1}, "margin must be a number of at least 0"),
        ({"margin": 100}, "no agent can lose more"),
        ({"until_decided": 0.7}, "until_decided must be a small probability of a wrong decision between equal agents"),
        ({"until_decided": None, "max_trajectories": 9, "n_trajectories": 9}, "max_trajectories is for until_decided"),
        ({"max_trajectories": 0}, "max_trajectories"),
        (
            {
                "decide_on": "success",
                "bounds": None,
                "margin": 0.1,
                "suite": {"a": partial(Told, says=False)},
            },
            "agent 'old': task 'a': no success rate",
        ),
    ],
)
def test_comparisons_that_cannot_work_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        compared(**options)


def test_a_return_outside_of_the_bounds_fails_its_task():
    found = compared(bounds={"push": BOUNDS, "hold": BOUNDS, "arm/lift": (30, 100)})
    assert list(found.failed) == ["new: arm/lift"]
    assert "bounds are (30, 100)" in found.failed["new: arm/lift"]


def test_after_ctrl_c_the_agents_so_far_are_compared():
    three = {**AGENTS, "last": AGENTS["old"]}
    n_tasks = len(SUITE)
    with pytest.raises(EvaluationInterruptedError) as caught:
        compare(three, SUITE, until_decided=0.05, bounds=BOUNDS, progress=interrupting(20 * n_tasks + 20 + 1), **HOW)
    assert caught.value.found.names == tuple(AGENTS)
