"""Merge the parts of an evaluation or a comparison: their files become the file of one run, byte for byte."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from streamsampler.core.errors import StorageError, UsageError
from streamsampler.core.words import count
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluate import INTERRUPTED
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.protocol.messages import differing_libraries
from streamsampler.protocol.plans import Part, in_order

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
# Check that files are all parts of one run, and put them in order.


_log = logging.getLogger("streamsampler")

_KERNELS = (
    "the parts were sampled where {} with other kernels, so that one run may have sampled other trajectories: {}. See "
    '"Other processors" in the guide, streamsampler.samplers'
)
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class PartFile:
    """What a file says of itself.

    Attributes:
        path: The file.
        part: Which part it is; None for none.
        origin: What decides about its trajectories, by name: all parts of a run agree in it.
        fingerprints: How the workers computed that sampled it.
        lacks: What is missing, and what to do about it; empty where the part is whole.
    """

    path: Path
    part: Part | None
    origin: Mapping[str, Any]
    fingerprints: frozenset[str] = frozenset()
    lacks: str = ""


def parts_of_one_run(files: Sequence[PartFile]) -> list[PartFile]:
    """Return parts in the order of their indices; warn where they were computed with other kernels.

    Raises:
        UsageError: They are not all parts of one run, each once and whole; names the files, and what differs or lacks.
    """
    for file in files:
        if file.lacks:
            raise UsageError(f"{file.path}{f', {file.part},' if file.part else ''} {file.lacks}")
    for file in files[1:]:
        _check_origin(files[0], file)
    by_name = {str(file.path): file for file in files}
    names = in_order({name: file.part for name, file in by_name.items()})
    _warn_of_kernels(files)
    return [by_name[name] for name in names]


def check_paths(parts: Sequence[Path], out: Path) -> None:
    """Check that no part is given twice, and that what is written is none of them.

    Raises:
        UsageError: One is.
    """
    seen: set[Path] = set()
    for path in parts:
        if (resolved := path.resolve()) in seen:
            raise UsageError(f"{path} is given twice")
        seen.add(resolved)
    if out.resolve() in seen:
        raise UsageError(f"{out} is one of the parts: name another file to write")


def _check_origin(one: PartFile, other: PartFile) -> None:
    differences = [
        f"{name} is {one.origin.get(name)!r:.200} in {one.path}, and {other.origin.get(name)!r:.200} in {other.path}"
        for name in dict.fromkeys([*one.origin, *other.origin])
        if one.origin.get(name) != other.origin.get(name)
    ]
    if differences:
        raise UsageError(f"the parts are of different runs: {'; '.join(differences)}")


def _warn_of_kernels(files: Sequence[PartFile]) -> None:
    libraries = differing_libraries(bits for file in files for bits in file.fingerprints)
    if not libraries:
        return
    places: dict[str, list[str]] = {}
    for file in files:
        for bits in sorted(file.fingerprints):
            places.setdefault(bits, []).append(str(file.path))
    described = [
        f"{bits} in {', '.join(paths[:_SHOWN])}{', …' if len(paths) > _SHOWN else ''}" for bits, paths in places.items()
    ]
    verb = "computes" if len(libraries) == 1 else "compute"
    _log.warning("%s", _KERNELS.format(f"{' and '.join(libraries)} {verb}", "; ".join(described)))


# ----------------------------------------------------------------------


_COLUMNS = ("returns", "lengths", "terminated", "truncated", "indices")
_AGREE = ("agent", "environment", "versions", "seed", "success_meaning", "guaranteed", "bounds")
_A: Mapping[Kind, str] = {"evaluation": "an evaluation", "comparison": "a comparison"}
_FINGERPRINTS = "fingerprints"


def merge(parts: Iterable[str | PathLike[str]], out: str | PathLike[str]) -> Evaluation | Comparison:
    """Merge all parts of one run, and write what the run would have written without parts: the same bytes.

    Parts are made with `part=(i, n)` of `evaluate` and `compare`, saved by `save`, and with `--part i/n` on the command
    line. All that decides about trajectories must agree. Where parts were computed on machines whose libraries round
    differently, that is logged as a warning. Of samples, several files and folders are read as one: see
    `streamsampler.load`.

    Args:
        parts: Files, in any order: all of one kind, and each part once.
        out: The file to write; one that is there is replaced.

    Returns:
        What was written: an evaluation or a comparison.

    Raises:
        UsageError: A part is missing, there twice, not whole, or of another run; or `out` is one of them (a
            ValueError). Names the part and the file.
        StorageError: A file holds something else, or is damaged.
        OSError: A file cannot be read or written.
    """
    if isinstance(parts, str | bytes | PathLike):
        raise UsageError(f"parts must be several files, got {parts!r}")
    paths = [Path(part) for part in parts]
    if not paths:
        raise UsageError("there is nothing to merge: name the files of all parts")
    kinds = {path: kind_of_part(path) for path in paths}
    kind = kinds[paths[0]]
    if other := next((path for path in paths if kinds[path] != kind), None):
        raise UsageError(f"{paths[0]} is {_A[kind]}, and {other} is {_A[kinds[other]]}: merge parts of one kind")
    out = Path(out)
    check_paths(paths, out)
    merged = _evaluation_of(paths) if kind == "evaluation" else _comparison_of(paths)
    merged.save(out)
    return merged


def kind_of_part(path: Path) -> Kind:
    """Return what a part holds.

    Raises:
        StorageError: It holds something else.
        OSError: It cannot be read.
    """
    kind = kind_of(path)
    if kind == "evaluation" or kind == "comparison":
        return kind
    problem = "it holds neither an evaluation nor a comparison"
    if kind is not None:
        problem = f"it is a {kind}, and only evaluations and comparisons have parts; streamsampler.load reads several"
    raise StorageError(f"{path} is no part: {problem}")


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
