"""A worker's end of what connects it to its sampler, whatever carries the messages. Needs nothing but Python."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

from streamsampler.protocol.messages import Answer, Message, Start
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.threads import ThreadLimit

__all__ = ["WorkerChannel"]


class WorkerChannel(ABC):
    """A worker's connection to a sampler in another process; see `streamsampler.workers.loop.Channel`.

    Args:
        keeper: Keeps log records until they are sent.
        threads: How many threads libraries compute on.
    """

    interruptible = False

    def __init__(self, keeper: RecordKeeper, threads: ThreadLimit) -> None:
        self._keeper, self._threads = keeper, threads
        self._pid = os.getpid()

    # ------------------------------------------------------------------ to be written

    @abstractmethod
    def _next(self, *, wait: bool) -> Message | None:
        """Return the next message, as `receive` does."""

    @abstractmethod
    def _loaded(self, payload: Any) -> Any:
        """Return the object of a payload."""

    @abstractmethod
    def _pickled(self, rollouts: Any, spaces: Any) -> Any:
        """Pickle what was recorded. An exception reaches the sampler: this is before anything is sent."""

    @abstractmethod
    def _send(self, records: bytes, answer: Answer | None, pickled: Any) -> None:
        """Send log records, an answer or None, and what `_pickled` returned or None, without ever waiting."""

    def _end_copy(self) -> None:
        """End this process, a forked copy of the worker: two would read messages and answer them."""
        os._exit(1)

    # ------------------------------------------------------------------ what the loop calls

    def receive(self, *, wait: bool) -> Message | None:
        """Return the next message; `Exit` when the sampler is gone."""
        if os.getpid() != self._pid:
            self._end_copy()
        self._threads.hold()
        message = self._next(wait=wait)
        if isinstance(message, Start):
            if message.levels is not None:
                self._keeper.set_levels(self.load(message.levels))
            else:
                self._keeper.apply()
        return message

    def load(self, payload: Any) -> Any:
        """Return the object of a payload."""
        loaded = self._loaded(payload)
        self._keeper.apply()  # modules that were imported just now may have set levels of their own
        self._threads.hold()  # torch may be among them
        return loaded

    def answer(self, answer: Answer, contents: Any = None) -> None:
        """Send an answer, with the log records that were made since the last one."""
        if os.getpid() != self._pid:
            self._end_copy()
        if contents is not None:  # a failure has its exception pickled, and as text
            contents = None if isinstance(contents, BaseException) else self._pickled(*contents)
        self._send(self._keeper.take(), answer, contents)

    def send_records(self) -> None:
        """Send the log records that were made since the last answer."""
        if records := self._keeper.take():
            self._send(records, None, None)
