"""What the sampler knows of one worker, from one start of the worker to its death."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from streamsampler.protocol.messages import Answer
from streamsampler.protocol.states import SamplerSide
from streamsampler.samplers.updates import Kind
from streamsampler.scheduling.hang_watch import Stillness
from streamsampler.workers.board import Progress

__all__ = ["Hang", "Spaces", "WorkerRecord"]

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


@dataclass(frozen=True, slots=True)
class Hang:
    """What a worker was doing when it was killed because it made no progress, for how long, and its Python stacks."""

    seen: Progress
    seconds: float
    stack: str


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """What the sampler knows of one worker. When the worker dies, the record is replaced by a new one.

    Attributes:
        side: The sampler's end of the conversation.
        sent: The serial number of each kind of update that the worker was sent.
        payloads_in_use: Handles of payloads in a message that the worker has not answered yet.
        spaces: Its observation and action space; None before its first report.
        reported_timesteps: The timesteps in its answers.
        has_answered: Whether its memory was looked at after an answer.
        stillness: For how long its row of the status board has not changed.
        hang: Why it was killed, if it made no progress.
        deadline: When it is killed if it is retiring, in seconds of the supervisor's clock.
        is_checking: Whether it was sent a `CheckOrder` and has not answered it.
        files: Where wrappers of its environments write files.
    """

    side: SamplerSide
    sent: dict[Kind, int] = field(default_factory=dict)
    payloads_in_use: tuple[Any, ...] = ()
    spaces: Spaces | None = None
    reported_timesteps: int = 0
    has_answered: bool = False
    stillness: Stillness = field(default_factory=Stillness)
    hang: Hang | None = None
    deadline: float = math.inf
    is_checking: bool = False
    files: tuple[str, ...] = ()

    @property
    def worker(self) -> int:
        """The worker number."""
        return self.side.worker

    def record_answer(self, answer: Answer) -> bool:
        """Remove the ticket that was answered; return whether it is of the current version.

        Raises:
            ProtocolError: The worker has no such ticket, or answered it before.
        """
        is_current = self.side.record_answer(answer)
        self.payloads_in_use = ()
        self.reported_timesteps += answer.ran_timesteps
        return is_current
