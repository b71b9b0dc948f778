"""The trajectories of a stream: each is what it would be if it had come alone.

They come in chunks, by chance. To assemble a chunk and to split it is two to three times as fast as to assemble each of
its trajectories; but what the columns of infos become is decided over all that is assembled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.info_columns import are_uniform
from streamsampler.errors import DataError
from streamsampler.samplers.call import Call
from streamsampler.samplers.session import Delivery
from streamsampler.scheduling.gathering import Run

__all__ = ["apart", "slice_of"]


def apart(call: Call, runs: Sequence[Run[Delivery]]) -> Iterable[TrajectoryBatch[Any, Any]]:
    """Return the trajectories of `runs`, in memory of their own; those that were left out are passed by.

    Args:
        call: The call that they belong to.
        runs: What came in.
    """
    if _are_uniform(runs):
        try:
            return call.batch(list(runs))
        except DataError:
            pass  # two of them do not go together in a batch, which they need not
    return [
        call.batch([slice_of(run, position, position + 1)])
        for run in runs
        for position, length in enumerate(run.lengths)
        if length
    ]


def _are_uniform(runs: Sequence[Run[Delivery]]) -> bool:
    parts = [run.part.rollouts for run in runs if run.part.rollouts is not None]
    return all(
        are_uniform(getattr(part, name) for part in parts) for name in ("env_infos", "agent_infos", "episode_infos")
    )


def slice_of(run: Run[Delivery], start: int, stop: int) -> Run[Delivery]:
    """Return the trajectories of a run from position `start` to `stop`."""
    return Run(run.part, run.indices[start:stop], run.start + start, run.start + stop, run.lengths[start:stop])
