"""Draw suites: the mean of each task with its interval, and performance profiles.

Needs matplotlib: `pip install matplotlib`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.words import count
from streamsampler.evaluation.chart_style import COLOURS, draw_legend, short, written_figure
from streamsampler.evaluation.evaluation import number
from streamsampler.evaluation.intervals import Interval, Unknown
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation

_HEIGHT_OF_TASK, _HEIGHT_OF_PROFILE, _MARGIN = 0.26, 3.2, 1.3  # inches
_N_THRESHOLDS = 201


def draw_suites(suites: Mapping[str, SuiteEvaluation], out: Path, *, dark: bool) -> None:
    """Draw suites of one or more agents, and write the picture.

    Args:
        suites: The results by agent name, all of the same tasks.
        out: The file.
        dark: Whether to use colours for a dark page.

    Raises:
        UsageError: Tasks or scales differ.
        DataError: A score is not finite.
        ImportError: matplotlib is missing; says how to install it.
        OSError: The file cannot be written.
    """
    first, *others = suites.values()
    for name, other in zip([*suites][1:], others, strict=True):
        if other.names != first.names or other.normalise != first.normalise:
            raise UsageError(
                f"{next(iter(suites))} and {name} are of other suites: the tasks are {', '.join(first.names)} and "
                f"{', '.join(other.names)}, with normalise {first.normalise} and {other.normalise}"
            )
    for name, suite in suites.items():
        if bad := next((task for task in suite if not np.isfinite(suite.scores(task)).all()), None):
            raise DataError(f"a return of {name} in {bad} is not finite: the suite cannot be drawn")
    height = _MARGIN + _HEIGHT_OF_TASK * len(first.names) * max(1.0, 0.6 * len(suites)) + _HEIGHT_OF_PROFILE
    with written_figure(out, height, dark=dark) as figure:
        means, profiles = figure.subplots(
            2, 1, height_ratios=(height - _HEIGHT_OF_PROFILE, _HEIGHT_OF_PROFILE)
        )  # fmt: skip
        _draw_means(means, suites, COLOURS[dark])
        _draw_profiles(profiles, suites, COLOURS[dark])
        who = short(next(iter(suites))) if len(suites) == 1 else count(len(suites), "agent")
        figure.suptitle(f"{who} in {count(len(first.names), 'task')}", fontsize=12)


def _draw_means(axis: Any, suites: Mapping[str, SuiteEvaluation], colours: Sequence[str]) -> None:
    """Draw the mean of each task, and below the mean of all tasks, each with its interval."""
    names = next(iter(suites.values())).names
    what = _unit(suites)
    rows = [*names, "all tasks"]
    for position, (agent, suite) in enumerate(suites.items()):
        colour = colours[position % len(colours)]
        shift = (position - (len(suites) - 1) / 2) * 0.6 / len(suites)
        intervals = [_mean_of(suite, name) for name in names]
        found = [*intervals, (suite.mean, suite.mean_interval)]
        for row, pair in enumerate(found):
            if pair is None:
                continue
            mean, interval = pair
            if isinstance(interval, Interval):
                axis.plot([interval.low, interval.high], [row + shift] * 2, color=colour, linewidth=2, alpha=0.6)
            axis.plot([mean], [row + shift], "o", color=colour, markersize=5 if row < len(names) else 7)
        whole = number(suite.mean)
        if isinstance(interval := suite.mean_interval, Interval):
            whole += f" [{number(interval.low)}, {number(interval.high)}]"
        axis.plot([], [], "o-", color=colour, label=f"{short(agent)}: {whole}")
    axis.axhline(len(names) - 0.5, linewidth=0.8, color=colours[-1])
    failed = {name for suite in suites.values() for name in suite.failed}
    axis.set_yticks(range(len(rows)), [short(name) + (" (failed)" if name in failed else "") for name in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlabel(f"mean {what}, with its 95 % interval")
    draw_legend(axis)


def _mean_of(suite: SuiteEvaluation, name: str) -> tuple[float, Interval | Unknown] | None:
    """Return the mean score of a task and its interval; None without trajectories."""
    if name not in suite.tasks:
        return None
    interval = suite[name].mean_interval
    if (scale := suite.scale(name)) is None:
        return suite[name].mean, interval
    low, high = scale
    mean = float(suite.scores(name).mean())
    if isinstance(interval, Interval):
        ends = sorted((end - low) / (high - low) for end in (interval.low, interval.high))
        return mean, Interval(ends[0], ends[1], interval.method, interval.level)
    return mean, interval


def _draw_profiles(axis: Any, suites: Mapping[str, SuiteEvaluation], colours: Sequence[str]) -> None:
    """Draw the share of trajectories with a score above each threshold, with its interval."""
    values = np.concatenate([suite.scores(name) for suite in suites.values() for name in suite])
    low, high = float(values.min()), float(values.max())
    margin = 0.02 * (high - low) or 0.5
    thresholds = np.linspace(low - margin, high + margin, _N_THRESHOLDS)
    for position, (agent, suite) in enumerate(suites.items()):
        colour = colours[position % len(colours)]
        found = suite.profile(thresholds)
        axis.plot(thresholds, found.shares, drawstyle="steps-post", color=colour, linewidth=1.5, label=short(agent))
        axis.fill_between(thresholds, found.low, found.high, step="post", color=colour, alpha=0.2, linewidth=0)
    axis.set(xlabel=f"{_unit(suites)} above", ylabel="share of trajectories", ylim=(-0.03, 1.03))
    axis.set_title("performance profile: the mean of the tasks' shares", loc="left", fontsize=10)
    if len(suites) > 1:
        axis.legend(frameon=False)


def _unit(suites: Mapping[str, SuiteEvaluation]) -> str:
    return "return" if next(iter(suites.values())).normalise is None else "score"
