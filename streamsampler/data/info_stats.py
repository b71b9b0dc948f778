"""Make one number of what environments report in infos: a mean, a sum, or the last value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from streamsampler.data.trees import Array
from streamsampler.errors import UsageError

__all__ = ["Aggregation", "MetricsSoFar", "aggregate", "check_aggregation", "metrics_of"]

Aggregation = Literal["mean", "sum", "last"]
_HOW = ("mean", "sum", "last")


def aggregate(infos: Mapping[str, Array], how: Mapping[str, Aggregation]) -> dict[str, float]:
    """Return a number for each name whose info was there in any timestep.

    Args:
        infos: Infos of a batch, with their masks.
        how: Names of infos, and what is made of their values: "mean" and "sum" of the timesteps in which it was there,
            or "last" for its value in the last of them, in index order.

    Raises:
        UsageError: Another word, or an info that is no number in each timestep.
    """
    return {name: value for name, word in how.items() if (value := _number(infos, name, word)) is not None}


def check_aggregation(how: Any) -> None:
    """Check what hooks say of how their metrics are aggregated.

    Raises:
        UsageError: It is no dict, or has another word.
    """
    if not isinstance(how, Mapping):
        raise UsageError(f"the hooks' aggregation must be a dict of words by name, got {how!r}")
    for name, word in how.items():
        if word not in _HOW:
            raise UsageError(f"a metric can be aggregated by {', '.join(_HOW)}; for {name!r} it is {word!r}")


def metrics_of(infos: Mapping[str, Array], how: Mapping[str, Any]) -> dict[str, float]:
    """Return a number for each metric that is one number in each trajectory; others are left out.

    Args:
        infos: The episode infos of a batch, with their masks.
        how: Names of metrics, and what is made of their values; see `aggregate`.
    """
    numbers = {
        name: word
        for name, word in sorted(how.items())
        if isinstance(values := infos.get(name), np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf"
    }
    return aggregate(infos, numbers)


class MetricsSoFar:
    """Makes one number of each metric, while trajectories come one after the other.

    Numbers do not depend on how trajectories come: each is added by itself, in order.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, int, float]] = {}  # the sum, how many they are, and the last one
        self._others = set[str]()  # that were no number in some trajectory

    def add(self, infos: Mapping[str, Array], names: Iterable[str]) -> None:
        """Add trajectories.

        Args:
            infos: The episode infos of a batch, with their masks.
            names: The metrics' names.
        """
        for name in names:
            if (values := infos.get(name)) is None or name in self._others:
                continue
            if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "biuf":
                self._others.add(name)
                self._found.pop(name, None)
                continue
            mask = infos.get(f"_{name}")
            for value in (values if mask is None else values[mask]).tolist():
                total, n, _ = self._found.get(name, (0, 0, 0))
                self._found[name] = total + value, n + 1, value

    def update(self, metrics: dict[str, float], how: Mapping[str, str]) -> None:
        """Write the numbers into those of earlier calls, and take out what is no number.

        Args:
            metrics: The numbers by name.
            how: What is made of the values, by name; see `aggregate`.
        """
        for name in self._others:
            metrics.pop(name, None)
        for name, (total, n, last) in self._found.items():
            word = how[name]
            metrics[name] = float(last if word == "last" else total if word == "sum" else total / n)


def _number(infos: Mapping[str, Array], name: str, how: Any) -> float | None:
    if how not in _HOW:
        raise UsageError(f"an info can be aggregated by {', '.join(_HOW)}; for {name!r} it is {how!r}")
    if name not in infos:
        return None
    values = infos[name]
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "biuf":
        raise UsageError(f"the info {name!r} cannot be aggregated: it is not one number in each timestep")
    mask = infos.get(f"_{name}")
    values = values if mask is None else values[mask]
    if not len(values):
        return None
    if how == "last":
        return float(values[-1])
    return float(values.sum() if how == "sum" else values.mean())
