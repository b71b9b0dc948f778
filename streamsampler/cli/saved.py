"""Compare files of saved evaluations: the command `compare` with files in place of an environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from streamsampler.cli.values import existing

if TYPE_CHECKING:
    from streamsampler.cli.running import CliRun
    from streamsampler.evaluation.comparison import Comparison
    from streamsampler.evaluation.evaluation import Evaluation
    from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
    from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation

_FOR_FILES = {"env_id", "bounds", "margin", "decide_on", "out", "as_json", "quiet"}
"""The parameters of `compare` that also apply to files."""


def comparison_of_files(
    ctx: click.Context, files: tuple[str, ...], names: list[str], options: dict[str, Any]
) -> Callable[[CliRun], Comparison | SuiteComparison]:
    """Return a function that compares saved evaluations when the command runs.

    Args:
        ctx: The command's context.
        files: The files.
        names: The names of the evaluations.
        options: The options by name.

    Raises:
        click.UsageError: An option is for agents that run, or a file is missing.
    """
    if not any(name.endswith(".json") for name in files):
        raise click.UsageError(
            f"compare takes one ENV_ID, and an --agent for each agent; or files of saved evaluations, and {files[0]!r} "
            "is none."
        )
    _refuse_others(ctx)
    paths = [existing(name, what="FILE") for name in files]

    def find(_: CliRun) -> Comparison | SuiteComparison:
        from streamsampler.evaluation.compare import compare

        evaluations: dict[str, Any] = dict(zip(names, map(_loaded, paths), strict=True))
        given: dict[str, Any] = {name: options[name] for name in ("bounds", "margin", "decide_on", "out")}
        found: Comparison | SuiteComparison = compare(evaluations, **given)
        return found

    return find


def _refuse_others(ctx: click.Context) -> None:
    """Refuse options for agents that run."""
    sources = {param: ctx.get_parameter_source(str(param.name)) for param in ctx.command.params}
    given = [
        next(each for each in param.opts if each.startswith("--"))
        for param, source in sources.items()
        if param.name not in _FOR_FILES and source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
        if param.expose_value
    ]
    if given:
        verb = "is" if len(given) == 1 else "are"
        raise click.UsageError(f"{' and '.join(given)} {verb} for agents that run, and not for saved evaluations.")


def _loaded(path: Path) -> Evaluation | SuiteEvaluation:
    """Load the evaluation of a file.

    Raises:
        StorageError: The file has other contents.
    """
    from streamsampler.core.errors import StorageError
    from streamsampler.evaluation.evaluation import Evaluation
    from streamsampler.evaluation.merging import kind_of
    from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation

    kind = kind_of(path)
    if kind in ("comparison", "suite comparison", "file of trajectories", "folder"):
        raise StorageError(f"{path} holds a {kind}, and only evaluations are compared: give what evaluate --out wrote")
    return SuiteEvaluation.load(path) if kind == "suite" else Evaluation.load(path)
