"""Aggregate infos and metrics of a batch to numbers: a mean, a sum, or the last value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.data.trees import Array

Aggregation = Literal["mean", "sum", "last", "histogram"]
HOW_METRICS = ("mean", "sum", "last")
_HOW = (*HOW_METRICS, "histogram")


def aggregate(infos: Mapping[str, Array], how: Mapping[str, Aggregation]) -> dict[str, float]:
    """Aggregate infos to numbers, for each name present in any timestep; `how` is that of `Stats.take_infos`."""
    found: dict[str, float] = {}
    for name, word in how.items():
        if word not in _HOW:
            raise UsageError(f"an info can be aggregated by {', '.join(_HOW)}, not by {word!r} as for {name!r}")
        if name not in infos:
            continue
        if (values := present_numbers(infos, name)) is None:
            raise UsageError(f"cannot aggregate the info {name!r}: it is not one number in each timestep")
        if len(values):
            found[name] = float(values[-1] if word == "last" else values.sum() if word == "sum" else values.mean())
    return found


def present_numbers(infos: Mapping[str, Array], name: str) -> Array | None:
    """Return an info's present values; None unless each is a number."""
    values, mask = infos.get(name), infos.get(f"_{name}")
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "biuf":
        return None
    return values if mask is None else values[mask]


def metrics_of(infos: Mapping[str, Array], how: Mapping[str, Any]) -> dict[str, float]:
    """Aggregate the metrics among episode infos, except those without a number in each trajectory."""
    return aggregate(infos, {name: how[name] for name in sorted(how) if present_numbers(infos, name) is not None})


class MetricsSoFar:
    """Aggregates metrics while trajectories arrive.

    The results do not depend on how trajectories are grouped: values are added singly, in order.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, int, float]] = {}  # sum, count, last value
        self._others = set[str]()  # metrics without a number in some trajectory

    def add(self, infos: Mapping[str, Array], names: Iterable[str]) -> None:
        for name in names:
            if name not in infos or name in self._others:
                continue
            if (values := present_numbers(infos, name)) is None:
                self._others.add(name)
                self._found.pop(name, None)
                continue
            for value in values.tolist():
                total, n, _ = self._found.get(name, (0, 0, 0))
                self._found[name] = total + value, n + 1, value

    def update(self, metrics: dict[str, float], how: Mapping[str, str]) -> None:
        for name in self._others:
            metrics.pop(name, None)
        for name, (total, n, last) in self._found.items():
            word = how[name]
            metrics[name] = float(last if word == "last" else total if word == "sum" else total / n)
