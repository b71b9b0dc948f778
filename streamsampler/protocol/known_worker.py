"""What the scheduler knows of a worker, from one start of the worker to its death."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamsampler.protocol.faults import Hang
from streamsampler.protocol.hangs import Stillness
from streamsampler.protocol.states import SamplerSide


@dataclass(slots=True, eq=False)
class KnownWorker:
    """A worker as the scheduler knows it. When the worker dies, another one takes its place here.

    Attributes:
        worker: The worker number.
        side: The sampler's end of the conversation.
        stillness: For how long its row of the status board has not changed.
        hang: Why it was killed, if it made no progress.
        is_ready: Whether it has run a ticket.
        is_checking: Whether it was told to check its environment, and has not answered the ticket after that.
        has_answered: Whether its memory was looked at after an answer.
        is_too_large: Whether it is replaced because of its memory.
        can_launch: Of an absent worker: whether a new one can be started in its place.
        files: Where wrappers of its environments write files.
    """

    worker: int = field(init=False)
    side: SamplerSide
    stillness: Stillness = field(default_factory=Stillness)
    hang: Hang | None = None
    is_ready: bool = False
    is_checking: bool = False
    has_answered: bool = False
    is_too_large: bool = False
    can_launch: bool = True
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.worker = self.side.worker
