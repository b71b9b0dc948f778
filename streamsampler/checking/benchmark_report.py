"""The report of `bench`: the speed of each way, and the recommended way."""

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
"""A speedup below this factor is not worth more processes, or another use of them."""
_WIDTH = 100
_UNCERTAIN = (
    "rough: measured with fewer than ten timesteps per environment, or in its first seconds alone, so that the rate "
    "may be too low.\n"
    "Measure for more seconds to be certain."
)


@dataclass(frozen=True, slots=True)
class WayMeasured:
    """The speed of a way.

    Attributes:
        name: Name of the way.
        call: Its use, as Python code.
        in_parent: Whether the agent lives in the caller's process.
        n_processes: Number of further processes.
        rates: Timesteps per second of each round; empty if nothing was measured.
        obstacle: Why nothing was measured; empty otherwise.
        uncertain: Whether a round had fewer than ten timesteps per environment, or the only round is the first, in
            which processes are started.
        options: The way's options on the command line, or empty.
        steps_only: Whether another library steps the environments, and neither records nor restores them: recommended
            only to loops that choose actions themselves.
        in_flight: Trajectories in flight per process; None if nothing waits.
    """

    name: str
    call: str
    in_parent: bool
    n_processes: int
    rates: tuple[float, ...] = ()
    obstacle: str = ""
    uncertain: bool = False
    options: str = ""
    steps_only: bool = False
    in_flight: int | None = None

    @property
    def timesteps_per_second(self) -> float:
        """The median of the rounds; 0 if nothing was measured."""
        return statistics.median(self.rates) if self.rates else 0.0


@dataclass(frozen=True, repr=False, kw_only=True)
class BenchReport:
    """The result of `bench`; `print(report)` shows a table.

    Attributes:
        environment: Name of the environment.
        agent: Name of the agent.
        ways: The speed of each way.
        n_cores: Number of usable cores.
        n_workers: Number of processes in ways with several.
        why_workers: The reason for this number.
        seconds: Duration of the measurement, in seconds.
        cut_after: Timesteps after which trajectories were cut for the measurement; None if they were not.
        hints: Ways that may be faster and were not measured, in sentences.
        why_in_flight: The reason for the numbers in flight; empty if nothing waits.
    """

    environment: str
    agent: str
    ways: tuple[WayMeasured, ...]
    n_cores: int
    n_workers: int
    why_workers: str
    seconds: float
    cut_after: int | None
    hints: tuple[str, ...] = ()
    why_in_flight: str = ""

    @property
    def recommendation(self) -> WayMeasured | None:
        """The recommended way; None if nothing was measured."""
        return recommended([way for way in self.ways if not way.steps_only])

    @property
    def recommendation_in_parent(self) -> WayMeasured | None:
        """The recommended way for programs that choose the actions themselves; None if no such way was measured."""
        return recommended([way for way in self.ways if way.in_parent])

    @property
    def why(self) -> str:
        """The reason for the recommendation, in a sentence; empty without a recommendation."""
        chosen = self.recommendation
        if chosen is None:
            return ""
        rate = f"{_number(chosen.timesteps_per_second)} timesteps per second"
        others = [way for way in self.ways if way.rates and way is not chosen and not way.steps_only]
        if not others:
            return f"It is the only way that could be measured, at {rate}."
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
            for_command: Whether to recommend command-line options where possible.
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
        if self.why_in_flight:
            lines += ["", *textwrap.wrap(f"in flight: {self.why_in_flight}", _WIDTH)]
        if any(way.uncertain for way in self.ways):
            lines += ["", _UNCERTAIN]
        chosen = self.recommendation
        if chosen is not None:
            how = [chosen.call]
            if for_command and chosen.options:
                how = [f"{chosen.options}, or in Python", chosen.call]
            lines += ["", *textwrap.wrap(f"recommended: {chosen.name}. {self.why}", _WIDTH), ""]
            lines += [f"  {line}" for line in how]
            here = self.recommendation_in_parent
            if here is not None and here is not chosen:
                rate = f"{_number(here.timesteps_per_second)} timesteps per second"
                text = f"for a loop of your own that chooses the actions: {here.name}, with {rate}"
                lines += ["", *textwrap.wrap(text, _WIDTH), "", f"  {here.call}"]
        for hint in self.hints:
            lines += ["", *textwrap.wrap(f"may be faster still: {hint}", _WIDTH)]
        return lines

    def __repr__(self) -> str:
        chosen = self.recommendation
        return f"BenchReport({self.environment}: {chosen.name if chosen else 'nothing measured'})"

    def facts(self) -> dict[str, Any]:
        """Return all attributes, medians and the recommendation, as JSON values."""
        chosen = self.recommendation
        said = None if chosen is None else {"name": chosen.name, "call": chosen.call, "options": chosen.options}
        return {
            **asdict(self),
            "ways": [{**asdict(way), "timesteps_per_second": way.timesteps_per_second} for way in self.ways],
            "recommendation": said and {**said, "why": self.why},
        }

    def to_json(self) -> str:
        """Return all attributes, medians and the recommendation as JSON text."""
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
    """Format a number: whole above 10, with a digit after the point below 10, and two below 1."""
    text = f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
    return text.removesuffix(".0")


def recommended(ways: Sequence[WayMeasured]) -> WayMeasured | None:
    """Return the first way that is about as fast as the fastest; None if nothing was measured.

    Args:
        ways: The ways, in ascending order of what they need.
    """
    fastest = max((way.timesteps_per_second for way in ways), default=0.0)
    return next((way for way in ways if way.rates and _SAME * way.timesteps_per_second >= fastest), None)
