"""Files of suites: resumed, killed, merged, compared."""

import functools
from typing import Any

import pytest

from streamsampler import compare, evaluate, merge
from streamsampler.errors import UsageError
from streamsampler.evaluation.evaluation_call import EvaluationInterruptedError
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation
from tests.evaluation.envs import Known, zero
from tests.evaluation.suites.test_decide_suite import interrupting

SUITE: dict[str, Any] = {"push": Known, "arm/lift": functools.partial(Known, success="success"), "cart": "CartPole-v1"}
HOW: dict[str, Any] = {"seed": 1, "n_workers": 0}


def one(observation):
    return 1


def evaluated(n: Any = 7, **options: Any) -> SuiteEvaluation:
    return evaluate(zero, SUITE, n_trajectories=n, **{**HOW, **options})


# Resumed


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_finished_suite_goes_on_to_the_bytes_of_one_run(tmp_path, n_workers):
    whole = evaluated({"push": 9, "arm/lift": 4, "cart": 6}).to_json()
    path = evaluated({"push": 5, "arm/lift": 4, "cart": 2}, n_workers=n_workers).save(tmp_path / "suite.json")
    found = evaluated({"push": 9, "arm/lift": 4, "cart": 6}, n_workers=n_workers, seed=None, resume=path)
    assert found.to_json() == path.read_text() == whole


def test_a_run_that_was_interrupted_goes_on(tmp_path):
    ran = []

    def interrupted(snapshot):
        ran.append(snapshot)
        if snapshot.n_trajectories >= 9:
            raise KeyboardInterrupt

    interrupted.interval = 0.0  # type: ignore[attr-defined]
    out = tmp_path / "suite.json"
    with pytest.raises(EvaluationInterruptedError) as caught:
        evaluated(out=out, progress=interrupted)
    assert list(caught.value.found) == ["push", "arm/lift"]
    assert not out.exists()
    journal = SuiteEvaluation.load(tmp_path / "suite.partial.json")
    assert {name: len(journal[name]) for name in journal} == {"push": 7, "arm/lift": 2}
    assert journal.stopped == "interrupted"
    assert evaluated(resume=out).to_json() == out.read_text() == evaluated().to_json()
    assert not (tmp_path / "suite.partial.json").exists()


def test_precision_goes_on(tmp_path):
    until = functools.partial(evaluate, zero, SUITE, **HOW, normalise=dict.fromkeys(SUITE, (0, 20)))
    path = until(until_halfwidth=0.05).save(tmp_path / "suite.json")
    found = until(until_halfwidth=0.03, resume=path)
    assert found.mean_interval.halfwidth <= 0.03
    for name, env in SUITE.items():
        own = evaluate(zero, env, n_trajectories=len(found[name]), **HOW)
        assert own.returns.tolist() == found[name].returns.tolist()


class Interrupted(Known):
    """Raises KeyboardInterrupt in the reset of a trajectory, counted over all tasks from 1 on."""

    at = 0

    def reset(self, *, seed=None, options=None):
        Interrupted.at -= 1
        if Interrupted.at == 0:
            raise KeyboardInterrupt
        return super().reset(seed=seed, options=options)


class Sevenths:
    """Has each seventh seed."""

    def __contains__(self, seed: int) -> bool:
        return seed % 7 == 0


UNEVEN: dict[str, Any] = {
    "push": Interrupted,
    "rare": functools.partial(Interrupted, returns="rare"),
    "arm/lift": functools.partial(Interrupted, fails=Sevenths()),
}
ROUNDS: dict[str, Any] = {**HOW, "until_halfwidth": 0.32, "on_failure": "drop"}


EACH = [pytest.param(n, marks=pytest.mark.slow) for n in range(1, 156) if n not in (61, 131)]


@pytest.mark.parametrize("at", [61, 131, *EACH])
def test_an_interrupted_round_goes_on_to_the_bytes_of_one_run(tmp_path, monkeypatch, at):
    monkeypatch.setattr(Interrupted, "at", 0)
    whole = evaluate(zero, UNEVEN, **ROUNDS)
    assert sum(map(len, whole.evaluations)) > 110
    assert whole["arm/lift"].left_out > 3
    monkeypatch.setattr(Interrupted, "at", at)
    with pytest.raises(KeyboardInterrupt) as caught:
        evaluate(zero, UNEVEN, out=tmp_path / "suite.json", **ROUNDS)
    assert Interrupted.at == 0
    assert evaluate(zero, UNEVEN, resume=tmp_path / "suite.json", **ROUNDS).to_json() == whole.to_json()
    if isinstance(caught.value, EvaluationInterruptedError):
        saved = caught.value.found.save(tmp_path / "saved.json")
        assert evaluate(zero, UNEVEN, resume=saved, **ROUNDS).to_json() == whole.to_json()


def test_a_finished_precision_goes_on_to_the_bytes_of_one_run(tmp_path):
    path = evaluate(zero, UNEVEN, **{**ROUNDS, "until_halfwidth": 0.5}).save(tmp_path / "suite.json")
    whole = evaluate(zero, UNEVEN, **ROUNDS)
    assert evaluate(zero, UNEVEN, resume=path, **ROUNDS).to_json() == path.read_text() == whole.to_json()
    with pytest.raises(
        UsageError, match=r"task '.*': .*suite.json has \d+ trajectories, and \d+ are enough: request more"
    ):
        evaluate(zero, UNEVEN, resume=path, **{**ROUNDS, "until_halfwidth": 0.5})
    with pytest.raises(UsageError, match=r"has \d+ trajectories, and only 32 are requested"):
        evaluate(zero, UNEVEN, resume=path, max_trajectories=32, **ROUNDS)
    assert path.read_text() == whole.to_json()


@pytest.mark.parametrize(
    "amount",
    [
        {"n_trajectories": 7},
        {"n_trajectories": {"push": 7, "arm/lift": 3, "bad": 4}},
        {"seeds": range(7)},
        {"scenarios": [{"seed": n, "name": f"start {n}"} for n in range(7)]},
        {"n_trajectories": 60, "part": (2, 3)},
        {"until_halfwidth": 0.7, "max_trajectories": 40},
    ],
    ids=["number", "dict", "seeds", "scenarios", "part", "precision"],
)
@pytest.mark.parametrize("interrupted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_without_an_amount_the_amount_of_the_file_is_completed(tmp_path, monkeypatch, amount, interrupted):
    """Its seed, part, bounds and normalised returns, too; also where a task failed, which is run again."""
    monkeypatch.setattr(Interrupted, "at", 0)
    path = tmp_path / "suite.json"
    suite = {"push": Interrupted, "arm/lift": Interrupted, "bad": functools.partial(Known, fails=range(2**31))}
    bounds = {"push": (-90, 90), "arm/lift": (-80, 80), "bad": (-80, 80)}
    more: dict[str, Any] = {"bounds": bounds, "normalise": dict.fromkeys(suite, (0, 20))}
    whole = evaluate(zero, suite, **HOW, **amount, **more)
    assert whole.failed.keys() == {"bad"}
    if interrupted:
        Interrupted.at = min(len(whole["push"]), 30) + 1
        with pytest.raises(KeyboardInterrupt):
            evaluate(zero, suite, out=path, **HOW, **amount, **more)
    else:
        whole.save(path)
    Interrupted.at = 0
    if not interrupted:
        with pytest.raises(UsageError, match="none of 'bad': give bounds again"):
            evaluate(zero, suite, resume=path, n_workers=0)
    # A whole file without trajectories of "bad" has no bounds of it, and a journal has those of all tasks.
    of_whole = {} if interrupted else {"bounds": bounds}
    assert evaluate(zero, suite, resume=path, n_workers=0, **of_whole).to_json() == whole.to_json()


def test_a_whole_file_has_the_bounds_of_its_tasks(tmp_path):
    bounds = {"push": (-90, 90), "lift": (-80, 80)}
    whole = evaluate(zero, dict.fromkeys(bounds, Known), n_trajectories=7, bounds=bounds, **HOW)
    again = evaluate(zero, dict.fromkeys(bounds, Known), resume=whole.save(tmp_path / "suite.json"), n_workers=0)
    assert again == whole


@pytest.mark.parametrize("amount", [{"n_trajectories": {"push": 7, "lift": 5}}, {"seeds": range(6)}])
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_comparison_without_an_amount_completes_that_of_the_file(tmp_path, amount, interrupted):
    path, suite = tmp_path / "both.json", {"push": Known, "lift": Known}
    bounds = {"push": (-90, 90), "lift": (-80, 80)}
    more: dict[str, Any] = {"bounds": bounds, "normalise": dict.fromkeys(suite, (0, 20)), **HOW, **amount}
    whole = compare({"zero": zero, "one": one}, suite, **more)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            compare({"zero": zero, "one": one}, suite, out=path, progress=interrupting(9), **more)
    else:
        whole.save(path)
    again: Any = compare({"zero": zero, "one": one}, suite, resume=path, n_workers=0)
    assert again.to_json() == path.read_text() == whole.to_json()


def test_a_merged_file_has_the_amount_of_one_run(tmp_path):
    numbers = {"push": 5, "arm/lift": 2, "cart": 3}
    files = [evaluated(numbers, tasks=[name]).save(tmp_path / f"{i}.json") for i, name in enumerate(SUITE)]
    merged = merge(files, tmp_path / "whole.json")
    assert merged.to_json() == evaluated(numbers).to_json()
    assert merged.asked == {"n_trajectories": numbers}


def test_a_file_of_another_run_is_refused(tmp_path):
    path = evaluated().save(tmp_path / "suite.json")
    with pytest.raises(UsageError, match=r"of another suite: the tasks are push, arm/lift, cart in .*, and push here"):
        evaluate(zero, {"push": Known}, n_trajectories=9, resume=path, **HOW)
    with pytest.raises(UsageError, match=r"the agent's name is 'zero' in .*suite\.json, and 'one' here"):
        evaluate(one, SUITE, n_trajectories=9, resume=path, **HOW)
    with pytest.raises(UsageError, match="has 7 trajectories, and only 3 are requested"):
        evaluated(3, resume=path)


# Merged


def test_parts_and_tasks_are_merged_to_the_bytes_of_one_run(tmp_path):
    whole = evaluated().to_json()
    parts = [evaluated(part=(i, 3)).save(tmp_path / f"part-{i}.json") for i in (1, 2, 3)]
    assert merge(parts[::-1], tmp_path / "whole.json").to_json() == whole
    tasks = [evaluated(tasks=[name]).save(tmp_path / f"task-{i}.json") for i, name in enumerate(SUITE)]
    assert merge(tasks, tmp_path / "whole.json").to_json() == whole
    with pytest.raises(UsageError, match="task 'cart': no file has trajectories of it"):
        merge(tasks[:2], tmp_path / "other.json")
    with pytest.raises(UsageError, match=r"whole\.json is no part: it holds all tasks of a run"):
        merge([tmp_path / "whole.json"], tmp_path / "other.json")
    with pytest.raises(UsageError, match="part 2 of 3 is missing"):
        merge([parts[0], parts[2]], tmp_path / "other.json")
    other = evaluate(zero, {"push": Known}, n_trajectories=7, **HOW).save(tmp_path / "one.json")
    with pytest.raises(UsageError, match=r"the files are of different suites: the tasks are "):
        merge([tasks[0], other], tmp_path / "other.json")


def test_parts_of_a_comparison_are_merged(tmp_path):
    agents = {"zero": zero, "one": one}
    parts = [compare(agents, SUITE, n_trajectories=7, part=(i, 2), **HOW).save(tmp_path / f"{i}.json") for i in (1, 2)]
    whole = compare(agents, SUITE, n_trajectories=7, **HOW)
    assert merge(parts, tmp_path / "whole.json").to_json() == whole.to_json()


# Compared, and refused


def test_saved_suites_are_compared():
    suites = {"old": evaluated(20), "new": evaluate(one, SUITE, n_trajectories=20, **HOW)}
    found = compare(suites)
    ran = compare({"old": zero, "new": one}, SUITE, n_trajectories=20, **HOW)
    assert isinstance(found, SuiteComparison)
    assert found.pairs[0].summary() == ran.pairs[0].summary()
    with pytest.raises(UsageError, match=r"of different suites: the tasks are .* in old, and .* in new"):
        compare({"old": evaluated(20), "new": evaluate(one, {"push": Known}, n_trajectories=20, **HOW)})


def test_a_verdict_is_about_the_mean_over_tasks(tmp_path):
    suite = {"push": Known, "pull": Known}
    found = compare({"one": one, "any": "random"}, suite, n_trajectories=30, margin=0.1, **HOW)
    assert found.verdict().outcome == "worse"  # by 0 or 1 in each pair
    assert "verdict: any is worse than one by more than 0.1" in str(found)
    assert not found.verdict()
    assert SuiteComparison.load(found.save(tmp_path / "both.json")).verdict().outcome == "worse"
    same = compare({"zero": zero, "same": zero}, suite, n_trajectories=20, **HOW)
    assert same.verdict(0).outcome == "not worse"
    with pytest.raises(UsageError, match="the margin is missing"):
        same.verdict()
    with pytest.raises(UsageError, match="margin must be a number of at least 0"):
        same.verdict(-1)
    without = same.verdict(0.1, decide_on="success")
    assert (without.outcome, without.more) == ("undecided", None)
    assert str(without).endswith("no interval: the infos have no success flag")
    with pytest.raises(UsageError, match="agent 'zero': task 'push': no success rate"):
        compare({"zero": zero, "same": zero}, suite, n_trajectories=20, margin=0.1, decide_on="success", **HOW)


def test_an_agent_that_fails_in_a_task_does_not_pass_the_gate():
    def careless(observation):
        if observation.shape == (4,):
            raise ValueError("four numbers")
        return 1

    old, new = evaluated(20), evaluate(careless, SUITE, n_trajectories=20, **HOW)
    verdict = compare({"old": old, "new": new}).verdict(0.5)
    assert not verdict
    assert verdict.outcome == "undecided"
    assert "no pairs in cart" in str(verdict)
    with pytest.raises(UsageError, match=r"new has no trajectories of arm/lift, cart: evaluate these tasks"):
        compare({"old": old, "new": evaluated(20, tasks=["push"])})
    with pytest.raises(UsageError, match="old holds the kind 'suite', and new 'evaluation': compare eval"):
        compare({"old": old, "new": evaluate(zero, Known, n_trajectories=20, **HOW)})


def test_a_task_that_failed_and_was_run_again_is_merged(tmp_path):
    failing = {**SUITE, "cart": functools.partial(Known, fails=range(2**31))}
    first = evaluate(zero, failing, n_trajectories=7, **HOW).save(tmp_path / "first.json")
    again = evaluated(tasks=["cart"]).save(tmp_path / "again.json")
    merged = merge([first, again], tmp_path / "whole.json")
    assert merged.to_json() == evaluated().to_json()


def test_files_of_tasks_that_were_asked_for_with_other_seeds_are_merged(tmp_path):
    suite = {"push": Known, "lift": Known}
    paths = []
    for name, n in (("push", 2), ("lift", 3)):
        paths.append(tmp_path / f"{name}.json")
        evaluate(zero, suite, seeds=range(n), tasks=[name], n_workers=0, out=paths[-1])
    found = merge(paths, tmp_path / "whole.json")
    assert isinstance(found, SuiteEvaluation)
    assert (len(found["push"]), len(found["lift"]), found.asked) == (2, 3, None)


class Counted(Known):
    """Counts the trajectories of all environments."""

    n_begun = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        Counted.n_begun += 1
        return super().reset(seed=seed, options=options)


def test_a_task_that_fails_without_success_rate_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Counted, "n_begun", 0)
    path = tmp_path / "suite.json"
    suite = {"silent": Counted, "push": functools.partial(Counted, success="success")}
    how: dict[str, Any] = {
        "until_halfwidth": 0.01,
        "precision_of": "success",
        "max_trajectories": 30,
        "check": None,
        **HOW,
    }
    whole = evaluate(zero, suite, **how)
    n_of_one_run, Counted.n_begun = Counted.n_begun, 0
    with pytest.raises(KeyboardInterrupt):
        evaluate(zero, suite, out=path, progress=interrupting(35), **how)
    assert evaluate(zero, suite, resume=path, **how) == whole
    assert Counted.n_begun < n_of_one_run + 10  # 10 of "silent" again would be more; some were begun at the interrupt
