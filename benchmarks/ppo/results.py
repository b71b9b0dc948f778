"""Lay out the results of `run` as a table, and save them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.harness.tables import table

Result = dict[str, Any]


def reached(result: Result, target: float) -> tuple[float, float]:
    """Timesteps and seconds to the target; infinite if it was not reached."""
    for point in result["curve"]:
        if point["mean_return"] is not None and point["mean_return"] >= target:
            return point["timesteps"], point["seconds"]
    return math.inf, math.inf


def summary(results: list[Result], targets: dict[str, float]) -> str:
    """Lay out the medians over the seeds."""
    header = [
        *("to a mean return", "reached", "timesteps", "seconds"),
        *("seconds in all", "learning", "collecting", "µs/timestep", "first batch, s"),
    ]
    rows = []
    for env_id, name in dict.fromkeys((result["env"], result["contender"]) for result in results):
        group = [result for result in results if (result["env"], result["contender"]) == (env_id, name)]
        rows.append([f"{env_id} ≥ {targets[env_id]:g}, {name}", *_medians(group, targets[env_id])])
    return table(header, rows)


def finals(results: list[Result]) -> str:
    """Lay out what was learned in the end, over the seeds, and what it took; results of old versions do not say it."""
    header = ["mean return of the last 100 episodes", "seeds", "mean", "lowest", "highest", "seconds", "CPU seconds"]
    rows = []
    known = [result for result in results if "final" in result]
    for env_id, name in dict.fromkeys((result["env"], result["contender"]) for result in known):
        group = [result for result in known if (result["env"], result["contender"]) == (env_id, name)]
        returns = [result["final"] for result in group]
        row = [f"{env_id}, {name}", str(len(group)), *(f"{of(returns):,.0f}" for of in (fmean, min, max))]
        rows.append([*row, *(f"{median(result[key] for result in group):.0f}" for key in ("seconds", "cpu"))])
    return table(header, rows) if rows else ""


def _medians(group: list[Result], target: float) -> list[str]:
    hits = [reached(result, target) for result in group]
    collecting = median(result["seconds"] - result["learning"] for result in group)
    timesteps = median(result["curve"][-1]["timesteps"] for result in group)
    return [
        f"{sum(math.isfinite(needed) for needed, _ in hits)} of {len(group)}",
        f"{median(needed for needed, _ in hits):,.0f}",
        f"{median(seconds for _, seconds in hits):.1f}",
        f"{median(result['seconds'] for result in group):.1f}",
        f"{median(result['learning'] for result in group):.1f}",
        f"{collecting:.1f}",
        f"{1e6 * collecting / timesteps:.1f}",
        f"{median(result['curve'][0]['seconds'] for result in group):.2f}",
    ]


def save(path: Path, machine: dict[str, Any], targets: dict[str, float], results: list[Result]) -> None:
    """Write the runs to a file of JSON, a line for each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = ",\n".join(json.dumps(result) for result in results)
    path.write_text(f'{{"machine": {json.dumps(machine)},\n"targets": {json.dumps(targets)},\n"runs": [\n{runs}\n]}}\n')
