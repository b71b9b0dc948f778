"""Cut a part out of the trajectories of a sampler's call, and refuse it where the parts would not be one run's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamsampler.errors import UsageError
from streamsampler.scheduling.parts import Part, checked_part, part_of
from streamsampler.scheduling.plans import Exactly
from streamsampler.workers.resets import Resets

if TYPE_CHECKING:
    from streamsampler.samplers.obtaining import ObtainingSampler

__all__ = ["check_first", "exactly", "part_of_call"]


def exactly(sampler: ObtainingSampler[Any, Any], n_trajectories: int, resets: Resets | None, part: Any) -> Exactly:
    """Return the plan of a call for exactly so many trajectories, or for a part of them; see `part_of_call`."""
    fixed = resets is not None and resets.is_fixed
    if part is None:
        return Exactly(n_trajectories, fixed=fixed)
    return Exactly.of_part(part_of_call(sampler, part, n_trajectories, fixed=fixed), fixed=fixed)


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
