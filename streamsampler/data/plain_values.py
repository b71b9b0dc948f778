"""Convert arrays and accounts to plain numbers, strings, bytes, lists and dicts, and back.

`torch.load(weights_only=True)` accepts these in a checkpoint, but neither NumPy's arrays and numbers nor empty bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from streamsampler.core.times import Times
from streamsampler.core.timing import Gauge, ScriptTimes
from streamsampler.data.statistics import DroppedTrajectory, EndedEpisodes, FoundAnomaly, Stats
from streamsampler.data.timers import Timer
from streamsampler.data.trees import Array, Tree


def plain_tree(tree: Tree) -> dict[str, Any]:
    """Convert a tree of arrays; arrays of objects are pickled."""
    if isinstance(tree, dict):
        return {"keys": list(tree), "parts": [plain_tree(child) for child in tree.values()]}
    if isinstance(tree, tuple):
        return {"parts": [plain_tree(child) for child in tree]}
    if tree.dtype.hasobject:
        return {"pickle": pickle.dumps(tree, protocol=5)}
    if tree.dtype.names is not None:
        raise TypeError(f"cannot convert an array of the structured dtype {tree.dtype}: no space has it")
    return {"dtype": tree.dtype.str, "shape": list(tree.shape), "bytes": tree.tobytes() or None}


def tree_of(plain: Mapping[str, Any]) -> Any:
    """Return the tree converted by `plain_tree`, in new memory."""
    if "parts" in plain:
        parts = [tree_of(part) for part in plain["parts"]]
        return dict(zip(plain["keys"], parts, strict=True)) if "keys" in plain else tuple(parts)
    if "pickle" in plain:
        return pickle.loads(plain["pickle"])
    array: Array = np.frombuffer(plain["bytes"] or b"", plain["dtype"])
    return array.reshape(plain["shape"]).copy()


def plain_stats(stats: Stats) -> dict[str, Any]:
    """Convert accounts, without the script's own times, which belong to its process."""
    return {item.name: _plain(getattr(stats, item.name)) for item in fields(stats) if item.name != "script"}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return plain_tree(value)
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Times):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def stats_of(plain: Mapping[str, Any], n_workers: int, script: ScriptTimes | None) -> Stats:
    """Return the accounts converted by `plain_stats`, for `n_workers` workers now.

    If there were more, the times of worker w are added to those of worker w modulo `n_workers`: the totals stay the
    same.
    """
    workers, timesteps = [Times()] * n_workers, [0] * n_workers
    for number, (times, n) in enumerate(zip(plain["workers"], plain["worker_timesteps"], strict=True)):
        workers[number % n_workers] = workers[number % n_workers].plus(Times(**times))
        timesteps[number % n_workers] += n
    timed: dict[int, Timer] = {}
    for number, timer in plain["timed"].items():
        timed.setdefault(int(number) % n_workers, Timer()).merge(_timer_of(timer))
    anomaly = plain["first_anomaly"]
    return Stats(**{
        **plain,
        "episodes": EndedEpisodes(**plain["episodes"]),
        "dropped": [DroppedTrajectory(**it) for it in plain["dropped"]],
        "first_anomaly": None if anomaly is None else FoundAnomaly(**anomaly),
        "workers": workers,
        "worker_timesteps": timesteps,
        "timed": timed,
        "gauges_of_workers": {name: Gauge(**it) for name, it in plain["gauges_of_workers"].items()},
        "histograms": {name: tree_of(it) for name, it in plain["histograms"].items()},
        **{name: dict(plain[name]) for name in ("recent", "infos", "metrics", "metric_kinds")},
        "script": script,
    })  # fmt: skip


def _timer_of(plain: Mapping[str, Any]) -> Timer:
    children = {name: _timer_of(child) for name, child in plain["children"].items()}
    return Timer(plain["seconds"], plain["count"], plain["timesteps"], children)
