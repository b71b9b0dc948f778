"""Worker processes with environments, connected by queues of `multiprocessing`: the engine `queues`.

Messages carry the rows' contents: so no named memory can survive a killed process, and no size must be known at the
start. Imports nothing that only POSIX has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamsampler.core.serialization import Payload
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.queue_link import QueueProcessLink
from streamsampler.engines.queued_workers import QueuedWorkers
from streamsampler.stepping.frames import split
from streamsampler.stepping.links import EnvLink, EnvPool, WorkerMessage, setup_of
from streamsampler.stepping.queue_worker import main
from streamsampler.stepping.rows import EnvSpaces, Rows


class QueueEnvLink(QueueProcessLink, EnvLink):
    """A worker's pair of queues."""

    n_moved = 0  # bytes received from it

    def _send(self, data: bytes) -> None:
        self._put(data)


class QueueEnvPool(QueuedWorkers[QueueEnvLink], EnvPool[QueueEnvLink]):
    """Workers connected by queues; see `NewPool`."""

    def __init__(
        self, given: Payload, n_workers: int, threads: int | None, close_timeout: float, *, start_method: StartMethod
    ) -> None:
        super().__init__(n_workers, close_timeout)
        self._of_setup: dict[str, Any] = {"threads": threads, "is_forked": start_method == "fork"}
        self._start(start_method, main, setup_of(given, **self._of_setup))

    def _new_link(self, number: int) -> QueueEnvLink:
        return QueueEnvLink(self._how, number)

    def set_up(self, given: Payload) -> None:
        self._how = replace(self._how, setup=setup_of(given, **self._of_setup))

    def new_rows(self, spaces: EnvSpaces) -> Rows:
        return Rows(spaces, np.zeros, is_shared=False)

    def sleep(self, timeout: float | None, awaited: QueueEnvLink | None = None) -> bool:  # noqa: ARG002 - all end it
        return self._sleep(self._within(timeout))

    def read(self, ready: bool) -> list[Any]:
        return self._with_abandoned(self._read() if ready else [])

    def nap(self, seconds: float) -> None:
        if not self._unstarted:
            self._sleep(seconds)

    def _heard(self, link: QueueEnvLink, item: Any) -> list[Any]:
        try:
            link.n_moved += len(item)
            return [WorkerMessage(link.number, *split(item))]
        except Exception as error:
            return self._untrusted(link, error)
