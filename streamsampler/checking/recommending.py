"""Recommend a kind of worker, and how many, from measured times and the cores there are. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from streamsampler.checking.speed import Costs, Rate
from streamsampler.data.words import count

__all__ = ["Recommendation", "recommended"]

_WORTH = 1.1
"""Another kind of worker than the default one is recommended where it is faster by this factor."""

_WAITS, _THREADS = 0.7, 1.3
_FREE, _SURELY_WAITS = 0.7, 0.3
_MOST = 8
"""How many workers for each core, at most, where environments wait."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which workers to use, and how many.

    Attributes:
        worker: "DefaultWorker" or "VecWorker".
        n_envs: How many environments each worker has side by side.
        native: Whether they are a vector environment of their own kind.
        n_workers: How many workers.
        arguments: What to pass to a sampler besides agent and environment, as Python code.
        options: The options of the command line for the same; where that has none for a vector environment, for single
            environments.
        why: The reasons.
    """

    worker: str
    n_envs: int
    native: bool
    n_workers: int
    arguments: str
    options: str
    why: tuple[str, ...]


def recommended(rates: Sequence[Rate], costs: Costs | None, n_cores: int) -> Recommendation | None:
    """Return which workers to use; None where nothing was measured.

    Args:
        rates: How fast one worker of each kind was; the first is the default.
        costs: Where the time goes; None where that was not measured.
        n_cores: How many cores there are to use.
    """
    if not rates:
        return None
    default = rates[0]
    chosen = _worth(default, rates)
    ratio = chosen.timesteps_per_second / default.timesteps_per_second if default.timesteps_per_second else math.inf
    why = [f"one such worker delivered {chosen.timesteps_per_second:,.0f} timesteps per second"]
    if chosen is not default:
        why.append(f"{ratio:.2g} times as many as one {default.worker}")
    n_workers, reason = _how_many(costs, n_cores)
    why.append(reason)
    arguments = f"n_workers={n_workers}"
    if chosen.worker == "VecWorker":
        arguments += f', worker_class=VecWorker, worker_args={{"n_envs": {chosen.n_envs}}}'
    single = _worth(default, [rate for rate in rates if not rate.native])
    options = f"--workers {n_workers}" + (f" --vec {single.n_envs}" if single.worker == "VecWorker" else "")
    return Recommendation(chosen.worker, chosen.n_envs, chosen.native, n_workers, arguments, options, tuple(why))


def _worth(default: Rate, rates: Sequence[Rate]) -> Rate:
    """Return the fastest kind of worker; the default one where no other is faster by much."""
    fastest = max(rates, key=lambda rate: rate.timesteps_per_second, default=default)
    return fastest if fastest.timesteps_per_second >= _WORTH * default.timesteps_per_second else default


def _how_many(costs: Costs | None, n_cores: int) -> tuple[int, str]:
    cores = count(n_cores, "core")
    share = 1.0 if costs is None else costs.cpu_share
    if costs is not None and costs.free_share < _FREE and share > _SURELY_WAITS:
        share = 1.0  # with other programs running that is too uncertain to rely on
    if share < _WAITS:
        n_workers = min(_MOST * n_cores, math.ceil(n_cores / max(share, 1e-9)))
        return n_workers, (
            f"a worker computes {share:.0%} of the time and waits otherwise, so that {cores} keep several busy each"
        )
    if share > _THREADS:
        return max(1, int(n_cores / share)), f"a worker keeps {share:.1f} of {cores} busy, with threads of its own"
    return n_cores, f"there {'is' if n_cores == 1 else 'are'} {cores} to use, and a worker keeps one busy"
