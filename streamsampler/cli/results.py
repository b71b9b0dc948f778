"""Carry out `evaluate` and `compare`: print their result, and write it to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import click

from streamsampler.cli.grouped import TYPED

if TYPE_CHECKING:
    from streamsampler.cli.running import CliRun
    from streamsampler.evaluation.comparison import Comparison
    from streamsampler.evaluation.evaluation import Evaluation
    from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
    from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation


AnyFound: TypeAlias = "Evaluation | Comparison | SuiteEvaluation | SuiteComparison"
_CODES = {"not worse": 0, "worse": 3, "undecided": 4}
"""The exit codes of verdicts."""


def print_found(
    ctx: click.Context, options: dict[str, Any], find: Callable[[CliRun], AnyFound], *, as_json: bool,
    quiet: bool, imports: tuple[str, ...],
) -> None:  # fmt: skip
    """Evaluate or compare, print the result, write it, and exit.

    Args:
        ctx: The command's context.
        options: The options by name.
        find: Returns the result.
        as_json: Whether to print the JSON of `--out`.
        quiet: Whether to print only errors on standard error.
        imports: Modules to import first.
    """
    from streamsampler.cli.messages import translated
    from streamsampler.cli.running import running
    from streamsampler.cli.streams import print_error, print_result
    from streamsampler.evaluation.evaluate import EvaluationInterruptedError
    from streamsampler.evaluation.journal import INTERRUPTED
    from streamsampler.evaluation.replay import VideoError
    from streamsampler.evaluation.run_file import save_interrupted

    out = _take_files(options)
    begun, problem = perf_counter(), None
    with running(ctx, "evaluating", quiet=quiet, imports=imports) as run:
        run.if_interrupted = _if_interrupted(options)
        try:
            with run.bar:
                found = find(run)
        except EvaluationInterruptedError as interrupt:
            found = interrupt.found
        except VideoError as error:
            found, problem = error.found, error
        interrupted = run.interrupts.received is not None
        if out is not None:
            out = save_interrupted(found, out) if found.stopped == INTERRUPTED else found.save(out)
        text = _text(found, options, as_json=as_json)
    if interrupted or not run.shows_end:
        alone = "agents" in options and found.KIND in ("evaluation", "suite")
        print_error(_line(found, perf_counter() - begun, interrupted=interrupted, alone=alone))
    if not (as_json or options.get("table")):
        text += _written(ctx, out, options, found)
        if options.get("video") and problem is None and not interrupted:
            text += f"\nvideos in: {options['video']}"
    if problem is None:
        run.finish(text, kept=out, code=_code_of(found))
    with translated(ctx):
        print_result(text, kept=out)
        raise problem


def _code_of(found: AnyFound) -> int:
    """Return the exit code: 1 if a task of a suite failed, otherwise the code of the requested verdict."""
    if getattr(found, "failed", None):
        return 1
    if getattr(found, "margin", None) is None:
        return 0
    return _CODES[cast("Comparison | SuiteComparison", found).verdict().outcome]


def _text(found: AnyFound, options: dict[str, Any], *, as_json: bool) -> str:
    if as_json:
        return found.to_json().rstrip("\n")
    match options.get("table"):
        case "md":
            return cast("SuiteEvaluation", found).to_markdown().rstrip("\n")
        case "csv":
            return cast("SuiteEvaluation", found).to_csv().rstrip("\n")
    return str(found)


def _take_files(options: dict[str, Any]) -> Path | None:
    """Replace `--out` and `--resume` by paths that can be written; return the path to write."""
    from streamsampler.cli.targets import checked_file
    from streamsampler.evaluation.journal import whole_of

    for name in ("out", "resume"):
        if options[name] is not None:
            options[name] = checked_file(
                options[name], ".json", where="results are written to .json files", option=f"'--{name}'"
            )
    resumed: Path | None = options["resume"] and whole_of(options["resume"])
    options["out"] = options["out"] or resumed
    return options["out"]  # type: ignore[no-any-return]


def _if_interrupted(options: dict[str, Any]) -> str:
    """Return the message for a signal before the first trajectory."""
    return "nothing was kept" if options["resume"] is None else f"{options['resume']} is unchanged"


def _written(ctx: click.Context, out: Path | None, options: dict[str, Any], found: AnyFound) -> str:
    """Return lines about the file, and after an interrupt the command that completes it."""
    from streamsampler.cli.sampler_options import command_line
    from streamsampler.evaluation.journal import INTERRUPTED

    if out is None or found.stopped != INTERRUPTED:
        return "" if out is None else f"\nwritten to: {out}"
    more = () if options["resume"] is not None else ("--resume", str(options["out"]))
    return f"\nwritten to: {out}\nto get all: {command_line(ctx.meta[TYPED], *more)}"


def _line(found: AnyFound, seconds: float, *, interrupted: bool, alone: bool) -> str:
    from streamsampler.core.words import count, duration

    n_timesteps = sum(int(each.lengths.sum()) for each in found.evaluations)
    amount = f"{count(sum(map(len, found.evaluations)), 'trajectory')}, {count(n_timesteps, 'timestep')}"
    line = f"{amount} in {duration(seconds)}"
    why = " Only the first agent has trajectories: there are no pairs to compare yet." if alone else ""
    return f"Interrupted: the result is of {line}.{why}" if interrupted else line
