"""Run a worker process of `multiprocessing`, from its queues to its main loop. Imports nothing that only POSIX has."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import Queue, SimpleQueue
from typing import Any, Protocol, cast

from streamsampler.core.serialization import Contents, Payload, loads
from streamsampler.core.settings import SettingsInForce
from streamsampler.engines.launch.child import ignore_terminal, kill_at_end_of, own_group, run_as_child
from streamsampler.engines.launch.exit_handlers import forget_foreign_handlers, run_finalizers
from streamsampler.engines.process_setup import ProcessSetup, StartedProcess
from streamsampler.engines.worker_channel import WorkerChannel
from streamsampler.protocol.messages import Answer, Exit, Message
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.loop import run_worker
from streamsampler.workers.threads import ThreadLimit

_RANDOM_HASHES = (
    "workers have a random hash seed, so the order of sets of strings differs from run to run: this program has used "
    "multiprocessing's fork server before, or was started with -E or -I. Set PYTHONHASHSEED=0 before it starts, or use "
    'engine="processes"'
)

_MOST_STACK_BYTES = 1 << 14  # most bytes a connection writes at once


@dataclass(frozen=True)
class WorkerEnds:
    """A worker's ends of its queues and pipes."""

    commands: Queue[bytes]  # pickled messages to the worker
    answers: Queue[Any] | SimpleQueue[Any]  # log records, pickled answers, pickled contents and their arrays
    alive: Connection[Any, Any]  # without data: the worker ends when the sampler's end closes
    stacks: Connection[Any, Any]  # any data here is answered with the worker's Python stacks

    def close_foreign(self) -> None:
        """Close the sampler's ends of the queues: open here, they would hide the sampler's end."""
        self.commands._writer.close()  # type: ignore[attr-defined]
        self.answers._reader.close()  # type: ignore[union-attr]

    def flush(self) -> None:
        """Wait until the last answer is in the pipe; a sampler that does not read it kills this process."""
        if isinstance(self.answers, Queue):  # other queues write at once
            self.answers.close()
            self.answers.join_thread()

    def close(self) -> None:
        for end in (self.commands._reader, self.answers._writer, self.alive, self.stacks):  # type: ignore[attr-defined, union-attr]
            end.close()


class _Pickled:
    """Sets an event when a queue's thread pickles it, after writing all earlier answers."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        self.event.set()
        return int, ()


class QueueChannel(WorkerChannel):
    """A worker's connection to a sampler in another process, through queues."""

    def __init__(self, ends: WorkerEnds, keeper: RecordKeeper, threads: ThreadLimit, settings: SettingsInForce) -> None:
        super().__init__(keeper, threads, settings)
        self._commands, self._answers = ends.commands, cast("Queue[Any]", ends.answers)
        self.descriptor = ends.commands._reader.fileno()  # type: ignore[attr-defined]

    def _next(self, *, wait: bool) -> Message | None:
        try:
            message: Message = pickle.loads(self._commands.get(wait))
        except queue.Empty:
            return None
        except (EOFError, OSError):
            return Exit()
        return message

    def _loaded(self, payload: Payload) -> Any:
        return loads(payload)

    def _part(self, buffer: Any) -> bytes:
        return bytes(buffer)

    def _send(self, records: bytes, answer: Answer | None, contents: Contents | None, parts: list[Any]) -> None:
        # Never full: the sampler leaves room for the answers to all its tickets. All of it is bytes: an object that
        # cannot be pickled would be discarded in a thread, without an exception.
        self._answers.put_nowait((records, pickle.dumps(answer, protocol=5), contents, parts))

    def flush(self) -> None:
        """Wait until all answers are in the pipe, which the sampler reads all the time."""
        last = _Pickled()
        self._answers.put((b"", pickle.dumps(None), None, [last]))
        last.event.wait()


def main(number: int, ends: WorkerEnds, setup: Any, board: Any, *, forked: bool) -> None:
    """Run worker `number` of a sampler until `Exit`, and end this process; see `run_process`."""
    run_process(_work, number, ends, setup, board, forked=forked)


def _work(process: StartedQueueProcess) -> WorkerChannel:
    setup: ProcessSetup
    (setup,) = process.setup
    channel = QueueChannel(process.ends, process.keeper, process.threads, process.settings)
    run_worker(channel, setup.worker, WorkerContext(process.row, process.number, setup.seed))
    return channel


@dataclass(frozen=True)
class StartedQueueProcess(StartedProcess):
    """A started worker process with queues."""

    ends: WorkerEnds


class SendsRecords(Protocol):
    """Sends a worker's last log records."""

    def send_records(self) -> None:
        """Send the log records since the last answer."""


def run_process(
    work: Callable[[StartedQueueProcess], SendsRecords],
    number: int,
    ends: WorkerEnds,
    setup: Any,
    board: Any,
    *,
    forked: bool,
) -> None:
    """Give this new process the settings of its starter, let it `work` until `Exit`, and end it."""
    forget_foreign_handlers(forked=forked)
    run_as_child(lambda: _run(work, number, ends, setup, board))


def _run(
    work: Callable[[StartedQueueProcess], SendsRecords], number: int, ends: WorkerEnds, setup: Any, board: Any
) -> None:
    process = _begin(number, ends, setup, board)
    channel = work(process)
    process.end()
    channel.send_records()
    ends.flush()
    run_finalizers()


def _begin(number: int, ends: WorkerEnds, setup: Any, board: Any) -> StartedQueueProcess:
    ignore_terminal()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork would inherit a handler of the user's program
    own_group()
    # By the kernel, if possible: a thread does not run while native code holds the interpreter's lock.
    kill_at_end_of(ends.alive.fileno(), -os.getpid())
    ends.close_foreign()
    if hasattr(os, "register_at_fork"):
        # A copy of this process with open ends would hide this process's death from the sampler.
        os.register_at_fork(after_in_child=ends.close)
    threading.Thread(target=_listen, args=(ends,), name="streamsampler-listener", daemon=True).start()
    keeper = RecordKeeper(number)
    keeper.install()
    of_process: ProcessSetup = setup[0]
    threads, settings = of_process.apply()
    if number == 0 and of_process.hash_seed == "0" and sys.flags.hash_randomization:
        logging.getLogger("streamsampler").warning(_RANDOM_HASHES)
    row = StatusBoard(memoryview(board)).row(number)
    return StartedQueueProcess(number, setup, row, keeper, threads=threads, settings=settings, ends=ends)


def _listen(ends: WorkerEnds) -> None:
    """Answer with stacks until the sampler's process is gone, then end this process and its group; in a thread."""
    with contextlib.suppress(EOFError, OSError):
        while ends.alive not in wait([ends.alive, ends.stacks]):
            ends.stacks.recv_bytes()
            ends.stacks.send_bytes(_stacks())
    with contextlib.suppress(OSError, AttributeError):  # Windows has no groups
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _stacks() -> bytes:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()[-_MOST_STACK_BYTES:]
