"""Merge the parts of a run: what they were written to becomes what one run would have written, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.words import count
from streamsampler.errors import StorageError, UsageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluate import INTERRUPTED
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.samplers.progress import ProgressArgument, display
from streamsampler.storage.folder import TrajectoryFolder
from streamsampler.storage.merging import PartFile, check_paths, merge_files, merge_folders, parts_of_one_run

# ----------------------------------------------------------------------
# Tell from the first bytes of a file, or from a folder, what is in it.


Kind: TypeAlias = Literal["folder", "file of trajectories", "evaluation", "comparison"]

_JSON = re.compile(rb'\s*\{\s*"format"\s*:\s*"streamsampler (evaluation|comparison)"')


def kind_of(path: Path) -> Kind | None:
    """Return what a path holds; None for nothing of this package's.

    Raises:
        OSError: It cannot be read.
    """
    if path.is_dir():
        return "folder"
    with path.open("rb") as file:
        begin = file.read(4096)
    if begin.startswith(b"PK"):
        return "file of trajectories"
    if match := _JSON.match(begin):
        return "evaluation" if match[1] == b"evaluation" else "comparison"
    return None


# ----------------------------------------------------------------------


Merged: TypeAlias = TrajectoryBatch[Any, Any] | TrajectoryFolder[Any, Any] | Evaluation | Comparison
"""What parts are together."""

_COLUMNS = ("returns", "lengths", "terminated", "truncated", "indices")
_AGREE = ("agent", "environment", "versions", "seed", "success_meaning", "guaranteed", "bounds")
_A: Mapping[Kind, str] = {
    "folder": "a folder",
    "file of trajectories": "a file of trajectories",
    "evaluation": "an evaluation",
    "comparison": "a comparison",
}
_FINGERPRINTS = "fingerprints"


def merge(
    parts: Iterable[str | PathLike[str]], out: str | PathLike[str], *, progress: ProgressArgument = False
) -> Merged:
    """Merge all parts of one run, and write what the run would have written without parts: the same bytes.

    Parts are made with `part=(i, n)` of `evaluate`, `compare`, `sample_to_folder` and `Sampler.obtain_trajectories`
    (saved by `save`), and with `--part i/n` on the command line. All that decides about trajectories must agree. Where
    parts were computed on machines whose libraries round differently, that is logged as a warning.

    Args:
        parts: Files or folders, in any order: all of one kind, and each part once.
        out: The file or folder to write. A file that is there is replaced. A folder must be new or empty; or what a
            merge of the same parts left that was killed, which the same call then completes.
        progress: See `Sampler.obtain_samples`; for folders.

    Returns:
        What was written: a batch, a folder, an evaluation or a comparison. A folder is merged in constant memory.

    Raises:
        UsageError: A part is missing, there twice, not whole, or of another run; or `out` is one of them (a
            ValueError). Names the part and the file.
        StorageError: A file holds something else, or is damaged.
        OSError: A file cannot be read or written.
    """
    if isinstance(parts, str | bytes | PathLike):
        raise UsageError(f"parts must be several files or folders, got {parts!r}")
    paths = [Path(part) for part in parts]
    if not paths:
        raise UsageError("there is nothing to merge: name the files or folders of all parts")
    kinds = {path: kind_of_part(path) for path in paths}
    kind = kinds[paths[0]]
    if other := next((path for path in paths if kinds[path] != kind), None):
        raise UsageError(f"{paths[0]} is {_A[kind]}, and {other} is {_A[kinds[other]]}: merge parts of one kind")
    out = Path(out)
    for written in (out, out.with_name(f"{out.name}.npz")) if kind == "file of trajectories" else (out,):
        check_paths(paths, written)
    if kind == "folder":
        return _merge_folders(paths, out, progress)
    if kind == "file of trajectories":
        return merge_files(paths, out)
    merged = _evaluation_of(paths) if kind == "evaluation" else _comparison_of(paths)
    merged.save(out)
    return merged


def kind_of_part(path: Path) -> Kind:
    """Return what a part holds.

    Raises:
        StorageError: It holds something else.
        OSError: It cannot be read.
    """
    if (kind := kind_of(path)) is None:
        raise StorageError(f"{path} is no part: it holds neither trajectories nor an evaluation nor a comparison")
    return kind


def _merge_folders(paths: Sequence[Path], out: Path, progress: ProgressArgument) -> TrajectoryFolder[Any, Any]:
    with display(progress, 0, "trajectories", doing="merging") as shown:

        def begun(n_trajectories: int) -> Callable[[int, int], object]:
            shown.expect(n_trajectories)
            return lambda timesteps, trajectories: shown.update(
                lambda: (timesteps, trajectories), complete=trajectories == n_trajectories
            )

        return merge_folders(paths, out, begun)


# --- Evaluations


def _evaluation_of(paths: Sequence[Path]) -> Evaluation:
    evaluations = {path: Evaluation.load(path) for path in paths}
    ordered = parts_of_one_run([_part_file(path, each, _origin(each)) for path, each in evaluations.items()])
    return _joined([evaluations[file.path] for file in ordered])


def _comparison_of(paths: Sequence[Path]) -> Comparison:
    comparisons = {path: Comparison.load(path) for path in paths}
    files = []
    for path, each in comparisons.items():
        origin: dict[str, Any] = {"agents": each.names, "until_decided": each.until_decided}
        for name, evaluation in zip(each.names, each.evaluations, strict=True):
            origin |= {f"{key} of {name}": value for key, value in _origin(evaluation).items()}
        described = [_part_file(path, evaluation, origin) for evaluation in each.evaluations]
        lacks = next((file.lacks for file in described if file.lacks), _interrupted(each.stopped))
        prints = frozenset(bits for file in described for bits in file.fingerprints)
        files.append(replace(described[0], lacks=lacks, fingerprints=prints))
    ordered = [comparisons[file.path] for file in parts_of_one_run(files)]
    columns = zip(*(each.evaluations for each in ordered), strict=True)
    return replace(ordered[0], evaluations=tuple(_joined(column) for column in columns))


def _part_file(path: Path, evaluation: Evaluation, origin: Mapping[str, Any]) -> PartFile:
    part, lacks = evaluation.part, ""
    if part is not None:
        indices, n = evaluation.indices, len(evaluation) + evaluation.left_out
        inside = part.first_trajectory <= indices.min() and indices.max() < part.stop
        if not inside or (np.diff(indices) <= 0).any() or n != part.trajectories:
            lacks = f"has {len(evaluation)} of {count(part.trajectories, 'trajectory')}: run this part again"
    lacks = lacks or _interrupted(evaluation.stopped)
    fingerprints = frozenset(map(str, evaluation.settings.get(_FINGERPRINTS, ())))
    return PartFile(path=path, part=part, origin=origin, fingerprints=fingerprints, lacks=lacks)


def _interrupted(stopped: str) -> str:
    return "was interrupted: run this part again" if stopped == INTERRUPTED else ""


def _origin(evaluation: Evaluation) -> dict[str, Any]:
    """Return what all parts of an evaluation agree in."""
    settings = {name: value for name, value in evaluation.settings.items() if name != _FINGERPRINTS}
    return {
        **settings,
        **{name: getattr(evaluation, name) for name in _AGREE},
        "names of scenarios": evaluation.names is not None,
    }


def _joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation whose parts these are, in order."""
    first = parts[0]
    successes = None
    if any(part.successes is not None for part in parts):  # a part in which no trajectory says has no success
        successes = np.concatenate([np.zeros(len(it), bool) if it.successes is None else it.successes for it in parts])
    settings = dict(first.settings)
    if _FINGERPRINTS in settings:
        settings[_FINGERPRINTS] = sorted({bits for part in parts for bits in part.settings.get(_FINGERPRINTS, ())})
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return replace(
        first,
        **columns,
        successes=successes,
        seeds=tuple(seed for part in parts for seed in part.seeds),
        names=None if first.names is None else tuple(name for part in parts for name in part.names or ()),
        settings=settings,
        stopped=next((part.stopped for part in parts if part.left_out), first.stopped),
        left_out=sum(part.left_out for part in parts),
        part=None,
    )
