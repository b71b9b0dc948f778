"""Merge files of one suite: parts of its tasks by trajectories, files of different tasks, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.joining import joined, lacking, parts_of_one_run
from streamsampler.evaluation.journal import INTERRUPTED
from streamsampler.evaluation.suites.suite_arguments import with_task
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
from streamsampler.evaluation.suites.suite_evaluation import (
    SuiteEvaluation,
    asked_of,
    asked_of_tasks,
    difference_between,
)


def merged_suite(found: Mapping[Path, SuiteEvaluation]) -> SuiteEvaluation:
    """Return the suite of a run without parts.

    Raises:
        UsageError: The suites differ, a task or a part of it is missing or repeated, or a run was interrupted: names
            the task and the file.
    """
    if difference := difference_between(found):
        raise UsageError(f"the files are of different suites: {difference}")
    first, suite = next(iter(found.items()))
    tasks: dict[str, Evaluation] = {}
    failed: dict[str, str] = {}
    for name in suite.names:
        errors = [each.failed[name] for each in found.values() if name in each.failed]
        evaluations = {path: it[name] for path, it in found.items() if name in it}
        if errors and not evaluations:
            failed[name] = errors[0]
        else:  # perhaps of a task that failed before, and was run again
            tasks[name] = with_task(name, _merged_task, evaluations)
    if len(found) == 1 and all(it.part is None for it in suite.evaluations):
        raise UsageError(f"{first} is no part: it holds all tasks of a run")
    reasons = [each.stopped for each in found.values() if each.stopped != INTERRUPTED]
    return SuiteEvaluation(
        names=suite.names, tasks=tasks, failed=failed, normalise=suite.normalise, stopped=reasons[0] if reasons else "",
        asked=_merged_asked(suite.names, tasks, list(found.values())),
    )  # fmt: skip


def _merged_asked(
    names: Sequence[str], tasks: Mapping[str, Evaluation], suites: Sequence[SuiteEvaluation]
) -> dict[str, Any] | None:
    """Return the request of a run without parts: for each task the request of the file with its trajectories."""
    asked: dict[str, Mapping[str, Any]] = {}
    for name in names:
        failed_in = next((it for it in suites if name in it.failed), None)
        own = tasks[name].asked if name in tasks else None
        if own is None and failed_in is not None:
            own = asked_of(failed_in, name)
        if own is None:
            return None
        asked[name] = own
    return asked_of_tasks(asked)


def _merged_task(found: Mapping[Path, Evaluation]) -> Evaluation:
    if not found:
        raise UsageError("no file has trajectories of it: evaluate it, too")
    if len(found) == 1 and (whole := next(iter(found.values()))).part is None:
        if lacks := lacking(whole):
            raise UsageError(f"{next(iter(found))} {lacks}")
        return whole
    return joined(parts_of_one_run(found))


def merged_comparison(found: Mapping[Path, SuiteComparison]) -> SuiteComparison:
    """Return the comparison of a run without parts; see `merged_suite`."""
    (first, whole), *others = found.items()
    for path, other in others:
        for what, one, its in (("agents", whole.names, other.names), ("margin", whole.margin, other.margin)):
            if one != its:
                raise UsageError(
                    f"the files are of different comparisons: {what} is {one} in {first}, and {its} in {path}"
                )
    suites = [merged_suite({path: each.suites[position] for path, each in found.items()})
              for position in range(len(whole.names))]  # fmt: skip
    return replace(whole, suites=tuple(suites), stopped=suites[0].stopped)
