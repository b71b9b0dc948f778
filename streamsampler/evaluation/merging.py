"""Merge the parts of an evaluation or a comparison into the file of a single run, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias, cast

from streamsampler.core.errors import StorageError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.reading import open_regular
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.joining import joined, parts_of_one_run
from streamsampler.evaluation.suites.merge_suites import merged_comparison, merged_suite
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation

AnyMerged: TypeAlias = Evaluation | Comparison | SuiteEvaluation | SuiteComparison


Kind: TypeAlias = Literal["folder", "file of trajectories", "evaluation", "comparison", "suite", "suite comparison"]

_JSON = re.compile(rb'\s*\{\s*"format"\s*:\s*"streamsampler (evaluation|comparison|suite|suite comparison)"')


def kind_of(path: Path) -> Kind | None:
    """Return the kind of a path's contents; None for files of other origin.

    Raises:
        OSError: Reading fails.
    """
    if path.is_dir():
        return "folder"
    with open_regular(path) as file:
        begin = file.read(4096)
    if begin.startswith(b"PK"):
        return "file of trajectories"
    if match := _JSON.match(begin):
        return cast("Kind", match[1].decode())
    return None


def check_paths(parts: Sequence[Path], out: Path) -> None:
    """Check that no part is repeated, and that the output is none of them.

    Raises:
        UsageError: A part is repeated, or is the output.
    """
    seen: set[Path] = set()
    for path in parts:
        if (resolved := path.resolve()) in seen:
            raise UsageError(f"{path} is repeated")
        seen.add(resolved)
    if out.resolve() in seen:
        raise UsageError(f"{out} is one of the parts: name another file to write")


_A: Mapping[Kind, str] = {
    "evaluation": "an evaluation", "comparison": "a comparison", "suite": "a suite",
    "suite comparison": "a comparison on a suite",
}  # fmt: skip


@suggesting()
def merge(parts: Iterable[str | PathLike[str]], out: str | PathLike[str] | None = None) -> AnyMerged:
    """Merge all parts of one run, and write the file of the run without parts: the same bytes.

    Parts are made with `part=(i, n)` of `evaluate` and `compare`, saved by `save`, and with `--part i/n` on the command
    line; of a suite also with `tasks=[…]`, or `--task`, for files of different tasks. Everything that decides about
    trajectories must agree. A warning names parts from machines with other rounding. Several files and folders of
    samples need no merging: see `streamsampler.load`.

    Args:
        parts: Files, in any order: all of one kind, and each part once.
        out: The file to write; an existing file is replaced.

    Returns:
        The result: an evaluation, a comparison, a suite or a comparison on a suite.

    Raises:
        UsageError: A part is missing, repeated, incomplete, or of another run; or `out` is a part (a ValueError). Names
            the part and the file.
        StorageError: A file has other contents, or is damaged.
        OSError: A file cannot be read or written.
    """
    if isinstance(parts, str | bytes | PathLike):
        raise UsageError(f"parts must be several files, got {parts!r}")
    paths = [Path(part) for part in parts]
    if out is None:
        raise UsageError("merge needs a file for the whole run: merge([…], 'whole.json')")
    if not paths:
        raise UsageError("no parts to merge: name the files of all parts")
    kinds = {path: kind_of_part(path) for path in paths}
    kind = kinds[paths[0]]
    if other := next((path for path in paths if kinds[path] != kind), None):
        raise UsageError(f"{paths[0]} is {_A[kind]}, and {other} is {_A[kinds[other]]}: merge parts of one kind")
    out = Path(out)
    check_paths(paths, out)
    merged = _merged(kind, paths)
    merged.save(out)
    return merged


def _merged(kind: Kind, paths: Sequence[Path]) -> AnyMerged:
    match kind:
        case "evaluation":
            return joined(parts_of_one_run({path: Evaluation.load(path) for path in paths}))
        case "comparison":
            ordered = parts_of_one_run({path: Comparison.load(path) for path in paths})
            evaluations = [joined(column) for column in zip(*(each.evaluations for each in ordered), strict=True)]
            return replace(ordered[0], evaluations=tuple(evaluations))
        case "suite":
            return merged_suite({path: SuiteEvaluation.load(path) for path in paths})
    return merged_comparison({path: SuiteComparison.load(path) for path in paths})


def kind_of_part(path: Path) -> Kind:
    """Return the kind of a part.

    Raises:
        StorageError: The file has other contents.
        OSError: Reading fails.
    """
    kind = kind_of(path)
    if kind is not None and kind in _A:
        return kind
    problem = "it has neither an evaluation nor a comparison"
    if kind is not None:
        problem = f"it is a {kind}, and only evaluations and comparisons have parts; streamsampler.load reads several"
    raise StorageError(f"{path} is no part: {problem}")
