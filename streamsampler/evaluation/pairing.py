"""Pair trajectories of two evaluations with the same seed. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.evaluation import Evaluation

Positions = NDArray[np.intp]


def pairs_of(first: Evaluation, second: Evaluation) -> tuple[Positions, Positions]:
    """Return the pairs of trajectories of two evaluations.

    The evaluations of a comparison have the same seeds at the same indices: a pair has the same index. Other
    evaluations may have the same seeds in another order: a pair has the same seed.

    Args:
        first: N trajectories.
        second: M trajectories.

    Returns:
        (K,) positions in the first evaluation, in ascending order, and (K,) positions in the second.

    Raises:
        UsageError: The resets of a pair had different options; or an evaluation in another order repeats a seed.
    """
    _, mine, others = np.intersect1d(first.indices, second.indices, assume_unique=True, return_indices=True)
    if not all(first.seeds[i] == second.seeds[j] for i, j in zip(mine.tolist(), others.tolist(), strict=True)):
        mine, others = _of_seeds(first, second)
    for i, j in zip(mine.tolist(), others.tolist(), strict=True):
        one, other = _options(first, i), _options(second, j)
        if one != other:
            raise UsageError(
                f"seed {first.seeds[i]} is reset with the options {one!r:.100} in one evaluation, and with "
                f"{other!r:.100} in the other: such trajectories are no pair"
            )
    return mine, others


def _of_seeds(first: Evaluation, second: Evaluation) -> tuple[Positions, Positions]:
    positions = {seed: position for position, seed in enumerate(second.seeds)}
    for each, n_seeds in ((first, len(set(first.seeds))), (second, len(positions))):
        if n_seeds < len(each):
            raise UsageError(
                f"{len(each)} trajectories have {n_seeds} seeds, so a seed does not identify a pair. "
                "Evaluate both agents with the same scenarios, in the same order"
            )
    found = [(position, positions[seed]) for position, seed in enumerate(first.seeds) if seed in positions]
    mine, others = np.array(found, np.intp).reshape(-1, 2).T
    return mine, others


def _options(evaluation: Evaluation, position: int) -> Any:
    """Return the options of a trajectory's reset as JSON values; None for none."""
    scenarios = (evaluation.asked or {}).get("scenarios")
    return None if scenarios is None else scenarios[int(evaluation.indices[position])].get("options")
