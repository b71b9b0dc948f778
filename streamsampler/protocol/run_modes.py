"""Learn from answers how workers run trajectories: sequentially, in blocks, or in lanes. Pure.

Until a worker's run mode is known, its tickets suit any mode. Another agent or environment may change it, so it is
known by structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.messages import Failure, Report
from streamsampler.protocol.plans import Layout

Structure: TypeAlias = tuple[int, ...]
"""Identifies the agent and environment of a queue's workers."""


class RunModes:
    """The known run modes, by queue or task."""

    def __init__(self) -> None:
        self.structures: Sequence[Structure] = ((),)  # of each queue: for all workers, or each
        self.known: dict[int, tuple[Literal["lanes", "blocks", "longer blocks"], Structure]] = {}

    def apply_to(self, gathering: Gathering, structures: Sequence[Structure]) -> None:
        """Apply the known run modes of these structures to a new gathering."""
        sections = gathering.plan.sections
        queues: Iterable[tuple[int, Structure]] = enumerate(structures)
        if sections:
            queues = [(it.task.number, ()) for it in sections]
        for queue, (key, structure) in enumerate(queues):
            mode, known = self.known.get(key, (None, None))
            if known == structure and mode == "lanes":
                gathering.run_lanes(queue)
            elif known == structure and mode is not None:
                gathering.run_blocks(queue, longer=mode == "longer blocks")

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
