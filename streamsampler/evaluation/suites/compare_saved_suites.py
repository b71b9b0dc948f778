"""Compare saved suites without running anything, by pairs of the same task and seed."""

from __future__ import annotations

from collections.abc import Mapping

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.compare_saved import compare_saved
from streamsampler.evaluation.intervals import Bounds
from streamsampler.evaluation.suites.suite_arguments import with_task
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation, difference_between


def compare_saved_suites(named: Mapping[str, SuiteEvaluation], bounds: Bounds | None = None) -> SuiteComparison:
    """Compare saved suites, pair by pair.

    Args:
        named: Two suites or more by name; each is compared with the first.
        bounds: Refused: the evaluations in the files have their own bounds.

    Raises:
        UsageError: Tasks or scales differ; or evaluations of a task differ in environment, settings or meaning of
            success, are parts, or have no common seed: names the task.
    """
    if bounds is not None:
        raise UsageError("saved suites have their own bounds: give bounds to evaluate, not to compare")
    _check_tasks(named)
    one = next(iter(named.values()))
    for task in one.names:
        evaluations = {name: suite[task] for name, suite in named.items() if task in suite.tasks}
        if len(evaluations) == len(named):
            with_task(task, compare_saved, evaluations)
    stopped = list(dict.fromkeys(suite.stopped for suite in named.values()))
    shown = stopped[0] if len(stopped) == 1 else f"saved suites: {'; '.join(stopped)}"
    return SuiteComparison(names=tuple(named), suites=tuple(named.values()), stopped=shown)


def _check_tasks(named: Mapping[str, SuiteEvaluation]) -> None:
    if difference := difference_between(named):
        raise UsageError(f"suites are compared task by task, and these are of different suites: {difference}")
    for name, suite in named.items():
        if missing := [task for task in suite.names if task not in suite.tasks and task not in suite.failed]:
            raise UsageError(
                f"{name} has no trajectories of {', '.join(missing)}: evaluate these tasks, and merge the files, "
                "before suites are compared"
            )
