"""Export trajectories to the formats of other libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamsampler.core.errors import UsageError
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.formats import minari, tables
from streamsampler.formats.columns import Sourced, open_source
from streamsampler.formats.staging import check_out

# ----------------------------------------------------------------------
# The formats that trajectories are exported to: one line each.


@dataclass(frozen=True)
class Format:
    """A format of another library.

    Attributes:
        write: Writes it.
        options: The names of the arguments that only this format takes.
    """

    write: Callable[..., object]
    options: frozenset[str] = frozenset()


FORMATS: Mapping[str, Format] = {
    "minari": Format(minari.write, frozenset({"dataset_id", "metadata"})),
    "parquet": Format(tables.write),
}


def format_named(name: str, options: Mapping[str, Any]) -> Format:
    """Return a format of trajectories.

    Raises:
        UsageError: There is none of that name, or it has no such options.
    """
    if name not in FORMATS:
        raise UsageError(
            f"there is no format {name!r} of trajectories, only {', '.join(FORMATS)}: evaluations are written by "
            "streamsampler.formats.save_evaluations, and to_tensordict makes a TensorDict"
        )
    if wrong := sorted(options.keys() - FORMATS[name].options):
        raise UsageError(f"the format {name!r} takes no {' and no '.join(wrong)}")
    return FORMATS[name]


# ----------------------------------------------------------------------


def export(
    source: Sourced, out: str | os.PathLike[str], *, to: str, progress: ProgressArgument = False, **options: Any
) -> Path:
    """Export trajectories to the format of another library, with one shard in memory at a time.

    An error or Ctrl-C leaves nothing.

    Args:
        source: A `TrajectoryBatch`, a `TrajectoryFolder`, or the path of a file or of a folder.
        out: The folder to write, new or empty; its parent directory must exist.
        to: "minari" or "parquet"; see `streamsampler.formats`.
        progress: As `obtain_samples` of samplers takes it.
        **options: What only one format takes; see `streamsampler.formats.minari.write`.

    Returns:
        The folder.

    Raises:
        UsageError: An argument cannot work, or the folder holds something.
        DataError: There are no trajectories.
        StorageError: The source is damaged, or is none; or the format cannot hold it.
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
