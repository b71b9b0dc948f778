"""Read the returns and the lengths of trajectories, and nothing else, from whatever this package wrote."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.words import count
from streamsampler.errors import DataError, StorageError, UsageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.intervals import Interval, Unknown, mean_interval
from streamsampler.evaluation.kinds import kind_of
from streamsampler.storage import npz as storage
from streamsampler.storage.json_facts import damage_raised
from streamsampler.storage.manifest import Shard, read_manifest
from streamsampler.storage.shard_files import ShardFiles

__all__ = ["Series", "Source", "read_source", "read_sources"]

_NAMES = ("rewards", "terminated")
_log = logging.getLogger("streamsampler")


@dataclass(frozen=True)
class Series:
    """N trajectories of one agent.

    Attributes:
        name: What the agent is called.
        indices: (N,) int64: trajectory indices.
        returns: (N,) float64: sums of rewards, not discounted.
        lengths: (N,) int64: timesteps.
        terminated: (N,) bool; the others were truncated.
        interval: The interval of the mean return, or why there is none.
    """

    name: str
    indices: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    interval: Interval | Unknown

    @classmethod
    def of_evaluation(cls, evaluation: Evaluation, name: str) -> Series:
        """Return the series of an evaluation."""
        columns = (evaluation.indices, evaluation.returns, evaluation.lengths, evaluation.terminated)
        return cls(name, *columns, evaluation.mean_interval)


@dataclass(frozen=True)
class Source:
    """What is to be drawn.

    Attributes:
        environment: The environment's name; empty where it is not known.
        series: The trajectories of each agent.
        comparison: The comparison that they are of; None for none.
    """

    environment: str
    series: tuple[Series, ...]
    comparison: Comparison | None = None


def read_source(path: Path) -> Source:
    """Return what a file of trajectories, a folder, or the JSON of an evaluation or a comparison holds.

    Of trajectories, only rewards and lengths are read, and of a folder a shard at a time; shards that are damaged are
    left out, with a warning.

    Raises:
        StorageError: It is something else, or damaged, or holds no trajectory.
        OSError: It cannot be read.
    """
    match kind_of(path):
        case "evaluation":
            evaluation = Evaluation.load(path)
            name = str(evaluation.agent.get("name"))
            return Source(_shown(evaluation.environment), (Series.of_evaluation(evaluation, name),))
        case "comparison":
            comparison = Comparison.load(path)
            each = zip(comparison.evaluations, comparison.names, strict=True)
            series = tuple(Series.of_evaluation(evaluation, name) for evaluation, name in each)
            return Source(_shown(comparison.evaluations[0].environment), series, comparison)
        case "file of trajectories":
            arrays, header = storage.read(path, "indices", "lengths", *_NAMES)
            return _source(path, [arrays], header["provenance"])
        case "folder":
            return _of_folder(path)
    raise StorageError(f"{path} holds neither trajectories nor an evaluation nor a comparison of streamsampler")


def read_sources(paths: Sequence[Path]) -> Source:
    """Return what several paths hold as one source, without pairs; see `read_source` for one.

    Agents are called by their names where these differ, else by the names of their files.

    Raises:
        UsageError: There is no path.
        StorageError: One of them is something else, or damaged, or holds no trajectory.
        OSError: One of them cannot be read.
    """
    if not paths:
        raise UsageError("there is no file to draw")
    sources = [read_source(path) for path in paths]
    if len(sources) == 1:
        return sources[0]
    environments = list(dict.fromkeys(source.environment for source in sources))
    agents = [each.name for source in sources for each in source.series]
    named = []
    for path, name, source in zip(paths, _distinct(paths), sources, strict=True):
        for each in source.series:
            own = each.name
            if len(set(agents)) < len(agents):
                own = name if len(source.series) == 1 else f"{name}: {own}"
            if len(environments) > 1:
                own = f"{own} in {source.environment or path.name}"
            named.append(replace(each, name=own))
    return Source(environments[0] if len(environments) == 1 else "", tuple(named))


def _distinct(paths: Sequence[Path]) -> list[str]:
    """Return the names of files without endings, unless these or their folders tell them apart."""
    for names in ([path.stem for path in paths], [path.name for path in paths]):
        if len(set(names)) == len(names):
            return names
    names = list(map(str, paths))
    return [name if name not in names[:i] else f"{name} #{i + 1}" for i, name in enumerate(names)]


def _of_folder(path: Path) -> Source:
    manifest = read_manifest(path)
    files = ShardFiles(path, manifest)
    parts: list[Mapping[str, Any]] = []

    def add(number: int, shard: Shard) -> None:
        arrays = files.read(number, shard, *_NAMES)
        parts.append({**arrays, "returns": _returns(path, arrays), "rewards": None})

    _, damaged = files.survey(add)
    if damaged:
        _log.warning("%s of %s cannot be read and left out: %s", count(len(damaged), "shard"), path, damaged)
    return _source(path, parts, manifest.provenance)


def _source(path: Path, parts: list[Mapping[str, Any]], provenance: Any) -> Source:
    if not sum(len(part["lengths"]) for part in parts):
        raise StorageError(f"{path} holds no trajectory: there is nothing to draw")
    with damage_raised(path):
        returns = np.concatenate([_returns(path, part) if "returns" not in part else part["returns"] for part in parts])
        indices, lengths, terminated = (
            np.concatenate([part[name] for part in parts]) for name in ("indices", "lengths", "terminated")
        )
        if not len(indices) == len(lengths) == len(terminated):
            raise DataError("its columns are not of one length")
    facts = provenance if isinstance(provenance, dict) else {}
    name = str(facts.get("agent") or "agent")
    series = Series(name, indices, returns, lengths, terminated, mean_interval(returns))
    return Source(_shown(facts.get("environment") or ""), (series,))


def _returns(path: Path, arrays: Mapping[str, Any]) -> NDArray[np.float64]:
    lengths, rewards = arrays["lengths"], arrays["rewards"]
    if lengths.ndim != 1 or rewards.ndim != 1 or lengths.min(initial=1) < 1 or lengths.sum() != len(rewards):
        raise StorageError(f"{path} is damaged: its lengths and its rewards do not fit together")
    found: NDArray[np.float64] = np.add.reduceat(rewards, np.cumsum(lengths) - lengths) if len(lengths) else np.zeros(0)
    return found


def _shown(environment: Any) -> str:
    return environment if isinstance(environment, str) else ", ".join(map(str, environment))
