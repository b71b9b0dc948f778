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

# ----------------------------------------------------------------------
# Compute timesteps per second from when timesteps arrived. Pure: no clock.


_MANY = 10
"""Timesteps of each environment from which a rate can be told. With fewer, where they begin and end decides it."""
_LATE = 1.25
"""An environment without a timestep so many times as long as the first one's took is not waited for."""


class RoundTally:
    """Timesteps of a round, which begins before any environment is reset.

    The rate counts from the beginning to the arrival of the last timestep: each timestep has what led to it in that
    time, its reset included, and nothing that leads to a later one. Resets belong to whole trajectories, of which a
    short round steps only a part. So only that part of the time until the first timesteps is counted, where there are
    many later ones. How long trajectories are is not known but that they are that long at least: the rate may be too
    low, and not too high.

    Args:
        n_envs: How many environments are stepped, in all processes.
        length: Timesteps that trajectories are known to have; they may have more.
        resets: Seconds that the first resets take, about.

    Attributes:
        timesteps: How many there are.
        seconds: When the last one arrived.
    """

    def __init__(self, n_envs: int, length: float, resets: float = 0.0) -> None:
        self._n_envs, self._length, self._resets = n_envs, length, resets
        self._first: tuple[int, float] | None = None
        self.timesteps, self.seconds = 0, 0.0

    def note(self, timesteps: int, seconds: float) -> None:
        """Note that there are so many timesteps in all, so many seconds after the beginning."""
        if timesteps <= self.timesteps:
            return
        self.timesteps, self.seconds = timesteps, seconds
        if self._first is None:
            self._first = timesteps, seconds

    def ends(self, seconds: float, window: float, most: float = 0.0) -> bool:
        """Return whether the round ends: its window is over, and each environment had time for a timestep.

        Args:
            seconds: Seconds since the beginning.
            window: How long the round is to be, besides the first resets.
            most: How long it may be for the sake of a rate that is certain, besides the first resets.
        """
        if self._first is None or seconds - self._resets < window:
            return False
        if self.certain:
            return True
        if seconds - self._resets < most:
            return False
        return self.timesteps >= self._n_envs or seconds >= _LATE * self._first[1]

    @property
    def certain(self) -> bool:
        """Whether there are timesteps enough for a rate that another round would confirm."""
        return self.timesteps >= _MANY * self._n_envs

    @property
    def rate(self) -> float:
        """Timesteps per second; 0 where there were none."""
        if self._first is None:
            return 0.0
        plain = self.timesteps / max(self.seconds, 1e-9)
        first, until_first = self._first
        later = self.timesteps - first
        if later < _MANY * self._n_envs:
            return plain
        stepped = min(1.0, later / (self._n_envs * self._length))
        return max(plain, later / (self.seconds - until_first + stepped * until_first))


# ----------------------------------------------------------------------


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
        steps_only: Whether it is no way of this library, and neither records nor restores: it is recommended to loops
            that choose the actions themselves, and to nobody else.
        in_flight: How many trajectories each process has in flight; None where nothing waits.
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
        hints: What may be faster still and was not measured, in sentences.
        why_in_flight: Where something waits, how the numbers in flight were found; empty where nothing does.
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
        """The way that is recommended; None where nothing was measured."""
        return recommended([way for way in self.ways if not way.steps_only])

    @property
    def recommendation_in_parent(self) -> WayMeasured | None:
        """The way that is recommended where the caller's program chooses the actions; None where none was measured."""
        return recommended([way for way in self.ways if way.in_parent])

    @property
    def why(self) -> str:
        """Why it is recommended, in a sentence; empty where none is."""
        chosen = self.recommendation
        if chosen is None:
            return ""
        rate = f"{_number(chosen.timesteps_per_second)} timesteps per second"
        others = [way for way in self.ways if way.rates and way is not chosen and not way.steps_only]
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
                text = f"where your own loop chooses the actions: {here.name}, with {rate}"
                lines += ["", *textwrap.wrap(text, _WIDTH), "", f"  {here.call}"]
        for hint in self.hints:
            lines += ["", *textwrap.wrap(f"may be faster still: {hint}", _WIDTH)]
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
