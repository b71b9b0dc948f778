"""Print a check: a line for each finding, with what to do below it; costs; and the recommendation."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from streamsampler.checking.findings import Finding
from streamsampler.checking.speed import Costs
from streamsampler.data.words import count

if TYPE_CHECKING:
    from streamsampler.checking.report import CheckReport

__all__ = ["text_of"]

_WIDTH = 100
_WORDS = {"pass": "pass", "warning": "WARN", "failure": "FAIL", "not checked": "----"}
_LINES_OF_DETAILS = 12


def text_of(report: CheckReport, *, for_command: bool = False) -> str:
    """Return a report as lines of text.

    Args:
        report: The report.
        for_command: Whether to recommend options of the command line, and not arguments in Python.
    """
    lines = [f"{report.environment} with {report.agent}"]
    width = max(len(finding.name) for finding in report.findings)
    for finding in report.findings:
        lines += _finding(finding, width)
    speed = report.speed
    if speed is not None and speed.costs is not None:
        lines += ["", *_costs(speed.costs)]
    if report.workers is not None:
        lines += ["", *report.workers.table(for_command=for_command)]
    failures, warnings = len(report.failures), len(report.warnings)
    lines += ["", f"{count(failures, 'failure')}, {count(warnings, 'warning')}; seed {report.seed}"]
    return "\n".join(lines)


def _finding(finding: Finding, width: int) -> list[str]:
    lines = _wrapped(f"  {_WORDS[finding.verdict]}  {finding.name:{width}}  ", finding.what)
    indent = " " * (width + 10)
    if finding.advice:
        lines += _wrapped(f"{indent}-> ", finding.advice)
    if finding.verdict == "failure" and finding.details:
        shown = finding.details.splitlines()
        cut = ["…"] if len(shown) > _LINES_OF_DETAILS else []
        lines += [f"{indent}| {line}".rstrip() for line in [*cut, *shown[-_LINES_OF_DETAILS:]]]
    return lines


def _wrapped(first: str, text: str) -> list[str]:
    room = max(40, _WIDTH - len(first))
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{first}{parts[0]}".rstrip(), *(f"{' ' * len(first)}{part}" for part in parts[1:])]


def _costs(costs: Costs) -> list[str]:
    rows = [(name, getattr(costs, name), share) for name, share in costs.shares.items()]
    lines = ["milliseconds for each timestep, in one environment"]
    lines += [f"  {name:<10}{value:>10.4g}{share:>7.0%}" for name, value, share in rows]
    return [*lines, f"  {'all':<10}{costs.total:>10.4g}"]
