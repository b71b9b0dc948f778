"""Hold the scheduler's knowledge of a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamsampler.protocol.faults import Hang
from streamsampler.protocol.hangs import Stillness
from streamsampler.protocol.states import SamplerSide


@dataclass(slots=True, eq=False)
class KnownWorker:
    """The scheduler's view of a worker; replaced when the worker dies."""

    worker: int = field(init=False)
    side: SamplerSide
    stillness: Stillness = field(default_factory=Stillness)  # how long its row of the progress board is unchanged
    hang: Hang | None = None  # why it was killed, for lack of progress
    is_ready: bool = False  # whether it has run a ticket
    is_checking: bool = False  # whether its next answer follows a run-twice check
    has_answered: bool = False  # whether its memory was checked after an answer
    is_too_large: bool = False  # whether its memory is why it is replaced
    can_launch: bool = True  # of an absent worker: whether a new worker can be started
    files: tuple[str, ...] = ()  # files written by its environments' wrappers

    def __post_init__(self) -> None:
        self.worker = self.side.worker
