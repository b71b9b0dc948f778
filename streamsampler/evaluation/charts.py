"""Draw returns and lengths, and for comparisons the returns of both agents, pair by pair.

Needs matplotlib: `pip install matplotlib`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError, StorageError, UsageError
from streamsampler.core.words import count
from streamsampler.data import npz as storage
from streamsampler.data.batch_fields import sums
from streamsampler.data.json_facts import damage_raised
from streamsampler.data.shards import ShardFiles, read_manifest
from streamsampler.evaluation.chart_style import COLOURS, checked_picture, draw_legend, short, written_figure
from streamsampler.evaluation.comparison import Comparison, Pairs
from streamsampler.evaluation.evaluation import Evaluation, number, shown_environment
from streamsampler.evaluation.intervals import Interval, Unknown, mean_interval
from streamsampler.evaluation.merging import kind_of
from streamsampler.evaluation.suites.suite_charts import draw_suites
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation

_NAMES = ("rewards", "terminated")
_log = logging.getLogger("streamsampler")

Columns = tuple[Any, Any, Any, Any]
"""Indices, returns and lengths of trajectories, and whether they terminated."""


@dataclass(frozen=True)
class Series:
    """N trajectories of one agent.

    Attributes:
        name: The agent's name.
        indices: (N,) int64: trajectory indices.
        returns: (N,) float64: undiscounted sums of rewards.
        lengths: (N,) int64: timesteps.
        terminated: (N,) bool; the others were truncated.
        interval: The interval of the mean return, or the reason for its absence.
    """

    name: str
    indices: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    interval: Interval | Unknown

    @classmethod
    def of_evaluation(cls, evaluation: Evaluation, name: str) -> Series:
        columns = (evaluation.indices, evaluation.returns, evaluation.lengths, evaluation.terminated)
        return cls(name, *columns, evaluation.mean_interval)


@dataclass(frozen=True)
class ChartSource:
    """The data of a picture.

    Attributes:
        environment: The environment's name; empty if unknown.
        series: The trajectories of each agent.
        comparison: Their comparison, or None.
    """

    environment: str
    series: tuple[Series, ...]
    comparison: Comparison | None = None


def read_source(path: Path) -> ChartSource:
    """Read a file of trajectories, a folder, or the JSON of an evaluation or a comparison.

    Of trajectories, only rewards and lengths are read, and folders shard by shard. Damaged shards are skipped with a
    warning.

    Raises:
        StorageError: The contents are of another kind, damaged, or empty.
        OSError: Reading fails.
    """
    match kind_of(path):
        case "evaluation":
            evaluation = Evaluation.load(path)
            name = str(evaluation.agent.get("name"))
            return ChartSource(shown_environment(evaluation.environment), (Series.of_evaluation(evaluation, name),))
        case "comparison":
            comparison = Comparison.load(path)
            each = zip(comparison.evaluations, comparison.names, strict=True)
            series = tuple(Series.of_evaluation(evaluation, name) for evaluation, name in each)
            return ChartSource(shown_environment(comparison.evaluations[0].environment), series, comparison)
        case "file of trajectories":
            arrays, header = storage.read(path, "indices", "lengths", *_NAMES)
            return _source(path, [_columns(path, arrays)], header["provenance"])
        case "folder":
            return _of_folder(path)
        case "suite" | "suite comparison" as kind:
            raise StorageError(
                f"{path} holds a {kind}: suites can only be drawn with suites of the same tasks, and comparisons only "
                "alone"
            )
    raise StorageError(f"{path} has neither trajectories nor an evaluation nor a comparison of streamsampler")


def read_sources(paths: Sequence[Path]) -> ChartSource:
    """Read several paths as one source, without pairs; see `read_source`.

    Agents have their own names if these differ, otherwise the names of their files.

    Raises:
        UsageError: No path is given.
        StorageError: The contents of a path are of another kind, damaged, or empty.
        OSError: Reading fails.
    """
    if not paths:
        raise UsageError("no file to draw: give at least one")
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
    return ChartSource(environments[0] if len(environments) == 1 else "", tuple(named))


def _distinct(paths: Sequence[Path]) -> list[str]:
    """Return the names of files without suffixes, unless suffixes or folders distinguish them."""
    for names in ([path.stem for path in paths], [path.name for path in paths]):
        if len(set(names)) == len(names):
            return names
    names = list(map(str, paths))
    return [name if name not in names[:i] else f"{name} #{i + 1}" for i, name in enumerate(names)]


def _suites_in(paths: Sequence[Path]) -> dict[str, SuiteEvaluation]:
    """Return the suites of files by agent, or by file if agents' names are equal; empty for other contents."""
    kinds = [kind_of(path) for path in paths]
    if kinds == ["suite comparison"]:
        comparison = SuiteComparison.load(paths[0])
        return dict(zip(comparison.names, comparison.suites, strict=True))
    if set(kinds) != {"suite"}:
        return {}
    suites = [SuiteEvaluation.load(path) for path in paths]
    agents = [str(next(iter(suite.evaluations)).agent.get("name")) for suite in suites]
    return dict(zip(agents if len(set(agents)) == len(agents) else _distinct(paths), suites, strict=True))


def _of_folder(path: Path) -> ChartSource:
    manifest = read_manifest(path)
    files = ShardFiles(path, manifest)
    parts: list[Columns] = []

    def add(number: int) -> None:
        parts.append(_columns(path, files.read(number, *_NAMES)))

    damaged = files.survey(add)
    if damaged:
        _log.warning("%s of %s cannot be read and left out: %s", count(len(damaged), "shard"), path, damaged)
    return _source(path, parts, manifest.provenance)


def _source(path: Path, parts: Sequence[Columns], provenance: Any) -> ChartSource:
    if not sum(len(indices) for indices, *_ in parts):
        raise StorageError(f"{path} has no trajectory to draw")
    with damage_raised(path):
        indices, returns, lengths, terminated = map(np.concatenate, zip(*parts, strict=True))
        if not len(indices) == len(lengths) == len(terminated):
            raise DataError("its columns differ in length")
    facts = provenance if isinstance(provenance, dict) else {}
    name = str(facts.get("agent") or "agent")
    series = Series(name, indices, returns, lengths, terminated, mean_interval(returns))
    return ChartSource(shown_environment(facts.get("environment") or ""), (series,))


def _columns(path: Path, arrays: Mapping[str, Any]) -> Columns:
    """Return the columns of a file, with returns in place of rewards, which may be large."""
    with damage_raised(path):
        return arrays["indices"], returns_of(path, arrays), arrays["lengths"], arrays["terminated"]


def returns_of(path: Path, arrays: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the sums of rewards of a file's trajectories.

    Raises:
        StorageError: The numbers of lengths and rewards do not match.
    """
    lengths, rewards = arrays["lengths"], arrays["rewards"]
    is_whole = lengths.ndim == rewards.ndim == 1 and lengths.dtype == np.int64
    if not is_whole or lengths.min(initial=1) < 1 or lengths.sum() != len(rewards):
        raise StorageError(f"{path} is damaged: its lengths and its rewards do not match")
    return sums(rewards, lengths)


_HEIGHT, _HEIGHT_OF_AGENT, _HEIGHT_OF_PAIRS = 6.5, 0.36, 3.8  # inches
_MOST_POINTS = 5_000
_N_RANGES = 100
_FEWEST_BINS, _MOST_BINS = 8, 50
_MOST_NAMES = 3  # in a title
_LARGEST = 1e100  # limit of drawing: matplotlib squares differences
_LARGEST_WHOLE = 2**52  # above it all floats are whole numbers


def draw(
    path: str | PathLike[str] | Sequence[str | PathLike[str]], out: str | PathLike[str], *, dark: bool = False
) -> Path:
    """Draw the contents of a file or a folder, or of several, as SVG, PDF, or PNG 1,600 pixels wide.

    For suites, it draws the mean of each task with its interval, and performance profiles (Agarwal and others, 2021).
    Otherwise it draws returns and lengths, by index and as distributions; for a comparison of all agents, and then for
    each agent but the first the returns of both, pair by pair, with their differences. Several files share a picture,
    without pairs.

    Args:
        path: A file of trajectories, a folder of shards, or the JSON of an evaluation, a comparison or a suite; or
            several of them, suites only with suites of the same tasks.
        out: The file to write, whole or not at all: `.png`, `.svg` or `.pdf`.
        dark: Whether to use colours for a dark page.

    Returns:
        The written file.

    Raises:
        ImportError: matplotlib is missing; says how to install it.
        UsageError: `out` has another suffix.
        StorageError: A file has other contents, or is damaged.
        OSError: A file cannot be read or written.
    """
    paths = [path] if isinstance(path, str | PathLike) else path
    out = checked_picture(Path(out))
    files = list(map(Path, paths))
    if suites := _suites_in(files):
        draw_suites(suites, out, dark=dark)
        return out
    source = read_sources(files)
    pairs = () if source.comparison is None else source.comparison.pairs
    heights = [_HEIGHT + _HEIGHT_OF_AGENT * max(0, len(source.series) - 2), *(_HEIGHT_OF_PAIRS for _ in pairs)]
    with written_figure(out, sum(heights), dark=dark) as figure:
        subfigures: Any = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
        first, *others = subfigures[:, 0]
        _draw_trajectories(first, source, COLOURS[dark])
        for subfigure, pair in zip(others, pairs, strict=True):
            _draw_pairs(subfigure, pair, COLOURS[dark])
    return out


def _draw_trajectories(figure: Any, source: ChartSource, colours: Sequence[str]) -> None:
    several = len(source.series) > 1
    names = [short(each.name) for each in source.series]
    title = ", ".join(names) if len(names) <= _MOST_NAMES else count(len(names), "agent")
    figure.suptitle(f"{title} in {source.environment}" if source.environment else title, fontsize=12)
    axes = figure.subplots(2, 2, sharey="row", sharex="col", width_ratios=(3, 1))
    for (by_index, distribution), what, unit in zip(
        axes, ("return", "length"), ("sum of rewards", "timesteps"), strict=True
    ):
        values = [np.asarray(getattr(each, f"{what}s"), np.float64) for each in source.series]
        for position, (each, column) in enumerate(zip(source.series, values, strict=True)):
            colour = colours[position % len(colours)]
            interval = each.interval if what == "return" else None
            _draw_by_index(by_index, each, column, colours if not several else (colour,))
            _draw_mean(by_index, column, interval, colour, f"{short(each.name)}: " if several else "")
        _draw_distribution(distribution, values, colours)
        if _are_whole(values):
            by_index.yaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        by_index.set_ylabel(f"{what} ({unit})")
        draw_legend(by_index)
    axes[1][0].set_xlabel("trajectory index")
    axes[1][1].set_xlabel("trajectories")
    for column_of_axes in axes.T:
        column_of_axes[0].tick_params(labelbottom=True)


def _draw_mean(axis: Any, values: Any, interval: Interval | Unknown | None, colour: str, whose: str) -> None:
    """Draw a line at the mean, and its interval around it."""
    with np.errstate(all="ignore"):
        mean = float(values.mean())
    label = f"{whose}mean {number(mean)}"
    ends = np.array([mean])
    if isinstance(interval, Interval):
        label += f", {100 * interval.level:.4g} % [{number(interval.low)}, {number(interval.high)}]"
        ends = np.array([interval.low, mean, interval.high])
    if not _drawable(ends).all():
        axis.plot([], [], color=colour, linewidth=1.5, label=label)
        return
    axis.axhline(mean, color=colour, linewidth=1.5, label=label)
    axis.axhspan(ends[0], ends[-1], color=colour, alpha=0.2, linewidth=0)


def _drawable(values: Any) -> Any:
    return np.isfinite(values) & (np.abs(values) < _LARGEST)


def _draw_by_index(axis: Any, series: Series, values: Any, colours: Sequence[str]) -> None:
    """Draw a point for each trajectory, or the spread in each of a hundred ranges of indices if they are many."""
    drawn = _drawable(values)
    if not drawn.all():
        axis.plot([], [], " ", label=f"not drawn: {(~drawn).sum():,} of {len(drawn):,}, which are not finite")
    indices, values, terminated = series.indices[drawn], values[drawn], series.terminated[drawn]
    if len(values) > _MOST_POINTS:
        _draw_spread(axis, indices, values, colours[0])
        return
    size = 16 if len(values) <= 300 else 6
    ends = {"terminated": terminated, "truncated": ~terminated}
    if len(colours) == 1 or terminated.all() or not terminated.any():
        ends = {"": np.ones(len(values), np.bool_)}
    for (end, chosen), colour in zip(ends.items(), colours, strict=False):
        style = {"color": colour, "s": size, "alpha": 0.75, "linewidth": 0}
        axis.scatter(indices[chosen], values[chosen], label=end or None, **style)


def _draw_spread(axis: Any, indices: Any, values: Any, colour: str) -> None:
    order = np.argsort(indices)
    parts = np.array_split(order, _N_RANGES)
    at = [indices[part].mean() for part in parts]
    low, lower, middle, upper, high = np.array(
        [np.quantile(values[part], [0.05, 0.25, 0.5, 0.75, 0.95]) for part in parts]
    ).T
    each = f"of each {len(values) // _N_RANGES:,}"
    axis.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0, label=f"middle 90 % {each}")
    axis.fill_between(at, lower, upper, color=colour, alpha=0.35, linewidth=0, label=f"middle 50 % {each}")
    axis.plot(at, middle, color=colour, linewidth=1, alpha=0.9, label=f"median {each}")


def _draw_distribution(axis: Any, columns: Sequence[Any], colours: Sequence[str]) -> None:
    """Draw a histogram from the left, along the axis of the values."""
    columns = [column[_drawable(column)] for column in columns]
    edges = _edges(columns)
    for position, column in enumerate(columns):
        style = {"color": colours[position % len(colours)], "alpha": 0.75 if len(columns) == 1 else 0.45}
        axis.hist(column, bins=edges, orientation="horizontal", histtype="stepfilled", **style)


def _are_whole(columns: Sequence[Any]) -> bool:
    return all(
        bool((np.abs(column) < _LARGEST_WHOLE).all() and (column == np.rint(column)).all()) for column in columns
    )


def _edges(columns: Sequence[Any]) -> Any:
    """Return the edges of bins, as a function of the numbers alone.

    Bins are about as wide as by Freedman and Diaconis (1981) for the column with the smallest spread, and begin at
    multiples of their width. If all numbers are whole, each bin has equally many whole numbers, placed symmetrically.
    """
    values = np.concatenate(columns)
    if not len(values):
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    is_whole = _are_whole(columns)
    if not is_whole and not high - low > 1e-9 * max(abs(low), abs(high)):
        margin = max(0.5, 0.1 * abs(low))
        return np.array([low - margin, high + margin])
    spreads = [
        np.subtract(*np.quantile(column, [0.75, 0.25])) / np.cbrt(len(column)) for column in columns if len(column)
    ]
    least = min((2 * spread for spread in spreads if spread > 0), default=high - low)
    width = np.clip(least, (high - low) / _MOST_BINS, (high - low) / _FEWEST_BINS)
    width = _round(max(1.0, width) if is_whole else width)
    # From the lowest number or below to above the highest number.
    edges = width * np.arange(np.floor(low / width), np.floor(high / width) + 2)
    return edges - 0.5 if is_whole else edges


def _round(width: float) -> float:
    """Return the nearest of the numbers 1, 2 and 5 times a power of ten."""
    decade = 10.0 ** np.floor(np.log10(width))
    return float(decade * min((1, 2, 5, 10), key=lambda step: abs(np.log(width / decade / step))))


def _draw_pairs(figure: Any, pairs: Pairs, colours: Sequence[str]) -> None:
    first, second = short(pairs.first), short(pairs.second)
    drawn = _drawable(pairs.returns[0]) & _drawable(pairs.returns[1])
    one, two = (column[drawn] for column in pairs.returns)
    differences = two - one
    both, by_pair = figure.subplots(1, 2, width_ratios=(1, 1.25))
    style = {"s": 16 if len(one) <= 300 else 6, "alpha": 0.75 if len(one) <= 1_000 else 0.3, "linewidth": 0}
    both.scatter(one, two, color=colours[2], **style)
    low, high = _limits(np.concatenate([one, two]))
    both.plot([low, high], [low, high], color=colours[3], linewidth=1.5, label="equal")
    both.set(xlim=(low, high), ylim=(low, high), xlabel=f"return of {first}", ylabel=f"return of {second}")
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    figure.suptitle(
        f"{second} minus {first}: higher in {better:,}, equal in {len(one) - better - worse:,}, lower in {worse:,} of "
        f"{count(len(pairs), 'pair')}",
        fontsize=11,
    )
    draw_legend(both)
    by_pair.scatter(np.flatnonzero(drawn), differences, color=colours[2], **style)
    by_pair.axhline(0, color=colours[3], linewidth=1.5, label="equal")
    with np.errstate(all="ignore"):
        _draw_mean(by_pair, pairs.differences, pairs.mean_difference_interval, colours[1], "")
    by_pair.set(xlabel="pair", ylabel="difference of returns (sum of rewards)")
    draw_legend(by_pair)


def _limits(values: Any) -> tuple[float, float]:
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin
