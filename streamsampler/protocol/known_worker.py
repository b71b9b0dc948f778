"""What the scheduler knows of a worker, from one start of the worker to its death."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamsampler.protocol.faults import Hang
from streamsampler.protocol.hangs import Stillness
from streamsampler.protocol.states import SamplerSide


@dataclass(slots=True, eq=False)
class KnownWorker:
    """A worker as the scheduler knows it. When the worker dies, another one takes its place here."""

    worker: int = field(init=False)
    side: SamplerSide
    stillness: Stillness = field(default_factory=Stillness)  # for how long its row of the status board has not changed
    hang: Hang | None = None  # why it was killed, if it made no progress
    is_ready: bool = False  # whether it has run a ticket
    is_checking: bool = False  # whether it is to check its environment, and owes the answer to the ticket after that
    has_answered: bool = False  # whether its memory was looked at after an answer
    is_too_large: bool = False  # whether it is replaced because of its memory
    can_launch: bool = True  # of an absent worker: whether a new one can be started in its place
    files: tuple[str, ...] = ()  # where wrappers of its environments write files

    def __post_init__(self) -> None:
        self.worker = self.side.worker
