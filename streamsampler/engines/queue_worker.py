"""A worker process of the engine `queues`, from its queues to the worker loop. Imports nothing that only POSIX has."""

from __future__ import annotations

import contextlib
import faulthandler
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
from multiprocessing.queues import Queue
from typing import Any

from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.protocol.messages import Answer, Exit, Message, Start
from streamsampler.serialization import Payload, dumps_report, loads
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.loop import run_worker
from streamsampler.workers.threads import ThreadLimit

__all__ = ["QueueChannel", "WorkerEnds", "main"]

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


class QueueChannel:
    """A worker's connection to a sampler in another process.

    Args:
        ends: The worker's queues.
        keeper: Keeps log records until they are sent.
        threads: How many threads libraries compute on.
    """

    interruptible = False

    def __init__(self, ends: WorkerEnds, keeper: RecordKeeper, threads: ThreadLimit) -> None:
        self._commands, self._answers = ends.commands, ends.answers
        self._keeper = keeper
        self._threads = threads
        self._pid = os.getpid()

    def receive(self, *, wait: bool) -> Message | None:
        """Return the next message; `Exit` when the sampler is gone."""
        self._end_copies()
        self._threads.hold()
        try:
            pickled = self._commands.get(wait)
        except queue.Empty:
            return None
        except (EOFError, OSError):
            return Exit()
        message: Message = pickle.loads(pickled)
        if isinstance(message, Start):
            if message.levels is not None:
                self._keeper.set_levels(self.load(message.levels))
            else:
                self._keeper.apply()
        return message

    def load(self, payload: Payload) -> Any:
        """Return the object of a payload."""
        loaded = loads(payload)
        self._keeper.apply()  # modules that were imported just now may have set levels of their own
        self._threads.hold()  # torch may be among them
        return loaded

    def _end_copies(self) -> None:
        """End this process if it is a forked copy of the worker: it has no queues."""
        if os.getpid() != self._pid:
            os._exit(1)

    def answer(self, answer: Answer, contents: Any = None) -> None:
        """Send an answer; the contents are pickled here, where an exception can be told of, and not in a thread."""
        self._end_copies()
        pickled, arrays = None, []
        if contents is not None and not isinstance(contents, BaseException):  # a failure has it pickled, and as text
            pickled, buffers = dumps_report(*contents)
            arrays = list(map(bytes, buffers))  # the recorder uses its memory again for the next ticket
        self._send(answer, pickled, arrays)

    def send_records(self) -> None:
        """Send the log records that were made since the last answer."""
        self._send(None, None, [])

    def _send(self, answer: Answer | None, pickled: Any, arrays: list[bytes]) -> None:
        records = self._keeper.take()
        if answer is not None or records:
            # Never full: the sampler leaves room for the answers to all tickets that it sent.
            self._answers.put_nowait((records, pickle.dumps(answer, protocol=5), pickled, arrays))


def main(number: int, ends: WorkerEnds, setup: ProcessSetup, board: Any, descriptors: int | None) -> None:
    """Run worker `number` until it is to exit, and end this process.

    Args:
        number: The worker number.
        ends: The worker's queues.
        setup: What all workers of the sampler are given.
        board: The status board, as an array that all workers share.
        descriptors: How many descriptors the process may have; None for as many as the sampler's process may.
    """
    status = 1
    try:
        _run(number, ends, setup, board, descriptors)
        # Until the last answer is in the pipe; if the sampler does not read it, it kills this process.
        ends.answers.close()
        ends.answers.join_thread()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # Threads and processes of the environment's are not waited for.
        os._exit(status)


def _run(number: int, ends: WorkerEnds, setup: ProcessSetup, board: Any, descriptors: int | None) -> None:
    end = _prepare_end(ends, descriptors)
    ends.close_foreign()
    if hasattr(os, "register_at_fork"):
        # A copy of this process that held the ends open would keep the sampler from noticing this one's death.
        os.register_at_fork(after_in_child=ends.close)
    threading.Thread(target=_listen, args=(ends, end), name="streamsampler-listener", daemon=True).start()
    threads = setup.apply()
    row = StatusBoard(memoryview(board)).row(number)
    keeper = RecordKeeper(number)
    keeper.install()
    channel = QueueChannel(ends, keeper, threads)
    run_worker(channel, setup.worker, WorkerContext(row, number, setup.seed))
    channel.send_records()


def _prepare_end(ends: WorkerEnds, descriptors: int | None) -> Callable[[], Any]:
    """Prepare for signals and for the end of the sampler's process; return what ends this process and its group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork would inherit a handler of the user's program
    try:
        from streamsampler.engines.launch.child import ignore_terminal, kill_at_end_of, own_group
        from streamsampler.engines.launch.descriptor_limits import lower_limit
    except ImportError:  # Windows has no groups of processes, and no such limit
        return lambda: os._exit(1)
    ignore_terminal()
    own_group()
    lower_limit(descriptors)
    # By the kernel, where it can: a thread does not run while native code holds the interpreter's lock.
    kill_at_end_of(ends.alive.fileno(), -os.getpid())
    return _end_group


def _end_group() -> None:
    with contextlib.suppress(OSError):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _listen(ends: WorkerEnds, end: Callable[[], Any]) -> None:
    """End this process when the sampler's is gone, and answer with stacks until then; in a thread."""
    with contextlib.suppress(EOFError, OSError):
        while ends.alive not in wait([ends.alive, ends.stacks]):
            ends.stacks.recv_bytes()
            ends.stacks.send_bytes(_stacks())
    end()


def _stacks() -> bytes:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()[-_MOST_STACK_BYTES:]
