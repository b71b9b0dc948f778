"""Arguments of suites in pairs: each task has the result of its own evaluation, and files have that of one run."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsampler import evaluate, merge
from streamsampler.evaluation.evaluation_call import EvaluationInterruptedError
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation
from tests.evaluation.envs import Known, zero
from tests.scripted.games import Comings
from tests.tiers import mostly_slow

FACTORS: dict[str, list[Any]] = {
    "amount": ["number", "numbers", "seeds", "scenarios", "halfwidth", "success"],
    "how": ["one run", "parts", "tasks", "interrupted", "more"],
    "drops": [None, "on_failure", "drop_if"],
    "several": [False, True],
    "normalise": [False, True],
    "bounds": [False, True],
    "open_envs": [1, 2],
    "n_workers": [0, 2],
}
Case = dict[str, Any]


def is_valid(case: Case) -> bool:
    """Return whether a case is possible: the others are refused, or have no success."""
    is_rule, is_fixed = case["amount"] in ("halfwidth", "success"), case["amount"] in ("seeds", "scenarios")
    if case["amount"] == "success" and (case["bounds"] or case["several"]):
        return False
    return not (
        (is_rule and case["how"] in ("parts", "tasks"))
        or (case["how"] == "parts" and case["drops"] and not is_fixed)
        or (case["several"] and case["drops"])
    )


def in_pairs() -> list[Case]:
    """Return cases that have each pair of values that can be: always the case with most new pairs."""
    cases = [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]
    pairs = {index: set(itertools.combinations(case.items(), 2)) for index, case in enumerate(cases) if is_valid(case)}
    chosen, left = [], set().union(*pairs.values())
    while left:
        best = max(pairs, key=lambda index: len(pairs[index] & left))
        chosen.append(cases[best])
        left -= pairs[best]
    return chosen


class Uneven(Known):
    """Fails from each seventh seed if it is to, and has an abnormal start from each fifth seed."""

    def __init__(self, fails: bool) -> None:
        super().__init__(success="success")
        self.does_fail = fails

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if self.does_fail and seed % 7 == 0:
            raise ValueError("fails")
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"abnormal": seed % 5 == 0}


def is_abnormal(info: dict[str, Any]) -> bool:
    return bool(info.get("abnormal"))


def scenario(n: int) -> dict[str, Any]:
    return {"seed": n, "options": {"level": n % 3}, "name": f"start {n}"}


AMOUNTS: dict[str, tuple[Any, Any]] = {
    "number": ({"n_trajectories": 5}, {"n_trajectories": 9}),
    "numbers": ({"n_trajectories": {"push": 3, "arm/lift": 6}}, {"n_trajectories": {"push": 8, "arm/lift": 6}}),
    "seeds": ({"seeds": range(1, 6)}, {"seeds": range(1, 13)}),
    "scenarios": ({"scenarios": [*map(scenario, range(1, 6))]}, {"scenarios": [*map(scenario, range(1, 13))]}),
    "halfwidth": ({"until_halfwidth": 0.9, "max_trajectories": 40}, {"until_halfwidth": 0.45, "max_trajectories": 40}),
    "success": (
        {"until_halfwidth": 0.2, "precision_of": "success", "max_trajectories": 40},
        {"until_halfwidth": 0.14, "precision_of": "success", "max_trajectories": 45},
    ),
}
"""For each kind of amount a smaller one, and the one of the run."""


SCALE = 20.0


def is_slow(case: Case) -> bool:
    return case["n_workers"] > 0 or case["amount"] in ("success", "halfwidth") or case["how"] in ("one run", "more")


def amounts_of(case: Case) -> list[dict[str, Any]]:
    """Return the amounts of a case; half-widths are those of scores if there are any."""
    if case["amount"] != "halfwidth" or not case["normalise"]:
        return list(AMOUNTS[case["amount"]])
    return [{**it, "until_halfwidth": it["until_halfwidth"] / SCALE} for it in AMOUNTS["halfwidth"]]


def interrupt_twice(evaluated: Any, amount: dict[str, Any], path: Path) -> None:
    for n in (4, 10):

        def interrupt(snapshot: Any, n: int = n) -> None:
            if snapshot.n_trajectories >= n:
                raise KeyboardInterrupt

        interrupt.interval = 0.0  # type: ignore[attr-defined]
        with pytest.raises(EvaluationInterruptedError):
            evaluated(**amount, resume=path, progress=interrupt)


def evaluations(case: Case, path: Path, evaluated: Any) -> Iterator[SuiteEvaluation]:
    """Yield the results of a case, which are to be those of one run."""
    less, amount = amounts_of(case)
    match case["how"]:
        case "interrupted":
            interrupt_twice(evaluated, amount, path)
            yield evaluated(resume=path)
        case "one run":
            yield evaluated(**amount, out=path)
            yield SuiteEvaluation.load(path)
        case "parts":
            parts = [evaluated(**amount, part=(i, 2)).save(path.with_name(f"part-{i}.json")) for i in (1, 2)]
            yield merge(parts, path)  # type: ignore[misc]
        case "tasks":
            names = ("push", "arm/lift")
            files = [evaluated(**amount, tasks=[it]).save(path.with_name(f"task-{it[:3]}.json")) for it in names]
            yield merge(files, path)  # type: ignore[misc]
        case "more":
            evaluated(**less).save(path)
            yield evaluated(**amount, resume=path)


def shown(case: Case) -> str:
    return "-".join(str(it if isinstance(it, str | int) and not isinstance(it, bool) else name)
                    for name, it in case.items() if it not in (None, False))  # fmt: skip


@pytest.mark.parametrize(
    "case",
    mostly_slow([pytest.param(it, id=shown(it), marks=[pytest.mark.slow] * is_slow(it)) for it in in_pairs()], 3),
)
def test_each_task_has_its_own_result_and_files_that_of_one_run(tmp_path, case):
    suite: dict[str, Any] = {"push": lambda: Uneven(fails=False), "arm/lift": lambda: Uneven(fails=case["drops"])}
    suite = dict.fromkeys(suite, Comings) if case["several"] else suite
    how: dict[str, Any] = {"seed": 4}
    how |= {"bounds": (-500, 500)} if case["bounds"] else {}
    how |= {"return_of": "all"} if case["several"] else {}
    how |= {"on_failure": "drop"} if case["drops"] == "on_failure" else {}
    if case["drops"] == "drop_if":
        how |= {"drop_if": is_abnormal, "on_failure": "drop"}
    agent = "random" if case["several"] else zero
    _, amount = amounts_of(case)

    def evaluated(**options: Any) -> Any:
        scales = dict.fromkeys(suite, (0, SCALE)) if case["normalise"] else None
        given = {"n_workers": case["n_workers"], "open_envs": case["open_envs"], "normalise": scales}
        return evaluate(agent, suite, **{**given, **how, **options})

    whole = evaluated(**amount, n_workers=0)
    for found in evaluations(case, tmp_path / "suite.json", evaluated):
        assert found.to_json() == whole.to_json()
    for name, env in suite.items():
        n = amount.get("n_trajectories")
        of_task = {**amount, "n_trajectories": n[name]} if isinstance(n, dict) else amount
        if case["amount"] in ("halfwidth", "success"):
            of_task = {"n_trajectories": len(whole[name])}
        own = evaluate(agent, env, **of_task, **how, n_workers=0)
        same = {"stopped": whole[name].stopped, "asked": whole[name].asked}
        assert {**whole[name].facts(), **same} == {**own.facts(), **same}
