"""Carry what a sampler asks of environments in other processes, besides steps and resets."""

from __future__ import annotations

import pickle
import select
import time
from collections.abc import Mapping
from typing import Any

from streamsampler.engines.linked import STUCK_SECONDS
from streamsampler.stepping.links import WorkerLink
from streamsampler.stepping.processes import ProcessTransport
from streamsampler.stepping.running import running_env
from streamsampler.stepping.setbacks import Setbacks
from streamsampler.stepping.wire import IDS, pickle_frame, request_frame

__all__ = ["RolloutTransport"]


_SELECTABLE = 1024
"""Descriptors below this can be selected."""


class RolloutTransport(ProcessTransport):
    """Carries requests to processes whose environments are replaced and closed while the processes stay.

    Args:
        args: Those of `WorkerPool`.
        setbacks: What has counted the losses of earlier processes, and goes on to; None where there were none.
    """

    def __init__(self, *args: Any, setbacks: Setbacks | None = None) -> None:
        super().__init__(*args)
        if setbacks is not None:
            self._setbacks = setbacks

    @property
    def setbacks(self) -> Setbacks:
        """What counts the losses."""
        return self._setbacks

    def sleep(self, seconds: float) -> None:
        """Sleep until something can be collected, for at most so many seconds: also for less than a poll can."""
        if not self._pending and (fds := list(self._link_of)) and max(fds) < _SELECTABLE:
            select.select(fds, [], [], seconds)

    def renew(self, updates: Mapping[int, Any]) -> None:
        """Let workers that are started from now on make their environments of other updates.

        All workers have read what they were started with: those that were asked for something have answered.
        """
        self._write_setup(updates)

    def give(self, gifts: Mapping[int, Any], kind: str) -> None:
        """Give environments something, before their next step; see `Stepper.take`."""
        for number, ids in self._by_worker(list(gifts)):
            self._write(self._link(number), pickle_frame((kind, {env_id: gifts[env_id] for env_id in ids})))

    def close_environments(self, close_timeout: float) -> list[BaseException]:
        """Let all workers close their environments, and go on; kill those that do not in time.

        Open requests are carried out before, and their results are thrown away. A worker that is still at one of them
        after a second is killed, too.

        Args:
            close_timeout: Seconds that all of them together may take.

        Returns:
            What environments raised.
        """
        running = [link for link in self._links if link is not None]
        for link in running:
            self._write(link, request_frame(self._envs_of[link.number][:1], "close", "close", [None]))
        now = time.monotonic()
        begun_by, deadline = now + min(close_timeout, STUCK_SECONDS), now + close_timeout
        raised: list[BaseException] = []
        for link in running:
            answer = self._answer_by(link, begun_by)
            if answer is None and running_env(int(self.rows.running[link.number]))[0] is None:
                answer = self._answer_by(link, deadline)
            if answer is None:
                self._lost(link)
            elif answer[0] == "raised":
                raised.append(self._raised(link, self._envs_of[link.number][0], "close", *answer[2:]))
            link.waiting.clear()
        self._pending = []
        return raised

    def _answer_by(self, link: WorkerLink, deadline: float) -> Any:
        """Return a worker's answer to a request; None if there is none in time. What it says before is thrown away."""
        while (message := link.next_message(max(0.0, deadline - time.monotonic()))) is not None:
            kind, data = message
            if kind != IDS and (answer := pickle.loads(data))[0] in ("values", "raised"):
                return answer
            self._event(link, kind, data)
        return None
