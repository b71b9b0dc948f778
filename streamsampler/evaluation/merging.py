"""Merge the parts of an evaluation or a comparison: their files become the file of one run, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from streamsampler.core.errors import StorageError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.reading import open_regular
from streamsampler.core.words import count
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.evaluation_call import SHOWN_FAILURES
from streamsampler.evaluation.journal import INTERRUPTED
from streamsampler.evaluation.origins import differences, fingerprints_of, origin_of, warn_of_kernels
from streamsampler.protocol.parts import in_order

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
    with open_regular(path) as file:
        begin = file.read(4096)
    if begin.startswith(b"PK"):
        return "file of trajectories"
    if match := _JSON.match(begin):
        return "evaluation" if match[1] == b"evaluation" else "comparison"
    return None


# ----------------------------------------------------------------------
# Check that files are all parts of one run, and put them in order.


AnyFound: TypeAlias = Evaluation | Comparison


def parts_of_one_run(found: Mapping[Path, AnyFound]) -> list[AnyFound]:
    """Return parts in the order of their indices; warn where they were computed with other kernels.

    Raises:
        UsageError: They are not all parts of one run, each once and whole; names the files, and what differs or lacks.
    """
    parts = {str(path): each.evaluations[0].part for path, each in found.items()}
    for path, each in found.items():
        if lacks := next(filter(None, map(_lacking, [*each.evaluations, each])), ""):
            part = parts[str(path)]
            raise UsageError(f"{path}{f', {part},' if part else ''} {lacks}")
    (first, whole), *others = found.items()
    for path, each in others:
        _check_origin(first, _origin(whole), path, _origin(each))
    names = in_order(parts)
    warn_of_kernels(
        {str(path): fingerprints_of(each.evaluations) for path, each in found.items()},
        "the parts were",
        "one run may have sampled other trajectories",
    )
    return [found[Path(name)] for name in names]


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


def _check_origin(first: Path, one: Mapping[str, Any], path: Path, other: Mapping[str, Any]) -> None:
    if found := differences(first, one, f"in {path}", other):
        raise UsageError(f"the parts are of different runs: {'; '.join(found)}")


# ----------------------------------------------------------------------


_COLUMNS = ("returns", "lengths", "terminated", "truncated", "indices")
_AGREE = ("guaranteed", "bounds")
_A: Mapping[Kind, str] = {"evaluation": "an evaluation", "comparison": "a comparison"}
_FINGERPRINTS = "fingerprints"


@suggesting()
def merge(parts: Iterable[str | PathLike[str]], out: str | PathLike[str] | None = None) -> Evaluation | Comparison:
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
    if out is None:
        raise UsageError("merge writes the whole to a file: name it, merge([…], 'whole.json')")
    if not paths:
        raise UsageError("there is nothing to merge: name the files of all parts")
    kinds = {path: kind_of_part(path) for path in paths}
    kind = kinds[paths[0]]
    if other := next((path for path in paths if kinds[path] != kind), None):
        raise UsageError(f"{paths[0]} is {_A[kind]}, and {other} is {_A[kinds[other]]}: merge parts of one kind")
    out = Path(out)
    check_paths(paths, out)
    load = Evaluation.load if kind == "evaluation" else Comparison.load
    found: dict[Path, AnyFound] = {path: load(path) for path in paths}
    ordered = parts_of_one_run(found)
    evaluations = [_joined(column) for column in zip(*(each.evaluations for each in ordered), strict=True)]
    whole = ordered[0]
    merged = replace(whole, evaluations=tuple(evaluations)) if isinstance(whole, Comparison) else evaluations[0]
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


def _lacking(found: AnyFound) -> str:
    """Return what a part lacks, and what to do about it; empty where it is whole."""
    if isinstance(found, Evaluation) and (part := found.part) is not None:
        indices, n = found.indices, len(found) + found.left_out
        inside = part.first_trajectory <= indices.min() and indices.max() < part.stop
        if not inside or (np.diff(indices) <= 0).any() or n != part.trajectories:
            return f"has {len(found)} of {count(part.trajectories, 'trajectory')}: run this part again"
    return "was interrupted: run this part again" if found.stopped == INTERRUPTED else ""


def _origin(found: AnyFound) -> dict[str, Any]:
    """Return what all parts of a run agree in: what decides about its trajectories, by name."""
    if isinstance(found, Evaluation):
        return {**origin_of(found), **{name: getattr(found, name) for name in _AGREE}, "part": None}
    origin = {"agents": found.names, "until_decided": found.until_decided}
    for name, evaluation in zip(found.names, found.evaluations, strict=True):
        origin |= {f"{key} of {name}": value for key, value in _origin(evaluation).items()}
    return origin


def _joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation whose parts these are, in order."""
    first = parts[0]
    successes = None
    if any(part.successes is not None for part in parts):  # a part in which no trajectory says has no success
        successes = np.concatenate([np.zeros(len(it), bool) if it.successes is None else it.successes for it in parts])
    settings = dict(first.settings)
    if _FINGERPRINTS in settings:
        settings[_FINGERPRINTS] = fingerprints_of(parts)
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
        failures=tuple(reason for part in parts for reason in part.failures)[:SHOWN_FAILURES],
        anomalies=sum(part.anomalies for part in parts),
        first_anomaly=next((part.first_anomaly for part in parts if part.first_anomaly is not None), None),
        part=None,
    )
