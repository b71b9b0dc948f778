"""Say which trajectories of a ticket are left out, and why."""

from __future__ import annotations

from collections.abc import Sequence

from streamsampler.errors import DataError
from streamsampler.protocol.messages import Dropped, Phase, Ticket
from streamsampler.workers.explain import summary_of

__all__ = ["left_out_by", "raises_all"]


def raises_all(kinds: tuple[str, ...]) -> bool:  # noqa: ARG001 - it is a `WorkerContext.drop_unless`
    """Return true: what user code raises is raised, and only `drop_if` leaves out trajectories."""
    return True


def left_out_by(
    error: BaseException, phase: Phase, ticket: Ticket, failed: int, kept: Sequence[int]
) -> dict[int, Dropped]:
    """Return the trajectories to leave out because of an error, by their indices.

    Args:
        error: The exception.
        phase: What the worker was doing.
        ticket: The ticket in hand.
        failed: The trajectory that the error is about.
        kept: The indices that the positions in the error's `others` count.
    """
    others = {kept[position]: summary for position, summary in (error.others if isinstance(error, DataError) else ())}
    return {
        index: Dropped(ticket.indices.index(index), str(phase), summary)
        for index, summary in {failed: summary_of(error), **others}.items()
    }
