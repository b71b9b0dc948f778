"""Compare agents on a suite: all its tasks, on the same seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsampler.core.progress import ProgressArgument
from streamsampler.evaluation.agent_errors import naming_agent
from streamsampler.evaluation.evaluation_call import EvaluationInterruptedError
from streamsampler.evaluation.rules import check_successes
from streamsampler.evaluation.run_file import RunFile
from streamsampler.evaluation.suites.evaluate_suite import SuiteArguments, SuiteCall
from streamsampler.evaluation.suites.suite_arguments import with_task
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison, interrupted_comparison
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation


def compare_suite(
    agents: Mapping[str, Any], arguments: SuiteArguments, run: RunFile, decision: Mapping[str, Any],
    progress: ProgressArgument,
) -> SuiteComparison:  # fmt: skip
    """Compare agents on a suite; see `streamsampler.compare` for arguments and errors."""
    verdict = {name: decision[name] for name in ("margin", "decide_on") if name in decision}
    tasks = list(arguments.envs)
    calls: dict[str, SuiteCall] = {}
    for name, agent in agents.items():  # wrong arguments are errors before anything runs
        with naming_agent(name, {}, are_kept=False):
            calls[name] = SuiteCall(agent, arguments)
    run.begin(arguments.asked, agents=list(agents), **arguments.journal_facts, **verdict)
    suites: dict[str, SuiteEvaluation] = {}
    with run:
        for position, (name, call) in enumerate(calls.items()):
            try:
                with naming_agent(name, suites, are_kept=run.path is not None):
                    suites[name] = call.run(run, progress, agent=name, first=position * len(tasks))
                    if "margin" in verdict and verdict["decide_on"] == "success":
                        check_says_success(suites[name])
            except EvaluationInterruptedError as interrupt:
                suites[name] = interrupt.found
                found = interrupted_comparison(suites, verdict)
                raise EvaluationInterruptedError(found, sum(map(len, found.evaluations))) from interrupt
            except KeyboardInterrupt as interrupt:  # also while the next agent's workers start
                if not suites:
                    raise
                found = interrupted_comparison(suites, verdict)
                raise EvaluationInterruptedError(found, sum(map(len, found.evaluations))) from interrupt
        stopped = next(iter(suites.values())).stopped
        comparison = SuiteComparison.of_suites(suites, stopped=stopped, **verdict)
        run.finish(comparison)
    return comparison


def check_says_success(suite: SuiteEvaluation) -> None:
    """Check that each task's infos have a success flag.

    Raises:
        UsageError: A task's infos have none, after enough trajectories to know; names the task.
    """
    for name, evaluation in suite.tasks.items():
        if evaluation.successes is None:
            with_task(name, check_successes, len(evaluation))
