"""A worker process of the engine `queues`, from its queues to the worker loop. Imports nothing that only POSIX has."""

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
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import Queue
from typing import Any

from streamsampler.core.serialization import Contents, Payload, loads
from streamsampler.core.settings import SettingsInForce
from streamsampler.engines.launch.child import ignore_terminal, kill_at_end_of, own_group, run_as_child
from streamsampler.engines.launch.exit_handlers import forget_foreign_handlers, run_exit_handlers, run_finalizers
from streamsampler.engines.worker_side import ProcessSetup, WorkerChannel
from streamsampler.protocol.messages import Answer, Exit, Message, Phase
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.loop import run_worker
from streamsampler.workers.threads import ThreadLimit

_RANDOM_HASHES = (
    "workers have a random hash seed, so what depends on the order of sets of strings is another one in each run: "
    "this program has used multiprocessing's fork server before, or was started with -E or -I. Set PYTHONHASHSEED=0 "
    'before it starts, or use engine="processes"'
)

_MOST_STACK_BYTES = 1 << 14  # what a connection writes in one piece


@dataclass(frozen=True)
class WorkerEnds:
    """A worker's ends of what it shares with its sampler.

    Attributes:
        commands: Pickled messages, which the worker reads.
        answers: What the worker writes: its log records, the pickled answer, the pickled contents and their arrays.
        alive: Nothing is ever written there: the worker ends when the sampler's end closes.
        stacks: Anything that is written there is answered with the worker's Python stacks.
    """

    commands: Queue[bytes]
    answers: Queue[Any]
    alive: Connection[Any, Any]
    stacks: Connection[Any, Any]

    def close_foreign(self) -> None:
        """Close the sampler's ends of the queues: while they are open here, the sampler's end is not noticed."""
        self.commands._writer.close()  # type: ignore[attr-defined]
        self.answers._reader.close()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the worker's ends."""
        for end in (self.commands._reader, self.answers._writer, self.alive, self.stacks):  # type: ignore[attr-defined]
            end.close()


class QueueChannel(WorkerChannel):
    """A worker's connection to a sampler in another process.

    Args:
        ends: The worker's queues.
        keeper: Keeps log records until they are sent.
        threads: How many threads libraries compute on.
        settings: The settings of the sampler's process that this one has.
    """

    def __init__(self, ends: WorkerEnds, keeper: RecordKeeper, threads: ThreadLimit, settings: SettingsInForce) -> None:
        super().__init__(keeper, threads, settings)
        self._commands, self._answers = ends.commands, ends.answers

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
        # Never full: the sampler leaves room for the answers to all tickets that it sent. And all of it is pickled:
        # what cannot be is dropped there, in a thread, without an exception.
        self._answers.put_nowait((records, pickle.dumps(answer, protocol=5), contents, parts))


def main(number: int, ends: WorkerEnds, setup: ProcessSetup, board: Any, *, forked: bool) -> None:
    """Run worker `number` until it is to exit, and end this process.

    Args:
        number: The worker number.
        ends: The worker's queues.
        setup: What all workers of the sampler are given.
        board: The status board, as an array that all workers share.
        forked: Whether this process is a copy of another one.
    """
    forget_foreign_handlers(forked=forked)
    run_as_child(lambda: _run(number, ends, setup, board))


def _run(number: int, ends: WorkerEnds, setup: ProcessSetup, board: Any) -> None:
    ignore_terminal()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork would inherit a handler of the user's program
    own_group()
    # By the kernel, where it can: a thread does not run while native code holds the interpreter's lock.
    kill_at_end_of(ends.alive.fileno(), -os.getpid())
    ends.close_foreign()
    if hasattr(os, "register_at_fork"):
        # A copy of this process that held the ends open would keep the sampler from noticing this one's death.
        os.register_at_fork(after_in_child=ends.close)
    threading.Thread(target=_listen, args=(ends,), name="streamsampler-listener", daemon=True).start()
    keeper = RecordKeeper(number)
    keeper.install()
    threads, settings = setup.apply()
    if number == 0 and setup.hash_seed == "0" and sys.flags.hash_randomization:
        logging.getLogger("streamsampler").warning(_RANDOM_HASHES)
    row = StatusBoard(memoryview(board)).row(number)
    channel = QueueChannel(ends, keeper, threads, settings)
    run_worker(channel, setup.worker, WorkerContext(row, number, setup.seed))
    row.set_phase(Phase.CLOSE)  # the sampler waits longer in this phase
    run_exit_handlers(number)
    channel.send_records()
    # Until the last answer is in the pipe; if the sampler does not read it, it kills this process.
    ends.answers.close()
    ends.answers.join_thread()
    run_finalizers()


def _listen(ends: WorkerEnds) -> None:
    """Answer with stacks until the sampler's process is gone, then end this one and its group; in a thread."""
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
