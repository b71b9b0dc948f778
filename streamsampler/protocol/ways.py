"""How workers run trajectories, as far as they have told: one after another, in blocks, in lanes. Pure.

A ticket of a worker whose way is not known yet is cut so that any way can run it; its answer tells. With another agent
or environment a worker may run trajectories in another way, so that what is known holds for one structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.messages import Failure, Report
from streamsampler.protocol.plans import Layout

Structure: TypeAlias = tuple[int, ...]
"""Names the agent and the environment of a queue's workers."""


class Ways:
    """The ways of the workers of each queue of indices."""

    def __init__(self) -> None:
        self.structures: Sequence[Structure] = ((),)  # of each queue: one for all workers, or one for each
        self.known: dict[int, tuple[Literal["lanes", "blocks", "longer blocks"], Structure]] = {}

    def tell(self, gathering: Gathering, structures: Sequence[Structure]) -> None:
        """Tell a new gathering what is known of workers with these structures."""
        for queue, structure in enumerate(structures):
            way, known = self.known.get(queue, (None, None))
            if known == structure and way == "lanes":
                gathering.run_lanes(queue)
            elif known == structure and way is not None:
                gathering.run_blocks(queue, longer=way == "longer blocks")

    def record(self, gathering: Gathering, layout: Layout, worker: int, answer: Report | Failure) -> bool:
        """Record how a worker ran a ticket; return whether the ticket was right for that: none cuts a block."""
        ticket, queue = answer.ticket, worker % len(self.structures)
        assert ticket is not None
        if answer.runs_lanes:
            if ticket.block > 1 or not gathering.is_certain(worker):
                self.known[queue] = "lanes", self.structures[queue]
                gathering.run_lanes(worker)
            return True
        longer = answer.runs_longer_blocks
        if layout.lengthens and (longer or isinstance(answer, Report)):
            self.known[queue] = "longer blocks" if longer else "blocks", self.structures[queue]
            gathering.run_blocks(worker, longer=longer)
        return ticket.block == max(layout.block, gathering.block_of(worker, ticket.indices))
