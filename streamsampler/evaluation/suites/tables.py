"""Format the result of a suite as a table: as text, in Markdown, and as comma-separated values."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal, TypeAlias

from streamsampler.evaluation.evaluation import number, percent
from streamsampler.evaluation.intervals import LEVEL, Interval, Unknown

RowKind: TypeAlias = Literal["task", "group", "suite"]
AnyInterval: TypeAlias = Interval | Unknown | None


@dataclass(frozen=True)
class TableRow:
    """A row for a task, a group or the suite.

    Attributes:
        kind: "task", "group" or "suite".
        name: The name of the task or group; "all tasks" for the suite.
        n_trajectories: Number of trajectories.
        value: The mean return, or for groups and suites with normalised scores the mean score; None for a failed task.
        interval: The interval of `value`.
        score: The mean score of a task; None without normalised scores, and for groups and suites.
        success_rate: The success rate; None without success flags.
        success_interval: The interval of the success rate.
        failed: The error of a failed task; empty for others.
    """

    kind: RowKind
    name: str
    n_trajectories: int
    value: float | None = None
    interval: AnyInterval = None
    score: float | None = None
    success_rate: float | None = None
    success_interval: AnyInterval = None
    failed: str = ""

    @property
    def state(self) -> str:
        """The word in place of missing numbers."""
        return "failed" if self.failed else "none"


def as_text(rows: Sequence[TableRow], *, scored: bool) -> list[str]:
    """Return the rows of tasks as lines of text, in columns."""
    rows = [row for row in rows if row.kind == "task"]
    columns = ["task", "trajectories", f"mean return, {100 * LEVEL:.4g} %"]
    has_rates = any(row.success_rate is not None for row in rows)
    columns += ["mean score"] * scored + [f"success rate, {100 * LEVEL:.4g} %"] * has_rates
    cells = [columns]
    for row in rows:
        if row.value is None:
            cells.append([row.name, row.state])
            continue
        line = [row.name, f"{row.n_trajectories:,}", with_ends(number(row.value), row.interval)]
        line += [number(row.score)] if row.score is not None else []
        line += [with_ends(percent(row.success_rate), row.success_interval)] if row.success_rate is not None else [""]
        cells.append(line[: len(columns)])
    widths = [max(len(line[column]) for line in cells if column < len(line)) for column in range(len(columns))]
    padded = ([f"{cell:{width}}" for cell, width in zip(line, widths, strict=False)] for line in cells)
    return [f"  {'  '.join(line)}".rstrip() for line in padded]


def with_ends(shown: str, interval: AnyInterval) -> str:
    """Return a number with the ends of its interval, if known."""
    return f"{shown} [{number(interval.low)}, {number(interval.high)}]" if isinstance(interval, Interval) else shown


def as_markdown(rows: Sequence[TableRow], *, scored: bool) -> str:
    """Return the table in Markdown, as GitHub shows it; see `as_text`."""
    has_rates = any(row.success_rate is not None for row in rows)
    heads = ["task", "trajectories", "mean return", *["mean score"] * scored, *["success rate"] * has_rates]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in rows:
        is_score = scored and row.kind != "task"
        mean = "" if row.value is None else with_ends(number(row.value), row.interval)
        score = "" if row.score is None else number(row.score)
        rate = "" if row.success_rate is None else with_ends(percent(row.success_rate), row.success_interval)
        cells = [row.name, f"{row.n_trajectories:,}", "" if is_score else mean]
        cells += [mean if is_score else score] * scored + [rate] * has_rates
        if row.value is None:
            cells[2] = row.state
        lines.append(cells if row.kind == "task" else [f"**{cell}**" if cell else "" for cell in cells])
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n" for cells in lines)


_CSV_COLUMNS = (
    "kind", "name", "trajectories", "mean_return", "mean_return_low", "mean_return_high", "mean_score",
    "mean_score_low", "mean_score_high", "success_rate", "success_low", "success_high", "failed",
)  # fmt: skip


def as_csv(rows: Sequence[TableRow], *, scored: bool) -> str:
    """Return the table as comma-separated values with a line of names; unknown values are empty. See `as_text`."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for row in rows:
        mean = [_exact(row.value), *_ends(row.interval)]
        score: list[Any] = [_exact(row.score), "", ""]
        if scored and row.kind != "task":
            mean, score = ["", "", ""], mean
        rates = [_exact(row.success_rate), *_ends(row.success_interval)]
        writer.writerow([row.kind, row.name, row.n_trajectories, *mean, *score, *rates, row.failed])
    return file.getvalue()


def _exact(value: float | None) -> str:
    return "" if value is None else repr(value)


def _ends(interval: AnyInterval) -> list[str]:
    return [repr(interval.low), repr(interval.high)] if isinstance(interval, Interval) else ["", ""]
