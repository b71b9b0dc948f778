"""Carry what a sampler asks of environments in other processes, besides steps and resets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamsampler.engines.linked import STUCK_SECONDS
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.links import EnvLink
from streamsampler.stepping.processes import ProcessTransport
from streamsampler.stepping.setbacks import Setbacks
from streamsampler.stepping.wire import pickle_frame, request_frame

__all__ = ["RolloutTransport"]


class RolloutTransport(ProcessTransport):
    """Carries requests to processes whose environments are replaced and closed while the processes stay.

    Args:
        args: Those of `ProcessTransport`.
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
        if not self._pending:
            self._pool.nap(seconds)

    def renew(self, updates: Mapping[int, Any]) -> None:
        """Let workers that are started from now on make their environments of other updates.

        All workers have read what they were started with: those that were asked for something have answered.
        """
        self._pool.files.set_up(self._setup(updates))

    def give(self, gifts: Mapping[int, Any], kind: str) -> None:
        """Give environments something, before their next step; see `Stepper.take`."""
        for number, ids in self._by_worker(list(gifts)):
            self._link(number).write(pickle_frame((kind, {env_id: gifts[env_id] for env_id in ids})))

    def close_environments(self, close_timeout: float) -> list[BaseException]:
        """Let all workers close their environments, and go on; kill those that do not in time.

        Open requests are carried out before, and their results are thrown away. A worker that is still at one of them
        after a second is killed, too.

        Args:
            close_timeout: Seconds that all of them together may take.

        Returns:
            What environments raised.
        """
        running = [link for link in self._pool if not link.ended]
        for link in running:
            ids = self._envs_of[link.number][:1]
            self._ask(link.number, ids, request_frame(ids, "close", "close", [None]))
        begin_within = min(close_timeout, STUCK_SECONDS)
        self._await_closed(running, begin_within)
        for link in running:
            if link.answer is None and self._pool.board.progress(link.number).phase is not Phase.CLOSE:
                self._pool.give_up(link)
        self._await_closed(running, close_timeout - begin_within)
        raised: list[BaseException] = []
        for link in running:
            if link.answer is None:
                self._pool.give_up(link)
                link.is_told = True  # nothing is lost with it
            elif link.answer[0] == "raised":
                raised.append(self._raised(link.number, self._envs_of[link.number][0], "close", *link.answer[2:]))
            link.waiting.clear()
        self._tell(self._pending)
        self._pending = []
        return raised

    def _await_closed(self, links: Sequence[EnvLink], seconds: float) -> None:
        self._await(lambda: not any(link.asked for link in links), seconds)
