"""What evaluations are as JSON.

There are no times, paths, hosts or numbers of workers in it: the same trajectories give the same bytes. The summary is
for other readers; it is computed from the trajectories, and is not read back.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from streamsampler.evaluation.intervals import Interval, Unknown
from streamsampler.scheduling.parts import part_of_facts
from streamsampler.storage.json_codec import decode, encode

if TYPE_CHECKING:
    from streamsampler.evaluation.evaluation import Evaluation

__all__ = ["arguments_of", "facts_of", "shown_interval"]

_COLUMNS = {"returns": np.float64, "lengths": np.int64, "indices": np.int64}
_FLAGS = ("terminated", "truncated", "successes")
_FACTS = ("agent", "environment", "settings", "versions", "seed", "success_meaning", "stopped", "guaranteed")


def facts_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as JSON has it."""
    columns = {name: getattr(evaluation, name).tolist() for name in _COLUMNS}
    flags = {name: None if (column := getattr(evaluation, name)) is None else column.tolist() for name in _FLAGS}
    facts = {name: _plain(getattr(evaluation, name)) for name in _FACTS}
    return {
        **facts,
        "bounds": None if evaluation.bounds is None else list(evaluation.bounds),
        "left_out": evaluation.left_out,
        **({} if evaluation.part is None else {"part": evaluation.part.facts()}),
        "summary": _encoded(_summary(evaluation), "summary"),
        "names": None if evaluation.names is None else list(evaluation.names),
        "seeds": list(evaluation.seeds),
        **{name: _encoded(column, name) for name, column in columns.items()},
        **flags,
    }


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "keys") else value


def _encoded(value: Any, path: str) -> Any:
    """Return JSON with plain objects in which a float that is not finite is encoded."""
    if isinstance(value, dict):
        return {key: _encoded(item, f"{path}.{key}") for key, item in value.items()}
    return encode(value, path)


def _summary(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "n_trajectories": len(evaluation),
        "mean": evaluation.mean,
        "mean_interval": shown_interval(evaluation.mean_interval),
        "standard_deviation": evaluation.standard_deviation,
        "standard_error": evaluation.standard_error,
        "median": evaluation.median,
        "median_interval": shown_interval(evaluation.median_interval),
        "interquartile_mean": evaluation.interquartile_mean,
        "interquartile_mean_interval": shown_interval(evaluation.interquartile_mean_interval),
        "minimum": evaluation.minimum,
        "maximum": evaluation.maximum,
        "success_rate": evaluation.success_rate,
        "success_interval": shown_interval(evaluation.success_interval),
        "mean_length": float(evaluation.lengths.mean()),
        "shares": evaluation.shares,
    }


def shown_interval(interval: Interval | Unknown | None) -> dict[str, Any] | None:
    """Return an interval, or why there is none, as JSON has it."""
    if interval is None:
        return None
    return {"none": interval.why} if isinstance(interval, Unknown) else asdict(interval)


def arguments_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the `Evaluation` whose contents these are.

    Raises:
        KeyError: One is missing.
        TypeError: One is something else.
        ValueError: One has another value than it can have.
    """
    arguments = {name: facts[name] for name in (*_FACTS, "left_out")}
    arguments["part"] = part_of_facts(facts.get("part"))
    for name in ("agent", "settings", "versions"):
        if not isinstance(facts[name], dict):
            raise TypeError(f"{name} is no object")
    for name, dtype in _COLUMNS.items():
        arguments[name] = np.array(decode(facts[name]), dtype)
    for name in _FLAGS:
        flags = _all_of(bool, facts[name], name) if name != "successes" or facts[name] is not None else None
        arguments[name] = None if flags is None else np.array(flags, np.bool_)
    names, bounds = facts["names"], facts["bounds"]
    arguments["seeds"] = tuple(_all_of(int, facts["seeds"], "seeds"))
    arguments["names"] = None if names is None else tuple(_all_of(str, names, "names"))
    arguments["bounds"] = None if bounds is None else (float(bounds[0]), float(bounds[1]))
    return arguments


def _all_of(kind: type, values: Any, name: str) -> list[Any]:
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise TypeError(f"{name} should be a list of {kind.__name__}")
    return values
