"""Run a worker process with environments on its queues. Imports nothing that only POSIX has."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsampler.engines.queue_worker import StartedQueueProcess, WorkerEnds, run_process
from streamsampler.stepping.frames import split
from streamsampler.stepping.rows import EnvSpaces, Rows
from streamsampler.stepping.worker_main import EnvChannel, EnvWorker, new_worker


def main(number: int, ends: WorkerEnds, setup: Any, board: Any, *, forked: bool) -> None:
    """Run a worker until it is to exit, and end this process."""
    run_process(_work, number, ends, setup, board, forked=forked)


def _work(begun: StartedQueueProcess) -> EnvWorker:
    worker = new_worker(begun, QueueEnvChannel(begun.ends))
    worker.run()
    return worker


class QueueEnvChannel(EnvChannel):
    """A worker's ends of its queues."""

    def __init__(self, ends: WorkerEnds) -> None:
        self._commands, self._answers = ends.commands, ends.answers

    def read(self) -> list[tuple[int, bytes]] | None:
        try:
            return [split(self._commands.get())]
        except (EOFError, OSError):
            return None

    def write(self, frame: bytes) -> None:
        self._answers.put(frame)

    def open_rows(self, spaces: EnvSpaces) -> Rows:
        return Rows(spaces, np.zeros, is_shared=False)

    def report_copy(self) -> None:
        """Do nothing: a forked copy has none of the worker's ends."""
