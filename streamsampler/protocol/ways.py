"""How workers run trajectories, as far as they have told: one after another, in blocks, in lanes. Pure.

A ticket of a worker whose way is not known yet is cut so that any way can run it; its answer tells. With another agent
or environment a worker may run trajectories in another way, so that what is known holds for one structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.messages import Failure, Report
from streamsampler.protocol.plans import Layout

Structure: TypeAlias = tuple[int, ...]
"""Names the agent and the environment of a queue's workers."""


class Ways:
    """The ways of the workers of each queue of indices, or of each task where workers run several."""

    def __init__(self) -> None:
        self.structures: Sequence[Structure] = ((),)  # of each queue: one for all workers, or one for each
        self.known: dict[int, tuple[Literal["lanes", "blocks", "longer blocks"], Structure]] = {}

    def tell(self, gathering: Gathering, structures: Sequence[Structure]) -> None:
        """Tell a new gathering what is known of workers with these structures; of several tasks, for each section."""
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
        """Record how a worker ran a ticket; return whether the ticket was right for that: none cuts a block."""
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
