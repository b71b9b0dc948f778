"""Export trajectories to the formats of other libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from streamsampler.errors import UsageError
from streamsampler.formats import minari, tables, tensordict
from streamsampler.formats.columns import Sourced, open_source
from streamsampler.formats.sb3 import save_evaluations
from streamsampler.formats.staging import check_out
from streamsampler.samplers.progress import ProgressArgument, display

# ----------------------------------------------------------------------
# The formats that trajectories and evaluations are exported to: one line each.


@dataclass(frozen=True)
class Format:
    """A format of another library.

    Attributes:
        write: Writes it.
        options: The names of the arguments that only this format takes.
        of: What is written in it.
    """

    write: Callable[..., object]
    options: frozenset[str] = frozenset()
    of: Literal["trajectories", "evaluations"] = "trajectories"


FORMATS: Mapping[str, Format] = {
    "minari": Format(minari.write, frozenset({"dataset_id", "metadata"})),
    "parquet": Format(tables.write),
    "tensordict": Format(tensordict.write),
    "sb3": Format(save_evaluations, of="evaluations"),
}


def format_named(name: str, options: Mapping[str, Any]) -> Format:
    """Return a format of trajectories.

    Raises:
        UsageError: There is none of that name, it is of evaluations, or it has no such options.
    """
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}, only {', '.join(FORMATS)}")
    if FORMATS[name].of != "trajectories":
        raise UsageError(f"the format {name!r} is for evaluations: call streamsampler.formats.save_evaluations")
    if wrong := sorted(options.keys() - FORMATS[name].options):
        raise UsageError(f"the format {name!r} takes no {' and no '.join(wrong)}")
    return FORMATS[name]


# ----------------------------------------------------------------------


def export(
    source: Sourced, out: str | os.PathLike[str], *, to: str, progress: ProgressArgument = False, **options: Any
) -> Path:
    """Export trajectories to the format of another library, with one shard in memory at a time.

    The folder appears under its name when it is whole; until then it is in `.NAME.export` next to it. An error or
    Ctrl-C leaves nothing, and what a killed export left is removed by the next one.

    Args:
        source: A `TrajectoryBatch`, a `TrajectoryFolder`, or the path of a file or of a folder.
        out: The folder to write, new or empty; its parent directory must exist.
        to: "minari", "parquet" or "tensordict"; see `streamsampler.formats`.
        progress: As `obtain_samples` of samplers takes it.
        **options: What only one format takes; see `streamsampler.formats.minari.write`.

    Returns:
        The folder.

    Raises:
        UsageError: An argument cannot work, or the folder holds something.
        DataError: There are no trajectories.
        StorageError: The source is damaged, or is none; the format cannot hold it; or another process writes there.
        ImportError: The format's library is not there; says how to install it.
        OSError: Something cannot be read or written.
    """
    kind = format_named(to, options)
    target = Path(out)
    check_out(target)
    opened = open_source(source)
    with display(progress, opened.n_timesteps, "timesteps", doing="exporting") as shown:
        kind.write(opened, target, shown, **options)
        shown.update(lambda: (opened.n_timesteps, opened.n_trajectories), complete=True)
    return target
