"""What an evaluation keeps of each trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.errors import UsageError

__all__ = ["SUCCESS_KEYS", "Row", "SuccessMeaning", "columns_of", "row_of"]

SuccessMeaning: TypeAlias = Literal["end", "once"]
"""When a trajectory succeeds: if its last timestep says so, or any of its timesteps."""

SUCCESS_KEYS = ("success", "is_success")
"""The keys of infos that say so; where there are both, the first one counts."""


@dataclass(frozen=True, slots=True)
class Row:
    """What an evaluation keeps of one trajectory.

    Attributes:
        trajectory: Its index.
        seed: Its seed.
        value: Its return: the sum of its rewards.
        length: Its timesteps.
        terminated: Whether it terminated.
        truncated: Whether it was truncated.
        success: Whether it succeeded; None if none of its infos says.
    """

    trajectory: int
    seed: int
    value: float
    length: int
    terminated: bool
    truncated: bool
    success: bool | None


def row_of(trajectory: TrajectoryBatch[Any, Any], meaning: SuccessMeaning) -> Row:
    """Return what is kept of a batch of one trajectory.

    Args:
        trajectory: The batch.
        meaning: When it succeeds.

    Raises:
        UsageError: An info of success is neither true nor false.
    """
    return Row(
        trajectory=int(trajectory.indices[0]),
        seed=trajectory.seeds[0],
        value=float(trajectory.raw_returns[0]),
        length=int(trajectory.lengths[0]),
        terminated=bool(trajectory.terminated[0]),
        truncated=bool(trajectory.truncated[0]),
        success=_success(trajectory.env_infos, meaning),
    )


def _success(infos: dict[str, Any], meaning: SuccessMeaning) -> bool | None:
    key = next((key for key in SUCCESS_KEYS if key in infos), None)
    if key is None:
        return None
    values, said = infos[key], infos.get(f"_{key}")
    if isinstance(values, dict) or values.ndim != 1:
        raise UsageError(f"the info {key!r} should be true or false in each timestep, and is {values!r:.60}")
    if said is None:
        said = np.ones(len(values), np.bool_)
    if meaning == "end":
        values, said = values[-1:], said[-1:]
    return any(_as_bool(value, key) for value in values[said].tolist())


def _as_bool(value: Any, key: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool | int | float):
        raise UsageError(f"the info {key!r} should be true or false, and is {value!r:.60}")
    return bool(value)


def columns_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return rows as columns, by the names of an `Evaluation`.

    Where any trajectory says whether it succeeded, one that does not say has not.
    """
    known = any(row.success is not None for row in rows)
    return {
        "returns": np.array([row.value for row in rows], np.float64),
        "lengths": np.array([row.length for row in rows], np.int64),
        "terminated": np.array([row.terminated for row in rows], np.bool_),
        "truncated": np.array([row.truncated for row in rows], np.bool_),
        "successes": np.array([bool(row.success) for row in rows], np.bool_) if known else None,
        "indices": np.array([row.trajectory for row in rows], np.int64),
        "seeds": tuple(row.seed for row in rows),
    }
