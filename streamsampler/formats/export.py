"""Export trajectories to the formats of other libraries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from streamsampler.formats.registry import format_named
from streamsampler.formats.source import Sourced, open_source
from streamsampler.formats.staging import check_out
from streamsampler.samplers.progress import ProgressArgument
from streamsampler.samplers.progress_output import display

__all__ = ["export"]


def export(
    source: Sourced, out: str | os.PathLike[str], *, to: str, progress: ProgressArgument = False, **options: Any
) -> Path:
    """Export trajectories to the format of another library, with one shard in memory at a time.

    The folder appears under its name when it is whole; until then it is `.NAME.export` next to it. Whatever ends an
    export to Minari (Ctrl-C, SIGKILL, a full disk), the same call continues it; the other formats begin again.

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
        kind.load().write(opened, target, shown, **options)
        shown.update(lambda: (opened.n_timesteps, opened.n_trajectories), complete=True)
    return target
