"""The engine that needs nothing but Python's own `multiprocessing`: a process and a pair of queues for each worker.

::

                    board: oldest version wanted ─▶      ◀─ progress of each worker
              ┌─────────┐                                                   ┌──────────┐
              │         │─── commands: Start, Continue, Stop, Exit ────────▶│          │
              │ sampler │                                                   │ worker w │
              │         │◀── answers: one a ticket, with what was recorded ─│          │
              └─────────┘                                                   └──────────┘

The textbook form, for every system that Python runs on. The queues are bounded, and tickets guarantee the room in them:
neither side ever waits for it. No queue is shared by workers: a killed worker would keep its lock, and everybody would
wait. A worker that is started in the place of a dead one gets new queues.

Slower than `processes` where observations are large: they are copied several times on their way.
"""

from __future__ import annotations

import pickle
from typing import Any

from streamsampler.core.serialization import Payload
from streamsampler.engines.base import Event
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.linked import EngineLink, LinkedEngine
from streamsampler.engines.queue_process import QueuedWorkers, QueueProcess
from streamsampler.engines.queue_worker import main
from streamsampler.engines.worker_side import ProcessSetup
from streamsampler.protocol.messages import Message
from streamsampler.protocol.states import CAPACITY

_MOST_COMMANDS = CAPACITY + 3  # tickets, two Stop and an Exit; see `protocol.states`
_MOST_ANSWERS = CAPACITY + 2  # to tickets, a failure to close the environment, and the last log records


class QueueLink(QueueProcess, EngineLink):
    """The sampler's ends of what it shares with one worker: a pair of bounded queues, and its process."""

    def send(self, message: Message) -> None:
        """Send a message."""
        self._put(pickle.dumps(message, protocol=5))


class QueueEngine(QueuedWorkers[QueueLink], LinkedEngine[QueueLink]):
    """Workers in processes of `multiprocessing`.

    Args:
        n_workers: How many workers there are.
        make_worker: A pickled callable that makes a worker from its context.
        seed: The sampler's seed.
        start_method: How processes are started.
        close_timeout: Seconds that all workers together may take to close their environments at the end.
        threads: How many threads libraries compute on in workers; None for no limit.

    Raises:
        ResourceLimitError: The system does not allow this process the descriptors (an OSError).
        OSError: No process can be started; those that were started have ended.
        SamplerError: Processes of `multiprocessing` cannot be started here; see `check_startable`.
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
