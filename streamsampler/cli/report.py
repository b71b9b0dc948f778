"""Summarise a run, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from streamsampler.cli.request import Outcome, Request
from streamsampler.cli.running import Tally
from streamsampler.core.version import __version__
from streamsampler.core.words import count, duration, table
from streamsampler.data.statistics import Stats, timers_text

_LEFT_OVER = ("stale", "surplus", "abandoned")
_UNITS = ("trajectories", "timesteps")
_REPLACEMENTS = ("restarts", "hangs", "replaced")
_SHOWN_ERRORS = 5


def as_json(request: Request, outcome: Outcome) -> dict[str, Any]:
    """Return a summary for programs; what is undefined is None."""
    kept, stats = outcome.kept, outcome.stats
    return {
        **request.described,
        "wanted": {request.unit: request.total(outcome.n_workers)},
        "interrupted": outcome.interrupted,
        **kept.facts(),
        **({"of_policies": {name: it.facts() for name, it in outcome.policies.items()}} if outcome.policies else {}),
        "seconds": outcome.seconds,
        "timesteps_per_second": _rate(outcome),
        "workers": outcome.n_workers,
        "seed": outcome.seed,
        **{name: {unit: getattr(stats, f"{name}_{unit}") for unit in _UNITS} for name in (*_LEFT_OVER, "checked")},
        "lost": {"timesteps": stats.lost_timesteps},
        **{name: getattr(stats, name) for name in _REPLACEMENTS},
        "anomalies": stats.anomalies,
        "dropped": {
            "trajectories": stats.dropped_trajectories,
            "errors": [
                {"trajectory": dropped.index, "phase": dropped.phase, "error": dropped.error}
                for dropped in stats.dropped[:_SHOWN_ERRORS]
            ],
        },
        "out": None if outcome.written is None else str(outcome.written),
        **_sharding(request, outcome),
        **({"timers": _milliseconds(stats)} if request.options["timers"] else {}),
        "version": __version__,
    }


def as_text(request: Request, outcome: Outcome) -> str:
    """Return a summary for people, with the tree of timers where it was asked for."""
    timers = f"\n\n{timers_text(outcome.stats.timers())}" if request.options["timers"] else ""
    return _summary(request, outcome) + timers


def _summary(request: Request, outcome: Outcome) -> str:
    facts = as_json(request, outcome)
    arguments = ", ".join(f"{key}={value!r}" for key, value in request.options["env_kwargs"].items())
    return table({
        "interrupted": _interrupted(request, outcome) if outcome.interrupted else "",
        "environment": request.env_id + (f" ({arguments})" if arguments else ""),
        "agent": request.options["agent"],
        "trajectories": f"{facts['trajectories']:,}",
        "timesteps": f"{facts['timesteps']:,}",
        "return": spread_text(facts["return"], facts["trajectories"]),
        "length": spread_text(facts["length"], facts["trajectories"]),
        **policy_rows(outcome.policies),
        "wall time": _wall_time(outcome),
        "workers": f"{outcome.n_workers:,}",
        "seed": str(outcome.seed),
        "left over": ", ".join([*(_left_over(name, facts[name]) for name in _LEFT_OVER), *_lost(facts)]),
        "restarts": _restarts(facts),
        "anomalies": f"{facts['anomalies']:,}: NaN, or outside of its space" if facts["anomalies"] else "",
        "dropped": _dropped(facts["dropped"], width=len("trajectories")),
        "written to": _written(request, outcome),
        "to go on": facts.get("to_go_on") or "",
        "to get all": facts.get("to_get_all") or "",
    })  # fmt: skip


def policy_rows(policies: Mapping[str, Tally]) -> dict[str, str]:
    """Return a row of a table for each policy: what it played, and its return."""
    return {
        name: f"{count(tally.returns.n, 'trajectory')}, {count(tally.timesteps, 'timestep')}, "
        f"return {spread_text(tally.facts()['return'], tally.returns.n)}"
        for name, tally in policies.items()
    }


def as_line(request: Request, outcome: Outcome) -> str:
    """Return a summary of one line."""
    amount = f"{count(outcome.kept.trajectories, 'trajectory')}, {count(outcome.kept.timesteps, 'timestep')}"
    if _was_complete(outcome):
        return f"{amount}: {outcome.written} was complete before"
    line = f"{amount} in {duration(outcome.seconds)}"
    return f"{line}, interrupted {_interrupted(request, outcome)}" if outcome.interrupted else line


def _was_complete(outcome: Outcome) -> bool:
    return not outcome.interrupted and outcome.earlier_timesteps == outcome.kept.timesteps


def _rate(outcome: Outcome) -> float:
    """Return timesteps per second, of those of this run."""
    return (outcome.kept.timesteps - outcome.earlier_timesteps) / outcome.seconds if outcome.seconds else 0.0


def _wall_time(outcome: Outcome) -> str:
    if _was_complete(outcome):
        return "none: all was there before"
    text = f"{duration(outcome.seconds)}, {count(_rate(outcome), 'timestep')} per second"
    return f"{text}, behind {outcome.earlier_timesteps:,} that were there before" if outcome.earlier_timesteps else text


def _sharding(request: Request, outcome: Outcome) -> dict[str, Any]:
    if outcome.shards is None:
        is_cut = outcome.interrupted and request.out is not None
        return {"to_get_all": request.command_to_repeat(outcome.seed)} if is_cut else {}
    return {
        "shards": outcome.shards,
        "earlier_timesteps": outcome.earlier_timesteps,
        "to_go_on": request.command_with("--resume") if outcome.interrupted else None,
    }


def _interrupted(request: Request, outcome: Outcome) -> str:
    there = outcome.kept.timesteps if request.unit == "timesteps" else outcome.kept.trajectories
    wanted = request.total(outcome.n_workers)
    return f"after {there:,} of {count(wanted, 'timestep' if request.unit == 'timesteps' else 'trajectory')}"


def _written(request: Request, outcome: Outcome) -> str:
    if outcome.shards is not None:
        return f"{outcome.written} ({count(outcome.shards, 'shard')})"
    if outcome.written is not None:
        kept = count(outcome.kept.trajectories, "trajectory")
        were = "was" if outcome.kept.trajectories == 1 else "were"
        return f"{outcome.written}" + (f" (the {kept} that {were} finished)" if outcome.interrupted else "")
    return "nothing: no trajectory was finished" if request.out is not None else ""


def spread_text(spread: dict[str, float | None], n_values: int) -> str:
    """Return a mean with its standard error, the minimum and the maximum as text."""
    mean, error = spread["mean"], spread.get("standard_error")
    if n_values == 0:
        return "none"
    if mean is None:
        return "not finite"
    if n_values == 1:
        return number(mean)
    text = number(mean)
    if error:
        # Two digits of the error matter, and of the mean as many decimals.
        decimals = min(9, max(0, 1 - math.floor(math.log10(error))))
        text = f"{mean:,.{decimals}f} ± {error:,.{decimals}f} standard error"
    elif error == 0:
        text += " ± 0 standard error"
    return f"{text}, from {number(spread['minimum'])} to {number(spread['maximum'])}"


def _milliseconds(stats: Stats) -> dict[str, float]:
    return {name: value for name, value in stats.means().items() if name.startswith("ms/")}


def _left_over(name: str, amount: dict[str, int]) -> str:
    if not amount["trajectories"]:
        # Of what was cut short at the end only the timesteps are known.
        return f"{count(amount['timesteps'], 'timestep')} {name}" if amount["timesteps"] else f"0 {name}"
    return f"{amount['trajectories']:,} {name} ({count(amount['timesteps'], 'timestep')})"


def _lost(facts: dict[str, Any]) -> list[str]:
    return [f"{count(n, 'timestep')} lost"] if (n := facts["lost"]["timesteps"]) else []


def _restarts(facts: dict[str, Any]) -> str:
    """Return how many workers were replaced, and why; an empty text for none."""
    if not any(facts[name] for name in _REPLACEMENTS):
        return ""
    reasons = [f"{facts['hangs']:,} hung", f"{facts['replaced']:,} had too much memory"]
    return ", ".join([f"{facts['restarts']:,}", *(reason for reason in reasons if not reason.startswith("0 "))])


def _dropped(dropped: dict[str, Any], width: int) -> str:
    """Return how many trajectories were left out, with some of the reasons; an empty text for none."""
    n_trajectories, errors = dropped["trajectories"], dropped["errors"]
    if not n_trajectories:
        return ""
    lines = [f"trajectory {error['trajectory']}, {error['phase']}: {error['error']}" for error in errors]
    if n_trajectories > len(errors):
        lines.append("…")
    return f"\n{' ' * (width + 2)}".join([count(n_trajectories, "trajectory"), *lines])


def number(value: float | None) -> str:
    """Return a number with about four significant digits."""
    if value is None:
        return "not finite"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.2f}" if 1 <= abs(value) < 1e7 else f"{value:.3g}"
