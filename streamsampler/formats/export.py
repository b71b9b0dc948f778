"""Export trajectories and evaluations to the formats of other libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamsampler.core.atomic import write_whole
from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import meant, suggesting
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.data.leaves import Leaves
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.formats import minari, tables
from streamsampler.formats.columns import Sourced, check_out, open_source


@dataclass(frozen=True)
class Format:
    """A format of another library, and the names of its options.

    `write` is called with a `Source`, the folder (which may not exist yet), the progress display, and the options.
    """

    write: Callable[..., object]
    options: frozenset[str] = frozenset()


FORMATS: Mapping[str, Format] = {
    "minari": Format(minari.write, frozenset({"dataset_id", "metadata"})),
    "parquet": Format(tables.write),
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
            `"env_infos.lap"`; see `streamsampler.data.leaves`. A tree without any path here is exported whole. None for
            all.
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
    opened = open_source(source, Leaves(fields, without), policy)
    with display(progress, opened.n_timesteps, "timesteps", doing="exporting") as shown:
        kind.write(opened, target, shown, **options)
        shown.update(lambda: (opened.n_timesteps, opened.n_trajectories), complete=True)
    return target


@suggesting()
def save_evaluations(evaluations: Mapping[int, Evaluation], path: str | os.PathLike[str]) -> Path:
    """Write the evaluations made during training to a file, in the format of Stable-Baselines3's `EvalCallback`.

    The file has `timesteps` (n,) int64, the timesteps of training; `results` (n, N) float64, the returns; `ep_lengths`
    (n, N) int64; and, if every evaluation has successes, `successes` (n, N) bool. Readers of the callback's files can
    read it, such as the plots of RL Baselines3 Zoo. Writing needs only NumPy.

    Args:
        evaluations: The evaluations by the timesteps of training; all with the same number of trajectories.
        path: The file, `evaluations.npz` by convention; `.npz` is appended to other names. An existing file is
            replaced.

    Returns:
        The path written.

    Raises:
        UsageError: The dict is empty, the numbers of trajectories differ, or a key is no integer.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    for timesteps, evaluation in evaluations.items():
        if isinstance(timesteps, bool) or not isinstance(timesteps, int | np.integer) or timesteps < 0:
            raise UsageError(f"timesteps must be integers of at least 0, not {timesteps!r}")
        if not isinstance(evaluation, Evaluation):
            raise UsageError(f"save_evaluations needs evaluations, not {evaluation!r:.80}")
    sizes = {timesteps: len(evaluation) for timesteps, evaluation in evaluations.items()}
    if not sizes:
        raise UsageError("there are no evaluations to write")
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{size} at timestep {timesteps}" for timesteps, size in sizes.items())
        raise UsageError(f"all evaluations in a file must have the same number of trajectories, but there are {found}")
    inorder = sorted(evaluations.items())
    arrays = {
        "timesteps": np.array([timesteps for timesteps, _ in inorder], np.int64),
        "results": np.stack([evaluation.returns for _, evaluation in inorder]),
        "ep_lengths": np.stack([evaluation.lengths for _, evaluation in inorder]),
    }
    successes = [evaluation.successes for _, evaluation in inorder if evaluation.successes is not None]
    if len(successes) == len(inorder):
        arrays["successes"] = np.stack(successes)
    target = Path(path)
    target = target if target.name.endswith(".npz") else target.with_name(f"{target.name}.npz")
    write_whole(target, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    return target
