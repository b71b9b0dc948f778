"""The engine of Python's own `multiprocessing`: a process and a pair of queues for each worker.

::

                    board: oldest version wanted ─▶      ◀─ progress of each worker
              ┌─────────┐                                                   ┌──────────┐
              │         │─── commands: Start, Continue, Stop, Exit ────────▶│          │
              │ sampler │                                                   │ worker w │
              │         │◀── answers: rollouts of a ticket ─────────────────│          │
              └─────────┘                                                   └──────────┘

The queues are bounded, and tickets guarantee room in them, so neither side waits for it. Workers share no queue: a
killed worker would keep its lock, and everybody would wait. Slower than `processes` with large observations, which are
copied several times.
"""

from __future__ import annotations

import pickle
from typing import Any

from streamsampler.core.serialization import Payload
from streamsampler.engines.base import Event
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.linked import EngineLink, LinkedEngine
from streamsampler.engines.process_setup import ProcessSetup
from streamsampler.engines.queue_link import QueueProcessLink
from streamsampler.engines.queue_worker import main
from streamsampler.engines.queued_workers import QueuedWorkers
from streamsampler.protocol.messages import Message
from streamsampler.protocol.states import CAPACITY

_MOST_COMMANDS = CAPACITY + 3  # tickets, two Stop and an Exit; see `protocol.states`
_MOST_ANSWERS = CAPACITY + 2  # to tickets, a failure to close the environment, and the last log records


class QueueLink(QueueProcessLink, EngineLink):
    """The sampler's ends of a worker's queues, and its process."""

    def send(self, message: Message) -> None:
        self._put(pickle.dumps(message, protocol=5))


class QueueEngine(QueuedWorkers[QueueLink], LinkedEngine[QueueLink]):
    """Runs workers in processes of `multiprocessing`.

    Raises:
        ResourceLimitError: The system does not allow this process the descriptors (an OSError).
        OSError: No process can be started; those started before have ended.
        SamplerError: `multiprocessing` cannot start processes here; see `check_startable`.
    """

    def __init__(
        self,
        n_workers: int,
        make_worker: Payload,
        seed: int,
        *,
        start_method: StartMethod,
        close_timeout: float,
        threads: int | None = None,
    ) -> None:
        super().__init__(n_workers, close_timeout)
        setup = ProcessSetup.of_this_process(make_worker, seed, threads, is_forked=start_method == "fork")
        bounds = {"most_commands": _MOST_COMMANDS, "most_answers": _MOST_ANSWERS}
        self._start(start_method, main, (setup,), **bounds)

    def _new_link(self, number: int) -> QueueLink:
        return QueueLink(self._how, number)

    def _heard(self, link: QueueLink, item: Any) -> list[Event]:
        try:
            records, pickled, contents, arrays = item
            answer = pickle.loads(pickled)
        except Exception as error:
            return self._untrusted(link, error)
        return self._answers.events(link, records, answer, contents, [(array, 0) for array in arrays])
