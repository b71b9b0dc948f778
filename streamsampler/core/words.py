"""Format counts, durations and tables for messages."""

from __future__ import annotations

from collections.abc import Mapping

AGENT_FIRST = "samplers and evaluations take the agent first, then the environment; check, bench and managers do not"
"""The advice where agent and environment were swapped."""


def count(amount: float, noun: str) -> str:
    text = f"{amount:,.0f}"
    if text == "1":
        return f"1 {noun}"
    return f"{text} {noun[:-1] + 'ies' if noun.endswith('y') else noun + 's'}"


def duration(seconds: float) -> str:
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds:.2f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min {whole:02} s" if hours else f"{minutes} min {whole:02} s"


def table(rows: Mapping[str, str]) -> str:
    width = max(len(name) for name, value in rows.items() if value)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items() if value)
