"""What a check found: findings, and which workers are fastest."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from streamsampler.checking.benchmark_report import BenchReport, WayMeasured
from streamsampler.checking.findings import Finding, Verdict, worst
from streamsampler.core.version import __version__
from streamsampler.core.words import count

# ----------------------------------------------------------------------
# Print a check: a line for each finding, with what to do below it; and the recommendation.


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


# ----------------------------------------------------------------------


@dataclass(frozen=True, repr=False, kw_only=True)
class CheckReport:
    """What `streamsampler.check` found: `print(report)` shows a table, `report["ends"]` is one `Finding`.

    Attributes:
        environment: What the environment is called.
        agent: What the agent is called.
        findings: What was found, in the order in which it was looked for.
        workers: How fast workers of several kinds are; None where that was not measured.
        n_cores: How many cores there are to use.
        seed: What all was derived from: `check(…, seed=report.seed)` runs the same trajectories.
        versions: The versions of Python and of libraries, by name.
    """

    environment: str
    agent: str
    findings: tuple[Finding, ...]
    workers: BenchReport | None
    n_cores: int
    seed: int
    versions: Mapping[str, str]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, name: str) -> Finding:
        """Return the finding of a name, the worst where there are several.

        Raises:
            KeyError: There is none.
        """
        named = [finding for finding in self.findings if finding.name == name]
        if not named:
            raise KeyError(name)
        verdict = worst(named)
        return next(finding for finding in named if finding.verdict == verdict)

    def __str__(self) -> str:
        return text_of(self)

    def __repr__(self) -> str:
        return f"CheckReport({self.environment}: {len(self.failures)} failures, {len(self.warnings)} warnings)"

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What must be changed."""
        return self._of("failure")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What may be wrong, or slow."""
        return self._of("warning")

    @property
    def ok(self) -> bool:
        """Whether there is no failure."""
        return not self.failures

    @property
    def recommendation(self) -> WayMeasured | None:
        """Which workers to use; None where none was measured."""
        return None if self.workers is None else self.workers.recommendation

    def _of(self, verdict: Verdict) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == verdict)

    def to_json(self) -> str:
        """Return this report as JSON: all attributes, and "ok"."""
        facts = {
            "format": "streamsampler check",
            "format_version": 1,
            "package_version": __version__,
            "ok": self.ok,
            **asdict(self),
            "workers": None if self.workers is None else self.workers.facts(),
            "versions": dict(self.versions),
        }
        return json.dumps(facts, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
