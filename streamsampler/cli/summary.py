"""Summarise a run of `streamsampler sample`, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from streamsampler.cli.request import Request, RequestOutcome
from streamsampler.cli.tallies import Tally
from streamsampler.core.version import __version__
from streamsampler.core.words import count, duration, table
from streamsampler.data.timers import timers_text

_LEFT_OVER = ("stale", "surplus", "abandoned")
_UNITS = ("trajectories", "timesteps")
_REPLACEMENTS = ("restarts", "hangs", "replaced")
_SHOWN_ERRORS = 5


def as_json(request: Request, outcome: RequestOutcome) -> dict[str, Any]:
    """Return a summary as JSON values; undefined values are None."""
    kept, stats, timers = outcome.kept, outcome.stats, request.options["timers"]
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
        **({"timers": {name: ms for name, ms in stats.means().items() if name.startswith("ms/")}} if timers else {}),
        "version": __version__,
    }


def as_text(request: Request, outcome: RequestOutcome) -> str:
    """Return a summary as text, with the tree of timers if requested."""
    timers = f"\n\n{timers_text(outcome.stats.timers())}" if request.options["timers"] else ""
    facts, stats, lost = as_json(request, outcome), outcome.stats, outcome.stats.lost_timesteps
    left_over = [_left_over(name, facts[name]) for name in _LEFT_OVER]
    if outcome.shards is not None and outcome.interrupted and stats.surplus_trajectories:
        left_over[_LEFT_OVER.index("surplus")] = (
            f"{_amount(facts['surplus'])} of the unfinished shard, which --resume samples again"
        )
    arguments = ", ".join(f"{key}={value!r}" for key, value in request.options["env_kwargs"].items())
    return table({
        "interrupted": _interrupted(request, outcome) if outcome.interrupted else "",
        "environment": facts["environment"] + (f" ({arguments})" if arguments else ""),
        "agent": request.options["agent"],
        "trajectories": f"{facts['trajectories']:,}",
        "timesteps": f"{facts['timesteps']:,}",
        "return": spread_text(facts["return"], facts["trajectories"]),
        "length": spread_text(facts["length"], facts["trajectories"]),
        **policy_rows(outcome.policies),
        "wall time": _wall_time(outcome),
        "workers": f"{outcome.n_workers:,}",
        "seed": str(outcome.seed),
        "left over": ", ".join([*left_over, *([f"{count(lost, 'timestep')} lost"] if lost else [])]),
        "restarts": _restarts(facts),
        "anomalies": f"{facts['anomalies']:,}: NaN, or outside of its space" if facts["anomalies"] else "",
        "dropped": _dropped(facts["dropped"], width=len("trajectories")),
        "written to": _written(request, outcome),
        "to go on": facts.get("to_go_on") or "",
        "to get all": facts.get("to_get_all") or "",
    }) + timers  # fmt: skip


def policy_rows(policies: Mapping[str, Tally]) -> dict[str, str]:
    """Return a table row for each policy: its trajectories, and its return."""
    return {
        name: f"{count(tally.returns.n, 'trajectory')}, {count(tally.timesteps, 'timestep')}, "
        f"return {spread_text(tally.facts()['return'], tally.returns.n)}"
        for name, tally in policies.items()
    }


def as_line(request: Request, outcome: RequestOutcome) -> str:
    """Return a summary of a single line."""
    amount = f"{count(outcome.kept.trajectories, 'trajectory')}, {count(outcome.kept.timesteps, 'timestep')}"
    if _was_complete(outcome):
        return f"{amount}: {outcome.written} was complete before"
    line = f"{amount} in {duration(outcome.seconds)}"
    return f"{line}, interrupted {_interrupted(request, outcome)}" if outcome.interrupted else line


def _was_complete(outcome: RequestOutcome) -> bool:
    return not outcome.interrupted and outcome.earlier_timesteps == outcome.kept.timesteps


def _rate(outcome: RequestOutcome) -> float:
    """Return the timesteps per second of this run."""
    return (outcome.kept.timesteps - outcome.earlier_timesteps) / outcome.seconds if outcome.seconds else 0.0


def _wall_time(outcome: RequestOutcome) -> str:
    if _was_complete(outcome):
        return "none: everything was complete before"
    text = f"{duration(outcome.seconds)}, {count(_rate(outcome), 'timestep')} per second"
    earlier = f", appended to {outcome.earlier_timesteps:,} timesteps of earlier runs"
    return text + earlier if outcome.earlier_timesteps else text


def _sharding(request: Request, outcome: RequestOutcome) -> dict[str, Any]:
    if outcome.shards is None:
        if not outcome.interrupted or request.out is None:
            return {}
        drawn = () if request.options["seed"] is not None else ("--seed", str(outcome.seed))
        return {"to_get_all": request.command_with(*drawn)}
    return {
        "shards": outcome.shards,
        "earlier_timesteps": outcome.earlier_timesteps,
        "to_go_on": request.command_with("--resume") if outcome.interrupted else None,
    }


def _interrupted(request: Request, outcome: RequestOutcome) -> str:
    there = outcome.kept.timesteps if request.unit == "timesteps" else outcome.kept.trajectories
    wanted = request.total(outcome.n_workers)
    return f"after {there:,} of {count(wanted, 'timestep' if request.unit == 'timesteps' else 'trajectory')}"


def _written(request: Request, outcome: RequestOutcome) -> str:
    if outcome.shards is not None:
        return f"{outcome.written} ({count(outcome.shards, 'shard')})"
    if outcome.written is not None:
        kept = count(outcome.kept.trajectories, "trajectory")
        were = "was" if outcome.kept.trajectories == 1 else "were"
        stays = "" if outcome.written == request.out else f"; {request.out} is unchanged"
        return f"{outcome.written}" + (f" (the {kept} that {were} finished{stays})" if outcome.interrupted else "")
    return "nothing: no trajectory was complete" if request.out is not None else ""


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
        # Two digits of the error matter, and as many decimals of the mean.
        decimals = min(9, max(0, 1 - math.floor(math.log10(error))))
        text = f"{mean:,.{decimals}f} ± {error:,.{decimals}f} standard error"
    elif error == 0:
        text += " ± 0 standard error"
    return f"{text}, from {number(spread['minimum'])} to {number(spread['maximum'])}"


def _left_over(name: str, amount: dict[str, int]) -> str:
    if not amount["trajectories"]:
        # Timesteps are all that is known of a trajectory cut short.
        return f"{count(amount['timesteps'], 'timestep')} {name}" if amount["timesteps"] else f"0 {name}"
    return f"{amount['trajectories']:,} {name} ({count(amount['timesteps'], 'timestep')})"


def _amount(amount: dict[str, int]) -> str:
    return f"{count(amount['trajectories'], 'trajectory')} ({count(amount['timesteps'], 'timestep')})"


def _restarts(facts: dict[str, Any]) -> str:
    """Return the number of replaced workers with the reasons; empty for none."""
    if not any(facts[name] for name in _REPLACEMENTS):
        return ""
    reasons = {"hangs": "hung", "replaced": "used too much memory"}
    shown = [f"{facts[name]:,} {reason}" for name, reason in reasons.items() if facts[name]]
    return ", ".join([f"{facts['restarts']:,}", *shown])


def _dropped(dropped: dict[str, Any], width: int) -> str:
    """Return the number of dropped trajectories with some of the reasons; empty for none."""
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
