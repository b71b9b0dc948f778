"""The worker's end of what connects it to its sampler, as the worker's loop needs it."""

from __future__ import annotations

from typing import Any, Protocol

from streamsampler.protocol.messages import Answer, Message


class Channel(Protocol):
    """How a worker is connected to its sampler.

    Attributes:
        interruptible: Whether the worker's thread is the user's, so that what interrupts it passes; see `is_interrupt`.

    One may also have a `descriptor`, of a file that can be read when a message may have come: see `Worker.descriptor`.
    And a method `flush`, which waits until all answers have left the process: it is called before the environment of
    one of several tasks is closed, which may end the process.
    """

    interruptible: bool

    def receive(self, *, wait: bool) -> Message | None:
        """Return the next message; None if there is none, and `wait` is false.

        When the sampler is gone, that is an `Exit`.
        """

    def load(self, payload: Any) -> Any:
        """Return the object that a message's payload stands for."""

    def answer(self, answer: Answer, contents: Any = None) -> None:
        """Send an answer, without ever waiting for the sampler.

        Args:
            answer: The answer.
            contents: With a report its rollouts, and the spaces where they are new; with a failure the exception,
                for channels that do not leave the process.

        Raises:
            SerializationError: The contents cannot be pickled. Nothing was sent.
        """
