"""Export trajectories to the formats of other libraries."""

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

# ----------------------------------------------------------------------
# The formats that trajectories are exported to: one line each.


@dataclass(frozen=True)
class Format:
    """A format of another library.

    Attributes:
        write: Writes it: called with a `streamsampler.formats.columns.Source`, the folder, which may not be there yet,
            what shows the progress, and the options.
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
            f"there is no format {name!r} of trajectories, only {', '.join(FORMATS)}: 'minari' is HDF5, evaluations "
            "are written by streamsampler.formats.save_evaluations, and to_tensordict makes a TensorDict"
        )
    if wrong := sorted(options.keys() - FORMATS[name].options):
        raise UsageError(f"the format {name!r} takes no {wrong[0]}{meant(wrong[0], sorted(FORMATS[name].options))}")
    return FORMATS[name]


# ----------------------------------------------------------------------


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
    """Export trajectories to the format of another library, with one shard in memory at a time.

    An error or Ctrl-C leaves nothing.

    Args:
        source: A `TrajectoryBatch`, a `TrajectoryFolder`, or the path of a file or of a folder.
        out: The folder to write, new or empty; its parent directory must exist.
        to: The format: "parquet", "minari" or another key of `streamsampler.formats.export.FORMATS`. The guide
            `streamsampler/docs/storage-and-formats.md` describes each.
        fields: Which leaves of observations, actions and infos are exported, by their paths: `"observations.image"`,
            `"env_infos.lap"`; see `streamsampler.data.leaves`. Of what is not named at all, all is. None for all.
        without: Which leaves are left out.
        policy: Of several agents, the policy whose trajectories are exported.
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
    opened = open_source(source, Leaves(fields, without), policy)
    with display(progress, opened.n_timesteps, "timesteps", doing="exporting") as shown:
        kind.write(opened, target, shown, **options)
        shown.update(lambda: (opened.n_timesteps, opened.n_trajectories), complete=True)
    return target


# ----------------------------------------------------------------------
# Evaluations as Stable-Baselines3 has them.


@suggesting()
def save_evaluations(evaluations: Mapping[int, Evaluation], path: str | os.PathLike[str]) -> Path:
    """Write evaluations of an agent that was evaluated while it was trained, as the callback `EvalCallback` does.

    The file has `timesteps` (n,) int64, how long the agent had been trained; `results` (n, N) float64, the returns;
    `ep_lengths` (n, N) int64; and, where every evaluation knows of successes, `successes` (n, N) bool. What reads the
    callback's files reads these: `numpy.load`, the plots of RL Baselines3 Zoo. Nothing but NumPy is needed to write it.

    Args:
        evaluations: The evaluations, by how many timesteps the agent had been trained for; all of as many trajectories.
        path: The file, `evaluations.npz` by convention; `.npz` is appended where it is missing. A file of that name is
            replaced.

    Returns:
        The path written.

    Raises:
        UsageError: There are none; they have different numbers of trajectories; or the timesteps are no integers.
        OSError: The file cannot be written; what was there is still there.
    """
    for timesteps, evaluation in evaluations.items():
        if isinstance(timesteps, bool) or not isinstance(timesteps, int | np.integer) or timesteps < 0:
            raise UsageError(f"timesteps are integers of at least 0, and {timesteps!r} is none")
        if not isinstance(evaluation, Evaluation):
            raise UsageError(f"save_evaluations takes evaluations, not {evaluation!r:.80}")
    sizes = {timesteps: len(evaluation) for timesteps, evaluation in evaluations.items()}
    if not sizes:
        raise UsageError("there are no evaluations to write")
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{size} at timestep {timesteps}" for timesteps, size in sizes.items())
        raise UsageError(f"evaluations.npz holds as many trajectories for each evaluation, and there are {found}")
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
