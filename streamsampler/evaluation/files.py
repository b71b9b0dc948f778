"""Write evaluations as JSON, and read them.

There are no times, paths, hosts or numbers of workers in it: the same trajectories give the same bytes. The summary is
for other readers; it is computed from the trajectories, and is not read back.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from streamsampler.errors import StorageError
from streamsampler.evaluation.intervals import Interval, Unknown
from streamsampler.scheduling.parts import part_of_facts
from streamsampler.storage.atomic import write_whole
from streamsampler.storage.json_codec import decode, encode
from streamsampler.storage.json_facts import read_facts
from streamsampler.version import __version__

if TYPE_CHECKING:
    from streamsampler.evaluation.evaluation import Evaluation

__all__ = ["arguments_of", "contents_of", "facts_of", "from_json", "save_text", "shown_interval", "to_json"]

_FORMAT, _FORMAT_VERSION = "streamsampler evaluation", 1
_WHAT = "evaluation of streamsampler"
_COLUMNS = {"returns": np.float64, "lengths": np.int64, "indices": np.int64}
_FLAGS = ("terminated", "truncated", "successes")
_FACTS = ("agent", "environment", "settings", "versions", "seed", "success_meaning", "stopped", "guaranteed")


def to_json(contents: dict[str, Any]) -> str:
    """Return contents as JSON.

    Raises:
        StorageError: They hold what JSON cannot.
    """
    try:
        return json.dumps(contents, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError, RecursionError) as reason:
        raise StorageError(f"the evaluation's agent or settings cannot be written as JSON: {reason}") from None


def contents_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as JSON has it."""
    columns = {name: getattr(evaluation, name).tolist() for name in _COLUMNS}
    flags = {name: None if (column := getattr(evaluation, name)) is None else column.tolist() for name in _FLAGS}
    facts = {name: _plain(getattr(evaluation, name)) for name in _FACTS}
    return {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "package_version": __version__,
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


def from_json(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the arguments of an `Evaluation`.

    Args:
        text: What `to_json` gave.
        where: What it is from, for errors.

    Raises:
        StorageError: It is something else.
    """
    facts = facts_of(text, where, _WHAT, _FORMAT, _FORMAT_VERSION)
    try:
        return arguments_of(facts)
    except (KeyError, TypeError, ValueError, OverflowError) as reason:
        what = f"{reason} is missing" if isinstance(reason, KeyError) else str(reason)
        raise StorageError(f"{where} is no {_WHAT}: {what}") from None


def facts_of(text: str | bytes, where: str, what: str, facts_format: str, version: int) -> dict[str, Any]:
    """Return the object that JSON holds; see `streamsampler.storage.json_facts.read_facts`."""
    data = text.encode() if isinstance(text, str) else text
    return read_facts(cast("Path", where), data, what, facts_format, version)


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


def save_text(path: Path, text: str) -> Path:
    """Write a text to a file, whole or not at all, and return its path."""
    write_whole(path, lambda file: file.write(text.encode()))
    return path
