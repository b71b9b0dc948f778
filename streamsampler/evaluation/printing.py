"""Print evaluations: one line for each number, with its interval and how that was computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamsampler.data.words import count
from streamsampler.evaluation.intervals import LEVEL, Interval, Unknown

if TYPE_CHECKING:
    from streamsampler.evaluation.evaluation import Evaluation

__all__ = ["Line", "aligned", "number", "percent", "shown_seeds", "table_of"]

Line = tuple[str, str, Interval | Unknown | None]
"""What a number is called, the number, and its interval."""

_SEEDS_SHOWN = 6
_MEANINGS = {"end": "at the end", "once": "at any timestep"}


def table_of(evaluation: Evaluation) -> str:
    """Return an evaluation as lines of text."""
    n, shares = len(evaluation), evaluation.shares
    lines: list[Line] = [
        ("mean return", number(evaluation.mean), evaluation.mean_interval),
        ("standard deviation", number(evaluation.standard_deviation), None),
        ("standard error", number(evaluation.standard_error), None),
        ("median", number(evaluation.median), evaluation.median_interval),
        ("interquartile mean", number(evaluation.interquartile_mean), evaluation.interquartile_mean_interval),
        ("minimum", number(evaluation.minimum), None),
        ("maximum", number(evaluation.maximum), None),
    ]
    if evaluation.success_rate is not None:
        name = f"success rate ({_MEANINGS[evaluation.success_meaning]})"
        lines.append((name, number(evaluation.success_rate), evaluation.success_interval))
    lines.append(("mean length", number(float(evaluation.lengths.mean())), None))
    lines += [(end, percent(share), None) for end, share in shares.items()]
    part = "" if evaluation.part is None else f", {evaluation.part}"
    if (return_of := evaluation.settings.get("return_of")) is not None:
        part += f", return of {' and '.join(return_of)}"
    texts = [f"{evaluation.agent.get('name')} in {_environment(evaluation)}: {count(n, 'trajectory')}{part}"]
    texts += aligned(lines)
    texts += [f"note: {note}" for note in _notes(evaluation)]
    texts.append(f"seeds: {shown_seeds(evaluation.seeds)}{_origin(evaluation)}")
    texts.append(f"stopped: {evaluation.stopped}")
    return "\n".join(texts)


def aligned(lines: Sequence[Line]) -> list[str]:
    """Return lines as text, in columns."""
    names, numbers = max(len(line[0]) for line in lines), max(len(line[1]) for line in lines)
    return [f"  {name:{names}}  {shown:>{numbers}}{_interval(interval)}".rstrip() for name, shown, interval in lines]


def number(value: float) -> str:
    """Return a number with as many digits as one reads."""
    return f"{value:,.5g}" if abs(value) < 100_000 else f"{value:,.0f}"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.3g} %"


def _interval(interval: Interval | Unknown | None) -> str:
    if interval is None:
        return ""
    if isinstance(interval, Unknown):
        return f"  no interval holds: {interval.why}"
    return f"  {100 * interval.level:.4g} % [{number(interval.low)}, {number(interval.high)}]  {interval.method}"


def _environment(evaluation: Evaluation) -> str:
    environment = evaluation.environment
    return environment if isinstance(environment, str) else ", ".join(map(str, environment))


def _notes(evaluation: Evaluation) -> list[str]:
    notes = []
    n = len(evaluation)
    if evaluation.minimum == evaluation.maximum and n > 1:
        most = 1 - (1 - LEVEL) ** (1 / n)
        notes.append(
            f"all returns are equal; with {100 * LEVEL:g} % confidence at most {percent(most)} of trajectories have "
            "another one"
        )
    if evaluation.left_out:
        notes.append(
            f"{count(evaluation.left_out, 'trajectory')} raised and {'is' if evaluation.left_out == 1 else 'are'} left "
            "out; where failures depend on the state, what is left is biased"
        )
    if evaluation.guaranteed is not None:
        what = "mean return" if evaluation.guaranteed == "return" else "success rate"
        notes.append(f"the interval of the {what} holds although it decided when to stop")
    return notes


def shown_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as text: a range, or the first ones and how many there are."""
    n = len(seeds)
    if n > 1 and all(seed == seeds[0] + position for position, seed in enumerate(seeds)):
        return f"{seeds[0]} to {seeds[-1]}"
    if n <= _SEEDS_SHOWN:
        return ", ".join(map(str, seeds))
    return f"{', '.join(map(str, seeds[: _SEEDS_SHOWN - 1]))}, …, {seeds[-1]} ({n:,})"


def _origin(evaluation: Evaluation) -> str:
    return "" if evaluation.seed is None else f", of the sampler's seed {evaluation.seed}"
