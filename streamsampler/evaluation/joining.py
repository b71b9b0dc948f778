"""Check that evaluations are all parts of one run, and join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.core.words import count
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.evaluation_call import SHOWN_FAILURES
from streamsampler.evaluation.journal import INTERRUPTED
from streamsampler.evaluation.origins import differences, fingerprints_of, origin_of, warn_of_kernels
from streamsampler.protocol.evaluation_parts import in_order

_COLUMNS = ("returns", "lengths", "terminated", "truncated", "indices")
_AGREE = ("guaranteed", "bounds")
_FINGERPRINTS = "fingerprints"

AnyFound: TypeAlias = Evaluation | Comparison


Whole = TypeVar("Whole", bound=Evaluation | Comparison)


def parts_of_one_run(found: Mapping[Path, Whole]) -> list[Whole]:
    """Return parts in the order of their indices; warn if their kernels differ.

    Raises:
        UsageError: They are not all parts of one run, each once and complete; names the files, and the difference or
            the missing part.
    """
    parts = {str(path): each.evaluations[0].part for path, each in found.items()}
    for path, each in found.items():
        if lacks := next(filter(None, [*map(lacking, each.evaluations), lacking(each)]), ""):
            part = parts[str(path)]
            raise UsageError(f"{path}{f', {part},' if part else ''} {lacks}")
    (first, whole), *others = found.items()
    for path, each in others:
        _check_origin(first, _origin(whole), path, _origin(each))
    names = in_order(parts)
    warn_of_kernels(
        {str(path): fingerprints_of(each.evaluations) for path, each in found.items()},
        "the parts were",
        "a single run may have sampled other trajectories",
    )
    return [found[Path(name)] for name in names]


def _check_origin(first: Path, one: Mapping[str, Any], path: Path, other: Mapping[str, Any]) -> None:
    if found := differences(first, one, f"in {path}", other):
        raise UsageError(f"the parts are of different runs: {'; '.join(found)}")


def lacking(found: AnyFound) -> str:
    """Return the missing trajectories of a part with advice; empty if it is complete."""
    if isinstance(found, Evaluation) and (part := found.part) is not None:
        indices, n = found.indices, len(found) + found.left_out
        inside = part.first_trajectory <= indices.min() and indices.max() < part.stop
        if not inside or (np.diff(indices) <= 0).any() or n != part.trajectories:
            return f"has {len(found)} of {count(part.trajectories, 'trajectory')}: run this part again"
    return "was interrupted: run this part again" if found.stopped == INTERRUPTED else ""


def _origin(found: AnyFound) -> dict[str, Any]:
    """Return the common facts of a run's parts: everything that decides about its trajectories, by name."""
    if isinstance(found, Evaluation):
        return {**origin_of(found), **{name: getattr(found, name) for name in _AGREE}, "part": None}
    origin = {"agents": found.names, "until_decided": found.until_decided, "decide_on": found.decide_on}
    for name, evaluation in zip(found.names, found.evaluations, strict=True):
        origin |= {f"{key} of {name}": value for key, value in _origin(evaluation).items()}
    return origin


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation of consecutive parts."""
    first = parts[0]
    successes = None
    if any(part.successes is not None for part in parts):  # a part without success flags has no successes
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
