"""Run a worker process with environments on its pipes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from streamsampler.engines.launch.exit_handlers import run_finalizers
from streamsampler.engines.processes.worker_main import StartedPipeProcess, begin
from streamsampler.stepping.frames import COPY_FRAME, FrameReader
from streamsampler.stepping.rows import EnvSpaces, Rows, buffer_rows
from streamsampler.stepping.worker_main import EnvChannel, new_worker


def main(number: int, fds: Sequence[int]) -> None:
    """Run a worker until it is to exit; `begin` returns the descriptor of the rows in `others`."""
    begun = begin(number, fds)
    worker = new_worker(begun, PipeEnvChannel(begun))
    worker.run()
    begun.end()
    worker.send_records()
    run_finalizers()


class PipeEnvChannel(EnvChannel):
    """A worker's ends of its pipes, and the rows."""

    def __init__(self, begun: StartedPipeProcess) -> None:
        self._reader = FrameReader(begun.commands_fd)
        self._answers_fd = begun.answers_fd
        (self._rows_fd,) = begun.others

    def read(self) -> list[tuple[int, bytes]] | None:
        return self._reader.read()

    def write(self, frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            view = view[os.write(self._answers_fd, view) :]

    def open_rows(self, spaces: EnvSpaces) -> Rows:
        return Rows(spaces, buffer_rows(mmap.mmap(self._rows_fd, 0)))

    def report_copy(self) -> None:
        self.write(COPY_FRAME)
