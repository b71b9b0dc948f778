"""Define the worker's end of its connection to the sampler, as the worker loop uses it."""

from __future__ import annotations

from typing import Any, Protocol

from streamsampler.protocol.messages import Answer, Message


class Channel(Protocol):
    """Connects a worker to its sampler.

    Attributes:
        interruptible: Whether the worker runs in the user's thread, so interrupts pass through; see `is_interrupt`.

    Optional: `descriptor`, see `Worker.descriptor`; and a method `flush`, which waits until all answers have left the
    process. It is called before closing an environment of one of several tasks, since closing may end the process.
    """

    interruptible: bool

    def receive(self, *, wait: bool) -> Message | None:
        """Return the next message, an `Exit` if the sampler has ended; None if none has arrived and `wait` is false."""

    def load(self, payload: Any) -> Any:
        """Return the object of a message's payload."""

    def answer(self, answer: Answer, contents: Any = None) -> None:
        """Send an answer without waiting for the sampler.

        Args:
            answer: The answer.
            contents: With a report its rollouts, and the spaces if they are new; with a failure the exception, for
                channels inside the process.

        Raises:
            SerializationError: The contents cannot be pickled. Nothing was sent.
        """
