"""Lay out tables, as plain text that is also Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["goals_table", "table", "throughput_table"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table; columns after the first are right-aligned."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for number, row in enumerate(cells):
        padded = [
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("| " + " | ".join(padded) + " |")
        if number == 0:
            rule = ["-" * width if column == 0 else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
            lines.append("| " + " | ".join(rule) + " |")
    return "\n".join(lines)


def throughput_table(workload: str, results: dict[str, Any]) -> str:
    """Lay out the measurements on a workload."""
    header = [
        workload,
        "of the limit",
        "spread",
        "as measured",
        "timesteps/s",
        "ns CPU/timestep",
        "over the limit",
        "by CPU",
    ]
    rows = [_row(name, result, len(header)) for name, result in results.items()]
    return "\n" + table(header, rows)


def _row(name: str, result: dict[str, Any], n_columns: int) -> list[str]:
    if "speed" not in result:
        return [name, result.get("reason", "not measured")[:60], *[""] * (n_columns - 2)]
    ratio, plain, over, cpu_share = (result.get(key) for key in ("ratio", "plain_ratio", "over", "cpu_share"))
    return [
        name,
        f"{ratio['median']:.3f}" if ratio else "",
        f"{ratio['low']:.3f} to {ratio['high']:.3f}" if ratio else "",
        f"{plain['median']:.3f}" if plain else "",
        f"{result['speed']['median']:,.0f}",
        f"{1e9 * result['cpu']['median']:,.0f}" if "cpu" in result else "",
        f"{over['median']:,.0f}" if over else "",
        f"{cpu_share['median']:.3f}" if cpu_share else "",
    ]


def goals_table(goals: Sequence[dict[str, Any]]) -> str:
    """Lay out the goals, and whether they are met."""
    if not goals:
        return ""
    rows = []
    for goal in goals:
        sign = "≤" if goal["most"] else "≥"
        value = "" if goal["value"] is None else f"{goal['value']:.3f}"
        verdict = {None: "not measured", True: "yes", False: "no"}[goal["met"]]
        rows.append([goal["text"], f"{sign} {goal['wanted']:g}", value, verdict])
    return "\n" + table(["goal", "bound", "measured", "met"], rows) + "\n"
