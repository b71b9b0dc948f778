"""Export trajectories to the formats of other libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import meant
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.data.leaf_selection import LeafSelection
from streamsampler.formats import minari, parquet
from streamsampler.formats.export_folder import check_out
from streamsampler.formats.sources import Sourced, open_source


@dataclass(frozen=True)
class Format:
    """A format of another library, and the names of its options.

    `write` is called with a `Source`, the folder (which may not exist yet), the progress display, and the options.
    """

    write: Callable[..., object]
    options: frozenset[str] = frozenset()


FORMATS: Mapping[str, Format] = {
    "minari": Format(minari.write, frozenset({"dataset_id", "metadata"})),
    "parquet": Format(parquet.write),
}


def format_named(name: str, options: Mapping[str, Any]) -> Format:
    """Return a format; a `UsageError` lists the existing formats or options."""
    if name not in FORMATS:
        raise UsageError(
            f"unknown format {name!r}: use {' or '.join(FORMATS)} ('minari' is HDF5); save_evaluations and "
            "to_tensordict in streamsampler.formats write evaluations and make a TensorDict"
        )
    if wrong := sorted(options.keys() - FORMATS[name].options):
        raise UsageError(f"the format {name!r} takes no {wrong[0]}{meant(wrong[0], sorted(FORMATS[name].options))}")
    return FORMATS[name]


def export(
    source: Sourced,
    out: str | os.PathLike[str],
    *,
    to: str,
    fields: Sequence[str] | None = None,
    without: Sequence[str] = (),
    policy: str | None = None,
    progress: ProgressArgument = False,
    **options: Any,
) -> Path:
    """Export trajectories to the format of another library, shard by shard.

    After an error or Ctrl-C nothing is left on the disk.

    Args:
        source: A `TrajectoryBatch`, a `TrajectoryFolder`, or the path of a file or of a folder.
        out: The folder to write, new or empty; its parent directory must exist.
        to: The format: "parquet", "minari" or another key of `streamsampler.formats.export.FORMATS`.
        fields: The leaves of observations, actions and infos to export, by path: `"observations.image"`,
            `"env_infos.lap"`; see `streamsampler.data.leaf_selection`. A tree without any path here is exported whole.
            None for all.
        without: The leaves to omit.
        policy: With several agents, the policy to export.
        progress: As in the samplers' `obtain_samples`.
        **options: Options of a single format; see `streamsampler.formats.minari.write`.

    Returns:
        The folder.

    Raises:
        UsageError: An argument is invalid, or the folder is not empty.
        DataError: The source has no trajectories.
        StorageError: The source is damaged or holds no trajectories, or the format cannot hold it.
        ImportError: The format's library is not installed.
        OSError: Reading or writing failed.
    """
    kind = format_named(to, options)
    target = Path(out)
    check_out(target)
    opened = open_source(source, LeafSelection(fields, without), policy)
    with display(progress, opened.n_timesteps, "timesteps", doing="exporting") as shown:
        kind.write(opened, target, shown, **options)
        shown.update(lambda: (opened.n_timesteps, opened.n_trajectories), complete=True)
    return target
