"""The sampler's ends of a worker's queues, and its process; for the engine `queues`.

A process is started by `multiprocessing`, with two differences. It does not import the user's main script: agents and
environments that are defined there travel by value, so an unguarded script is not run again. And `multiprocessing` does
not end it at the exit of the program, which would come before environments are closed.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import multiprocessing.process
import multiprocessing.spawn
import os
import pickle
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from streamsampler.engines.launch.child import END_SECONDS, interrupts_blocked
from streamsampler.engines.linked import EngineLink, shown_stacks
from streamsampler.engines.queue_worker import WorkerEnds, main
from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.protocol.messages import Message
from streamsampler.protocol.states import CAPACITY

__all__ = ["QueueLink"]

_STACKS_SECONDS = 1.0

_MOST_COMMANDS = CAPACITY + 3  # tickets, two Stop and an Exit; see `protocol.states`
_MOST_ANSWERS = CAPACITY + 2  # to tickets, a failure to close the environment, and the last log records

_links: weakref.WeakSet[QueueLink] = weakref.WeakSet()
_start_lock = threading.Lock()


class QueueLink(EngineLink):
    """The sampler's ends of what it shares with one worker: a pair of bounded queues, and its process.

    A thread reads the worker's answers: a worker that stops in the middle of one keeps only its own thread waiting.
    Each end is open in one process only. So when a worker dies, the last thing that is read is the end, and a message
    that it did not finish is the end as well.

    Args:
        context: What starts processes.
        number: The worker number.
        setup: What all workers are given.
        board: The status board's memory.

    Attributes:
        process: The process.
    """

    def __init__(self, context: BaseContext, number: int, setup: ProcessSetup, board: Any) -> None:
        super().__init__(number)
        self._gone = self._closed = False
        self._reader: threading.Thread | None = None
        self._commands, self._answers = context.Queue(_MOST_COMMANDS), context.Queue(_MOST_ANSWERS)
        self._commands.cancel_join_thread()  # what no worker reads must not keep this process from its end
        for one in (self._commands, self._answers):
            one._ignore_epipe = True  # type: ignore[attr-defined]  # the death of the other end is seen elsewhere
        alive, self._alive = context.Pipe(duplex=False)
        stacks, self._stacks = context.Pipe()
        theirs = WorkerEnds(self._commands, self._answers, alive, stacks)
        make: Callable[..., BaseProcess] = context.Process  # type: ignore[attr-defined]
        arguments = number, theirs, setup, board
        self.process = make(target=main, args=arguments, name=f"streamsampler worker {number}")
        _links.add(self)  # now: a forked worker closes these ends
        try:
            if context.get_start_method() == "forkserver":
                _let_server_clean_up()
            with _start_lock, interrupts_blocked(), _main_module_left_out():
                self.process.start()
                multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]
        except BaseException:
            self._close_ends()
            raise
        finally:
            theirs.close()

    def read(self, post: Callable[[QueueLink, Any], None]) -> None:
        """Begin to read answers.

        Args:
            post: Is given, in another thread, each answer; then the exception that ended the reading, if what was there
                was no answer; then None.
        """
        name = f"streamsampler-reader-{self.number}"
        self._reader = threading.Thread(target=self._read, args=(post,), name=name, daemon=True)
        try:
            self._reader.start()
        except RuntimeError as error:
            self._reader = None
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from error

    def _read(self, post: Callable[[QueueLink, Any], None]) -> None:
        reader, sentinel = self._answers._reader, self.process.sentinel  # type: ignore[attr-defined]
        try:
            # The end of the process, too: something else may hold the worker's end of the queue.
            while reader in wait([reader, sentinel]):
                post(self, self._answers.get())
        except (EOFError, OSError):  # the second one is what the end in the middle of a message raises
            pass
        except Exception as error:
            post(self, error)
        post(self, None)

    def send(self, message: Message) -> None:
        """Send a message."""
        try:
            self._commands.put_nowait(pickle.dumps(message, protocol=5))
        except queue.Full:  # the messages under way leave room: it has died, or its queue is broken
            self.kill()

    def stacks(self) -> str:
        """Return the worker's Python stacks."""
        with contextlib.suppress(EOFError, OSError):
            self._stacks.send_bytes(b"?")
            if self._stacks.poll(_STACKS_SECONDS):
                return shown_stacks(self._stacks.recv_bytes().decode(errors="replace"), ["/multiprocessing/"])
        return "(it did not answer: it is stopped, or native code holds the interpreter's lock)"

    # ------------------------------------------------------------------ the end

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self.process.pid or 0

    def ends_within(self, timeout: float) -> bool:
        """Return whether the worker ends within `timeout` seconds; what it leaves in its group is killed."""
        if not self._gone:
            self.process.join(max(0.0, timeout))
            self._gone = self.process.exitcode is not None
            # At once: no new process gets the group's number while there is any in it.
            if self._gone and hasattr(os, "killpg"):
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, signal.SIGKILL)
        return self._gone

    def kill(self, *, gently: bool = False) -> None:
        """Kill the worker; gently, if the system knows the difference, by SIGTERM."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # gone, or closed by another thread just now
            if gently:
                self.process.terminate()
            else:
                self.process.kill()

    def close(self, timeout: float) -> None:
        """Kill the worker if it lives, and close all ends. If it hangs in the kernel, it is left, with its ends."""
        self.ended = True
        if self._closed:
            return
        self.kill()
        if not self.ends_within(timeout):
            return
        if self._reader is not None:
            self._reader.join(END_SECONDS)
        self._commands.close()
        feeder = self._commands._thread  # type: ignore[attr-defined]
        if feeder is not None:
            feeder.join(END_SECONDS)
        self._closed = True
        self._close_ends()
        self.process.close()

    def _close_ends(self) -> None:
        for end in (self._commands._writer, self._answers._reader, self._alive, self._stacks):  # type: ignore[attr-defined]
            end.close()


def _close_copies() -> None:
    """Close the copies of the ends in a forked process: open there, they would hide the end of this one."""
    for link in list(_links):
        link._close_ends()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


def _let_server_clean_up() -> None:
    """Let the next fork server of this process remove the file of its socket; see `queue_server`."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    module = "streamsampler.engines.queue_server"
    if module not in server._preload_modules:
        multiprocessing.set_forkserver_preload([*server._preload_modules, module])


@contextlib.contextmanager
def _main_module_left_out() -> Iterator[None]:
    """Leave the main module out of what the processes that this thread starts prepare themselves with."""
    prepare, starter = multiprocessing.spawn.get_preparation_data, threading.get_ident()

    def without_main(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        if threading.get_ident() == starter:
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    multiprocessing.spawn.get_preparation_data = without_main
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = prepare
