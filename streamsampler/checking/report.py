"""What a check found: findings, costs and a recommendation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from streamsampler.benchmarking.report import BenchReport, WayMeasured
from streamsampler.checking.findings import Finding, Verdict, worst
from streamsampler.checking.printing import text_of
from streamsampler.checking.speed import Speed
from streamsampler.version import __version__

__all__ = ["CheckReport"]


@dataclass(frozen=True, repr=False, kw_only=True)
class CheckReport:
    """What `streamsampler.check` found: `print(report)` shows a table, `report["ends"]` is one `Finding`.

    Attributes:
        environment: What the environment is called.
        agent: What the agent is called.
        findings: What was found, in the order in which it was looked for.
        speed: How fast environment and agent are; None where that was not measured.
        workers: How fast workers of several kinds are; None where that was not measured.
        n_cores: How many cores there are to use.
        seed: What all was derived from: `check(…, seed=report.seed)` runs the same trajectories.
        versions: The versions of Python and of libraries, by name.
    """

    environment: str
    agent: str
    findings: tuple[Finding, ...]
    speed: Speed | None
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
        return json.dumps(_finite(facts), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    """Return JSON without numbers that it has no word for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
