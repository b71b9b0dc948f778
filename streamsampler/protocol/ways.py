"""Learn from answers how workers run trajectories: sequentially, in blocks, or in lanes. Pure.

Until a worker's way is known, its tickets suit any way. Another agent or environment may change it, so it is known by
structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.messages import Failure, Report
from streamsampler.protocol.plans import Layout

Structure: TypeAlias = tuple[int, ...]
"""Identifies the agent and environment of a queue's workers."""


class Ways:
    """The known ways, by queue or task."""

    def __init__(self) -> None:
        self.structures: Sequence[Structure] = ((),)  # of each queue: for all workers, or each
        self.known: dict[int, tuple[Literal["lanes", "blocks", "longer blocks"], Structure]] = {}

    def tell(self, gathering: Gathering, structures: Sequence[Structure]) -> None:
        """Apply the known ways of these structures to a new gathering."""
        sections = gathering.plan.sections
        queues: Iterable[tuple[int, Structure]] = enumerate(structures)
        if sections:
            queues = [(it.task.number, ()) for it in sections]
        for queue, (key, structure) in enumerate(queues):
            way, known = self.known.get(key, (None, None))
            if known == structure and way == "lanes":
                gathering.run_lanes(queue)
            elif known == structure and way is not None:
                gathering.run_blocks(queue, longer=way == "longer blocks")

    def record(self, gathering: Gathering, layout: Layout, worker: int, answer: Report | Failure) -> bool:
        """Record how a worker ran a ticket; return False if the ticket splits a block."""
        ticket, sections = answer.ticket, gathering.plan.sections
        assert ticket is not None
        queue = key = worker % len(self.structures)
        structure = self.structures[queue]
        if sections:
            queue = sections.number_of(ticket.indices[0])
            key, structure = sections[queue].task.number, ()
        if answer.runs_lanes:
            if ticket.block > 1 or not gathering.is_certain(queue):
                self.known[key] = "lanes", structure
                gathering.run_lanes(queue)
            return True
        longer = answer.runs_longer_blocks
        if layout.lengthens and (longer or isinstance(answer, Report)):
            self.known[key] = "longer blocks" if longer else "blocks", structure
            gathering.run_blocks(queue, longer=longer)
        return ticket.block == max(layout.block, gathering.block_of(queue, ticket.indices))
