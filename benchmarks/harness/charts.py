"""Charts, with matplotlib, which is imported here only: `pip install '.[benchmarks]'`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamsampler.core.extras import install_hint

__all__ = ["bar_chart", "line_chart", "lines_chart", "share_chart", "throughput_chart"]

_OURS, _LIMIT, _PEER = "#1f6f50", "#9a9a9a", "#c08a3e"
_NEUTRAL = "#6e7b8a"  # of the same contrast, 4.3, on a white page and on a dark one
_BLUE, _GREY = "#2f6fcf", "#a0a8b2"
_MOST_COLUMNS = 3


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        print(f"no chart: {install_hint('plot')}")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _colour(name: str) -> str:
    if name.startswith("ours"):
        return _OURS
    return _LIMIT if any(word in name for word in ("bare", "copying", "least")) else _PEER


def throughput_chart(title: str, results: dict[str, Any], path: Path, label: str) -> None:
    """Draw bars of the ratio to the limit, a panel for each workload, with the spread of the rounds."""
    panels = {
        workload: {name: result["ratio"] for name, result in contenders.items() if "ratio" in result}
        for workload, contenders in results.items()
    }
    bar_chart(title, label, panels, path, line=1.0)


def bar_chart(
    title: str,
    label: str,
    panels: dict[str, dict[str, dict[str, float]]],
    path: Path,
    *,
    line: float | None = None,
    digits: int = 2,
) -> None:
    """Draw bars of medians from the left, with quartiles: a panel for each workload, a bar for each contender.

    Args:
        title: Above the panels.
        label: Below each panel.
        panels: By workload and contender, the return value of `comparing.spread`.
        path: The file to write.
        line: A value to mark by a line: the limit, or a goal.
        digits: Decimals of the numbers next to the bars.
    """
    pyplot = _pyplot()
    panels = {workload: bars for workload, bars in panels.items() if bars}
    if pyplot is None or not panels:
        return
    columns = min(len(panels), _MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    height = 1.2 + 0.32 * max(len(bars) for bars in panels.values())
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(6 * columns, height * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (workload, bars) in zip(axes.flat, panels.items(), strict=False):
        _draw_bars(axis, bars, line, digits)
        axis.set_title(workload, fontsize=10)
        axis.set_xlabel(label)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _draw_bars(axis: Any, bars: dict[str, dict[str, float]], line: float | None, digits: int) -> None:
    medians = [bar["median"] for bar in bars.values()]
    errors = [
        [bar["median"] - bar["low"] for bar in bars.values()],
        [bar["high"] - bar["median"] for bar in bars.values()],
    ]
    axis.barh(list(bars), medians, xerr=errors, color=[_colour(name) for name in bars], ecolor="#333333", capsize=2)
    if line is not None:
        axis.axvline(line, color="#333333", linewidth=0.8)
    axis.set_xlim(0, 1.2 * max(line or 0.0, *[bar["high"] for bar in bars.values()]))
    for position, bar in enumerate(bars.values()):
        axis.annotate(f" {bar['median']:.{digits}f}", (bar["high"], position), va="center", fontsize=8)
    axis.invert_yaxis()


def share_chart(label: str, panels: dict[str, dict[str, float]], path: Path) -> None:
    """Draw bars of shares without a background: a panel for each workload, a bar for each library, in their order.

    Args:
        label: Below each panel.
        panels: By workload and library, the share.
        path: The file to write.
    """
    pyplot = _pyplot()
    if pyplot is None or not panels:
        return
    height = 1.1 + 0.3 * max(len(bars) for bars in panels.values())
    colours = {"axes.edgecolor": _NEUTRAL, "xtick.color": _NEUTRAL, "ytick.color": _NEUTRAL, "text.color": _NEUTRAL}
    with pyplot.rc_context({**colours, "axes.labelcolor": _NEUTRAL, "font.size": 10}):
        figure, axes = pyplot.subplots(1, len(panels), figsize=(4.9 * len(panels), height), layout="constrained")
        for axis, (workload, bars) in zip(axes, panels.items(), strict=True):
            ours = [name.startswith("streamsampler") for name in bars]
            axis.barh(list(bars), list(bars.values()), color=[_BLUE if own else _GREY for own in ours])
            for position, share in enumerate(bars.values()):  # in a column of their own, which no line crosses
                axis.annotate(f"{share:.2f}", (1.0, position), xycoords=axis.get_yaxis_transform(), va="center")
            axis.axvline(1.0, color=_NEUTRAL, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
            axis.set(title=workload, xlabel=label, xlim=(0, 1.05 * max(1.0, *bars.values())))
            axis.spines[["top", "right"]].set_visible(False)
            axis.invert_yaxis()
            for text, own in zip(axis.get_yticklabels(), ours, strict=True):
                text.set_fontweight("bold" if own else "normal")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, transparent=True)
        pyplot.close(figure)


def lines_chart(label: str, x: Sequence[float], panels: dict[str, dict[str, Sequence[float]]], path: Path) -> None:
    """Draw lines over a common logarithmic x axis, without a background: a panel for each quantity.

    Args:
        label: Of the x axis.
        x: Its values.
        panels: By quantity, which is the label of the y axis, and by line, the values.
        path: The file to write.
    """
    pyplot = _pyplot()
    if pyplot is None:
        return
    names = ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color")
    with pyplot.rc_context({**dict.fromkeys(names, _NEUTRAL), "font.size": 10}):
        figure, axes = pyplot.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.4), layout="constrained")
        for axis, (quantity, lines) in zip(axes, panels.items(), strict=True):
            for (name, values), colour, marker in zip(lines.items(), (_BLUE, _PEER, _OURS), "os^", strict=False):
                axis.plot(x, values, marker=marker, color=colour, label=name)
            axis.set(xlabel=label, ylabel=quantity, xscale="log")
            axis.set_ylim(bottom=0)
            axis.set_xticks(x, [f"{value:,}" for value in x])
            axis.minorticks_off()
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False, labelcolor=_NEUTRAL)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, transparent=True)
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
