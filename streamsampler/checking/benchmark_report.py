"""What was measured of each way, and which one is recommended."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamsampler.core.version import __version__
from streamsampler.core.words import count

_SAME = 1.1
"""What is faster by less than this factor is not worth more processes, or another way of using them."""
_WIDTH = 100
_UNCERTAIN = (
    "about: from fewer than ten timesteps of each environment, or from its first seconds alone, which may be too low.\n"
    "More seconds make it certain."
)


@dataclass(frozen=True, slots=True)
class WayMeasured:
    """How fast a way is.

    Attributes:
        name: What it is called.
        call: How to use it, as Python code.
        in_parent: Whether the agent lives in the caller's process.
        n_processes: How many processes it has besides that.
        rates: Timesteps per second in each round; none where it was not measured.
        obstacle: Why it was not; empty where it was.
        uncertain: Whether a round had fewer than ten timesteps of each environment, or there was time for none but the
            first one, in which processes are started.
        options: The options of the command line for it; empty where there are none.
    """

    name: str
    call: str
    in_parent: bool
    n_processes: int
    rates: tuple[float, ...] = ()
    obstacle: str = ""
    uncertain: bool = False
    options: str = ""

    @property
    def timesteps_per_second(self) -> float:
        """The median of the rounds; 0 where it was not measured."""
        return statistics.median(self.rates) if self.rates else 0.0


@dataclass(frozen=True, repr=False, kw_only=True)
class BenchReport:
    """What `bench` found; `print(report)` shows a table.

    Attributes:
        environment: What the environment is called.
        agent: What the agent is called.
        ways: How fast each way is.
        n_cores: How many cores there are to use.
        n_workers: How many processes were used where there are several.
        why_workers: Why.
        seconds: What all of it took.
        cut_after: Timesteps after which trajectories were cut, in order to measure; None where they need not be.
    """

    environment: str
    agent: str
    ways: tuple[WayMeasured, ...]
    n_cores: int
    n_workers: int
    why_workers: str
    seconds: float
    cut_after: int | None

    @property
    def recommendation(self) -> WayMeasured | None:
        """The way that is recommended; None where nothing was measured."""
        return recommended(self.ways)

    @property
    def why(self) -> str:
        """Why it is recommended, in a sentence; empty where none is."""
        chosen = self.recommendation
        if chosen is None:
            return ""
        rate = f"{_number(chosen.timesteps_per_second)} timesteps per second"
        others = [way for way in self.ways if way.rates and way is not chosen]
        if not others:
            return f"It is the only one that could be measured, at {rate}."
        fastest = max(others, key=lambda way: way.timesteps_per_second)
        times = chosen.timesteps_per_second / (fastest.timesteps_per_second or math.inf)
        if times < _SAME:
            return f"With {rate} it is about as fast as {fastest.name}, and simpler."
        return f"With {rate} it is {_number(times)} times as fast as the next best, {fastest.name}."

    def __str__(self) -> str:
        return self.text()

    def text(self, *, for_command: bool = False) -> str:
        """Return this report as lines of text.

        Args:
            for_command: Whether to recommend options of the command line, where there are any.
        """
        first = f"{self.environment} with {self.agent}, {count(self.n_cores, 'core')}, in {self.seconds:.0f} s"
        return "\n".join([first, "", *self.table(for_command=for_command)])

    def table(self, *, for_command: bool = False) -> list[str]:
        """Return the ways and the recommendation as lines of text; see `text`."""
        width = max(len(way.name) for way in self.ways)
        lines = [f"{'timesteps per second':<{width + 2}}  {'processes':>9}  {'median':>11}  {'least to most':>23}"]
        lines += [line for way in self.ways for line in _row(way, width)]
        notes = f"{count(self.n_workers, 'worker')}: {self.why_workers}"
        if self.cut_after is not None:
            notes += f"; trajectories were cut after {count(self.cut_after, 'timestep')}"
        lines += ["", *textwrap.wrap(notes, _WIDTH)]
        if any(way.uncertain for way in self.ways):
            lines += ["", _UNCERTAIN]
        chosen = self.recommendation
        if chosen is not None:
            how = [chosen.call]
            if for_command and chosen.options:
                how = [f"{chosen.options}, or in Python", chosen.call]
            lines += ["", *textwrap.wrap(f"recommended: {chosen.name}. {self.why}", _WIDTH), ""]
            lines += [f"  {line}" for line in how]
        return lines

    def __repr__(self) -> str:
        chosen = self.recommendation
        return f"BenchReport({self.environment}: {chosen.name if chosen else 'nothing measured'})"

    def facts(self) -> dict[str, Any]:
        """Return all attributes, medians, and the recommendation, as JSON has them."""
        chosen = self.recommendation
        said = None if chosen is None else {"name": chosen.name, "call": chosen.call, "options": chosen.options}
        return {
            **asdict(self),
            "ways": [{**asdict(way), "timesteps_per_second": way.timesteps_per_second} for way in self.ways],
            "recommendation": said and {**said, "why": self.why},
        }

    def to_json(self) -> str:
        """Return this report as JSON: all attributes, medians, and the recommendation."""
        facts = {"format": "streamsampler bench", "format_version": 1, "package_version": __version__, **self.facts()}
        return json.dumps(facts, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _row(way: WayMeasured, width: int) -> list[str]:
    first = f"  {way.name:<{width}}  {way.n_processes or 'none':>9}  "
    if not way.rates:
        parts = textwrap.wrap(way.obstacle, max(30, _WIDTH - len(first))) or [""]
        return [f"{first}{parts[0]}", *(f"{'':{len(first)}}{part}" for part in parts[1:])]
    spread = f"{_number(min(way.rates))} to {_number(max(way.rates))}"
    median = ("about " if way.uncertain else "") + _number(way.timesteps_per_second)
    return [f"{first}{median:>11}  {spread:>23}"]


def _number(value: float) -> str:
    """Return a number as people write it: whole above 10, with one digit after the point below, and two below 1."""
    text = f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
    return text.removesuffix(".0")


def recommended(ways: Sequence[WayMeasured]) -> WayMeasured | None:
    """Return the first of those that are about as fast as the fastest; None where none was measured.

    Args:
        ways: The ways, those that need least first.
    """
    fastest = max((way.timesteps_per_second for way in ways), default=0.0)
    return next((way for way in ways if way.rates and _SAME * way.timesteps_per_second >= fastest), None)
