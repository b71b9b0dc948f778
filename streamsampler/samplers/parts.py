"""Cut a part out of the trajectories of a sampler's call, and refuse it where the parts would not be one run's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.errors import UsageError
from streamsampler.scheduling.parts import Part, checked_part, part_of
from streamsampler.scheduling.plans import Exactly, Streamed
from streamsampler.workers.resets import Resets

if TYPE_CHECKING:
    from streamsampler.samplers.obtaining import ObtainingSampler

__all__ = ["by_task", "check_first", "exactly", "part_of_call", "streamed"]


def exactly(
    sampler: ObtainingSampler[Any, Any], n_trajectories: int, resets: Resets | None, part: Any, *, dropping: bool
) -> Exactly:
    """Return the plan of a call for exactly so many trajectories, or for a part of them; see `part_of_call`.

    Args:
        sampler: The sampler.
        n_trajectories: How many trajectories all parts have together.
        resets: What the call says of them.
        part: The part; None for all.
        dropping: Whether trajectories may be left out. Then others of the same task take their places.
    """
    n_of_task = replaceable(resets, dropping=dropping)
    fixed = resets is not None and resets.is_fixed and n_of_task is None
    if part is None:
        return Exactly(n_trajectories, fixed=fixed, n_of_task=n_of_task)
    return Exactly.of_part(part_of_call(sampler, part, n_trajectories, fixed=fixed), fixed=fixed)


def streamed(first: int, n_trajectories: int | None, resets: Resets | None, *, dropping: bool, kinds: bool) -> Streamed:
    """Return the plan of a stream.

    Args:
        first: The first index.
        n_trajectories: How many there are; None without end.
        resets: What the call says of them.
        dropping: Whether trajectories may be left out.
        kinds: See `GatherPlan.keeps_kinds`.

    Raises:
        UsageError: The stream begins in the middle of tasks, so that it is not known what of them was left out before.
    """
    n_of_task = replaceable(resets, dropping=dropping)
    if n_of_task is not None and first:
        raise UsageError(
            f"with tasks, and trajectories that are left out, first_trajectory must be 0, got {first}: how many of "
            "each task were left out before is not known. Give each trajectory a seed (seeds=[…]): then none is "
            "replaced"
        )
    fixed = resets is not None and resets.is_fixed and n_of_task is None
    return Streamed(first, n_trajectories, fixed, kinds, n_of_task)


def replaceable(resets: Resets | None, *, dropping: bool) -> int | None:
    """Return `Resets.n_replaceable` where trajectories may be left out, and else None."""
    return resets.n_replaceable if dropping and resets is not None else None


def by_task(batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
    """Return a batch with the trajectories of each task together, in the order of the tasks, then of the indices."""
    numbers = np.asarray(batch.episode_infos["task_index"])
    if (np.diff(numbers) >= 0).all():
        return batch
    return replace(batch[np.argsort(numbers, kind="stable")], stats=batch.stats)


def part_of_call(sampler: ObtainingSampler[Any, Any], part: Any, n_trajectories: int, *, fixed: bool) -> Part:
    """Return a part of a call's trajectories 0 to `n_trajectories - 1`.

    Args:
        sampler: The sampler; what it runs together is not cut.
        part: Its number from 1 on, and how many parts there are.
        n_trajectories: How many trajectories all parts have together.
        fixed: Whether each has a seed or options of its own, so that no other one replaces it.

    Raises:
        UsageError: There is no such part; or the parts together would not be what one call returns.
    """
    checked_part(part)
    provenance = sampler.provenance()
    if provenance["order"] != "index":
        raise UsageError('a part needs order="index": what arrives first has no fixed range of indices')
    if provenance["on_failure"] == "drop" and not fixed:
        raise UsageError(
            'a part cannot be sampled with on_failure="drop": what is left out would be replaced by a trajectory of '
            "the next part. Give each trajectory a seed (seeds=[…]): then none is replaced"
        )
    if sampler.layout.block > 1 and "n_workers" in provenance:
        raise UsageError(f"a part cannot be sampled {_OWN_BLOCKS}")
    return part_of(part, n_trajectories, sampler.layout.block)


_OWN_BLOCKS = "where workers have agents or environments of their own and run blocks of trajectories together"


def check_first(first: int, block: int, *, differ: bool) -> None:
    """Check that a stream can begin with a trajectory.

    Args:
        first: Its index.
        block: How many consecutive trajectories are run together.
        differ: Whether workers have agents or environments of their own.

    Raises:
        UsageError: It is in the middle of a block.
    """
    if block == 1:
        return
    if differ and first:
        raise UsageError(f"first_trajectory must be 0 {_OWN_BLOCKS}")
    if first % block:
        raise UsageError(
            f"first_trajectory must be a multiple of {block}, got {first}: workers run blocks of so many trajectories "
            "together"
        )
