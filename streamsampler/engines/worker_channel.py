"""Connect a worker process to its sampler. Imports nothing that only POSIX has."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from typing import Any

from streamsampler.core.by_position import BY_NAME
from streamsampler.core.serialization import Contents, dumps_report
from streamsampler.core.settings import SettingsInForce
from streamsampler.protocol.messages import Answer, Message, Start
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.threads import ThreadLimit


class WorkerChannel(ABC):
    """A worker's connection to a sampler in another process; see `streamsampler.workers.loop.Channel`."""

    interruptible = False
    descriptor: int | None = None

    def __init__(self, keeper: RecordKeeper, threads: ThreadLimit, settings: SettingsInForce) -> None:
        self._keeper, self._threads, self._settings = keeper, threads, settings
        self._pid = os.getpid()

    @abstractmethod
    def _next(self, *, wait: bool) -> Message | None:
        """Return the next message, like `receive`."""

    @abstractmethod
    def _loaded(self, payload: Any) -> Any:
        """Return the object of a payload."""

    @abstractmethod
    def _part(self, buffer: Any) -> Any:
        """Return an array's memory as it is sent; the recorder overwrites the original for the next ticket."""

    @abstractmethod
    def _send(self, records: bytes, answer: Answer | None, contents: Contents | None, parts: list[Any]) -> None:
        """Send log records, an answer or None, and its contents with their arrays' `_part`, without ever waiting."""

    def _end_copy(self) -> None:
        """End this process, a forked copy of the worker: both would read messages and answer them."""
        os._exit(1)

    def receive(self, *, wait: bool) -> Message | None:
        """Return the next message; `Exit` when the sampler is gone."""
        if os.getpid() != self._pid:
            self._end_copy()
        self._threads.hold()
        message = self._next(wait=wait)
        if isinstance(message, Start):
            if message.settings is not None:
                settings, levels = self.load(message.settings)
                self._settings.apply(settings)
                self._keeper.set_levels(levels)
            else:
                self._keeper.apply()
        return message

    def load(self, payload: Any) -> Any:
        n_modules = len(sys.modules)
        loaded = self._loaded(payload)
        # Newly imported modules may have set levels and settings of their own; torch may be among them.
        self._keeper.apply()
        self._settings.loaded(n_modules)
        self._threads.hold()
        return loaded

    def answer(self, answer: Answer, contents: Any = None) -> None:
        """Send an answer, with the log records since the last."""
        if os.getpid() != self._pid:
            self._end_copy()
        pickled, parts = None, []
        if contents is not None and not isinstance(contents, BaseException):  # a failure has it pickled, and as text
            # An exception here reaches the sampler: nothing has been sent yet.
            rollouts, spaces = contents
            pickled, buffers = dumps_report(rollouts, spaces, BY_NAME)
            parts = [self._part(buffer) for buffer in buffers]
        self._send(self._keeper.take(), answer, pickled, parts)

    def flush(self) -> None:  # noqa: B027 - where `_send` has written all when it returns
        """Wait until all answers have left this process."""

    def send_records(self) -> None:
        """Send the log records since the last answer."""
        if records := self._keeper.take():
            self._send(records, None, None, [])
