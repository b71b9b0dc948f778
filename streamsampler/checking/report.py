"""The report of a check: its findings, and the fastest workers."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from streamsampler.checking.benchmark_report import BenchReport, WayMeasured
from streamsampler.checking.findings import OPTIONS_OF_ARGUMENTS, Finding, Verdict, worst
from streamsampler.core.version import __version__
from streamsampler.core.words import count

_WIDTH = 100
_VERDICT_WORDS = {"pass": "pass", "warning": "WARN", "failure": "FAIL", "not checked": "----"}
_LINES_OF_DETAILS = 12


def _finding(finding: Finding, width: int, *, for_command: bool) -> list[str]:
    lines = _wrapped(f"  {_VERDICT_WORDS[finding.verdict]}  {finding.name:{width}}  ", finding.what)
    indent = " " * (width + 10)
    if advice := finding.advice:
        for argument, option in OPTIONS_OF_ARGUMENTS.items() if for_command else ():
            advice = advice.replace(argument, option)
        lines += _wrapped(f"{indent}-> ", advice)
    if finding.verdict == "failure" and finding.details:
        shown = finding.details.splitlines()
        cut = ["…"] if len(shown) > _LINES_OF_DETAILS else []
        lines += [f"{indent}| {line}".rstrip() for line in [*cut, *shown[-_LINES_OF_DETAILS:]]]
    return lines


def _wrapped(first: str, text: str) -> list[str]:
    room = max(40, _WIDTH - len(first))
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{first}{parts[0]}".rstrip(), *(f"{' ' * len(first)}{part}" for part in parts[1:])]


@dataclass(frozen=True, repr=False, kw_only=True)
class CheckReport:
    """The result of `streamsampler.check`: `print(report)` shows a table, `report["ends"]` is a `Finding`.

    Attributes:
        environment: Name of the environment.
        agent: Name of the agent.
        findings: The findings, in the order of the checks.
        workers: Speed of several kinds of workers; None if it was not measured.
        n_cores: Number of usable cores.
        seed: Source of all seeds: `check(…, seed=report.seed)` runs the same trajectories.
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
        """Return the finding of a name, the worst of several.

        Raises:
            KeyError: No finding has this name.
        """
        named = [finding for finding in self.findings if finding.name == name]
        if not named:
            raise KeyError(name)
        verdict = worst(named)
        return next(finding for finding in named if finding.verdict == verdict)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, for_command: bool = False) -> str:
        """Return this report as lines of text.

        Args:
            for_command: Whether to name options of the command line instead of Python arguments.
        """
        lines = [f"{self.environment} with {self.agent}"]
        width = max(len(finding.name) for finding in self.findings)
        for finding in self.findings:
            lines += _finding(finding, width, for_command=for_command)
        if self.workers is not None:
            lines += ["", *self.workers.table(for_command=for_command)]
        n_unknown = len(self._of("not checked"))
        amounts = [count(len(self.failures), "failure"), count(len(self.warnings), "warning")]
        amounts += [f"{n_unknown} not checked"] if n_unknown else []
        return "\n".join([*lines, "", f"{', '.join(amounts)}; seed {self.seed}"])

    def __repr__(self) -> str:
        return f"CheckReport({self.environment}: {len(self.failures)} failures, {len(self.warnings)} warnings)"

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that must be mended."""
        return self._of("failure")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that may be wrong, or slow."""
        return self._of("warning")

    @property
    def ok(self) -> bool:
        """Whether no finding is a failure."""
        return not self.failures

    @property
    def recommendation(self) -> WayMeasured | None:
        """The recommended workers; None if none was measured."""
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
