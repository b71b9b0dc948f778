"""The style of all pictures: formats, colours on light and dark pages, legends, names of agents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from streamsampler.core.atomic import write_whole
from streamsampler.core.errors import UsageError
from streamsampler.core.extras import needed

PICTURES = {".png": ("Software",), ".svg": ("Date",), ".pdf": ("CreationDate",)}
"""The formats of pictures by suffix, with the metadata to omit."""


WIDTH = 8.0
"""Width of a picture, in inches."""
_DPI = 200  # sharp at 800 pixels on any screen
_LONGEST_NAME, _LONGEST_LEGEND, _WIDTH_OF_LINE = 32, 76, 8  # characters

# Okabe and Ito's colours, which remain distinct for colour-blind readers; lighter on a dark page.
COLOURS = {
    False: ("#0072B2", "#D55E00", "#009E73", "#A2528B", "#8C6D00", "#3FA9DE", "#5A5F66"),
    True: ("#56B4E9", "#E69F00", "#2FC99A", "#E7A6CC", "#F0E442", "#8FA3FF", "#B4BAC2"),
}
_PAGES = {False: ("#ffffff", "#1f2328", "#d8dce1"), True: ("#15181d", "#dfe3e8", "#3a4049")}


def checked_picture(out: Path) -> Path:
    """Return the file of a picture.

    Raises:
        UsageError: Its suffix is not a format of pictures.
    """
    if out.suffix not in PICTURES:
        raise UsageError(f"pictures are written to {', '.join(PICTURES)} files, got {str(out)!r}")
    return out


@contextmanager
def written_figure(out: Path, height: float, *, dark: bool) -> Iterator[Any]:
    """Yield a figure, and write it afterwards, whole or not at all.

    Raises:
        ImportError: matplotlib is missing; says how to install it.
        OSError: The file cannot be written.
    """
    matplotlib = needed("matplotlib", "drawing", "plot")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_style(dark)):
        figure = Figure(figsize=(WIDTH, height), dpi=_DPI, layout="constrained")
        yield figure
        picture = BytesIO()
        figure.savefig(picture, format=out.suffix[1:], metadata=dict.fromkeys(PICTURES[out.suffix]))
    write_whole(out, lambda file: file.write(picture.getvalue()))


def _style(dark: bool) -> dict[Any, Any]:
    page, ink, grid = _PAGES[dark]
    colours = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor"), ink)
    return {
        **colours,
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), page),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), grid),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
        "axes.grid": True,
        "axes.axisbelow": True,
        "font.size": 10,
        "axes.titlesize": 11,
        "legend.fontsize": 9,
        "legend.labelcolor": ink,
        "text.parse_math": False,  # names may have dollars
        "svg.hashsalt": "streamsampler",  # no random names
    }


def draw_legend(axis: Any) -> None:
    """Draw the legend above an axis, where it covers nothing."""
    labels = axis.get_legend_handles_labels()[1]
    columns = 1 if sum(len(label) + _WIDTH_OF_LINE for label in labels) > _LONGEST_LEGEND else len(labels)
    axis.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, markerscale=1.5, borderaxespad=0.2
    )


def short(name: str) -> str:
    """Return an agent's name, without its beginning if it is long."""
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
