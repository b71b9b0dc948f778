"""Charts, with matplotlib, which is imported here only: `pip install 'streamsampler[benchmarks]'`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["line_chart", "throughput_chart"]

_OURS, _LIMIT, _PEER = "#1f6f50", "#9a9a9a", "#c08a3e"


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        print("no chart: pip install 'streamsampler[benchmarks]' brings matplotlib")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _colour(name: str) -> str:
    if name.startswith("ours"):
        return _OURS
    return _LIMIT if "bare" in name else _PEER


def throughput_chart(title: str, results: dict[str, Any], path: Path) -> None:
    """Draw bars of the share of the limit, a panel for each workload, with the spread of the rounds."""
    pyplot = _pyplot()
    shown = {
        workload: [(name, result["ratio"]) for name, result in contenders.items() if "ratio" in result]
        for workload, contenders in results.items()
    }
    shown = {workload: bars for workload, bars in shown.items() if bars}
    if pyplot is None or not shown:
        return
    height = 1.2 + 0.32 * max(len(bars) for bars in shown.values())
    figure, axes = pyplot.subplots(1, len(shown), figsize=(6 * len(shown), height), squeeze=False, layout="constrained")
    for axis, (workload, bars) in zip(axes[0], shown.items(), strict=True):
        names = [name for name, _ in bars]
        medians = [ratio["median"] for _, ratio in bars]
        errors = [
            [ratio["median"] - ratio["low"] for _, ratio in bars],
            [ratio["high"] - ratio["median"] for _, ratio in bars],
        ]
        axis.barh(names, medians, xerr=errors, color=[_colour(name) for name in names], ecolor="#333333", capsize=2)
        axis.axvline(1.0, color="#333333", linewidth=0.8)
        axis.set_xlim(0, 1.2 * max(1.0, *[ratio["high"] for _, ratio in bars]))
        for position, (_, ratio) in enumerate(bars):
            axis.annotate(f" {ratio['median']:.2f}", (ratio["high"], position), va="center", fontsize=8)
        axis.invert_yaxis()
        axis.set_title(workload, fontsize=10)
        axis.set_xlabel("share of the bare loop's timesteps per second")
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def line_chart(
    title: str, x: tuple[str, Sequence[float]], y: str, lines: dict[str, Sequence[float]], path: Path
) -> None:
    """Draw lines over a common x axis (its label and values)."""
    pyplot = _pyplot()
    if pyplot is None:
        return
    figure, axis = pyplot.subplots(figsize=(6.5, 4), layout="constrained")
    for name, values in lines.items():
        axis.plot(x[1], values, marker="o", label=name, color=_colour(name))
    axis.set_xlabel(x[0])
    axis.set_ylabel(y)
    axis.set_ylim(bottom=0)
    axis.set_title(title)
    axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
