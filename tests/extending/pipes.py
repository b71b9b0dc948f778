"""An engine of one's own: a forked process and a pipe for each worker, and a board that all of them map."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import signal
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from streamsampler import Sampler, run_worker
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.engines.base import Answered, Died, Engine, Event, Logged, unreadable
from streamsampler.protocol.messages import Answer, Exit, Message, Start
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard, board_bytes
from streamsampler.workers.factory import WorkerSetup

CLOSE_SECONDS = 5.0
FORK = multiprocessing.get_context("fork")


class PipeChannel:
    """A worker's end of its pipe."""

    interruptible = False

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def receive(self, *, wait: bool) -> Message | None:
        try:
            message: Message | None = self._pipe.recv() if wait or self._pipe.poll() else None
        except (EOFError, OSError):  # the sampler has ended
            return Exit()
        return message

    def load(self, payload: Payload) -> Any:
        return loads(payload)

    def answer(self, answer: Answer, contents: Any = None) -> None:
        payload = dumps(None if isinstance(contents, BaseException) else contents, "the recorded rollout")
        self._pipe.send((answer, Payload(payload.data, tuple(map(bytes, payload.buffers)))))


def live(pipe: Connection, others: list[Connection], board: StatusBoard, setup: WorkerSetup, number: int) -> None:
    """Run a worker, in its process; the sampler's ends of pipes are closed, or none would see the sampler's death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    run_worker(PipeChannel(pipe), setup.make_worker, WorkerContext(board.row(number), number, setup.seed))


class PipeEngine(Engine):
    """Workers in forked processes."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.n_workers = setup.n_workers
        self.board = StatusBoard(memoryview(mmap.mmap(-1, board_bytes(setup.n_workers))))
        self._setup = setup
        self._pipes: dict[int, Connection] = {}  # of workers that have not ended
        self._processes: dict[int, BaseProcess] = {}
        for worker in range(self.n_workers):
            self.restart(worker)

    def restart(self, worker: int) -> None:
        self.board.clear(worker)
        self._pipes[worker], theirs = FORK.Pipe()
        arguments = theirs, list(self._pipes.values()), self.board, self._setup, worker
        if worker in self._processes:
            self._processes[worker].close()  # its descriptors would wait for the garbage collector
        self._processes[worker] = FORK.Process(target=live, args=arguments, daemon=True)
        self._processes[worker].start()
        theirs.close()

    def send(self, worker: int, message: Message) -> None:
        if isinstance(message, Start):
            self.board.lower_flag(worker)
        if worker in self._pipes:
            with contextlib.suppress(OSError):  # `wait` reports its death
                self._pipes[worker].send(message)

    def wait(self, timeout: float | None) -> list[Event]:
        ready = wait(list(self._pipes.values()), timeout)
        return [self._event(worker) for worker, pipe in list(self._pipes.items()) if pipe in ready]

    def _event(self, worker: int) -> Answered | Died:
        try:
            answer, payload = self._pipes[worker].recv()
        except (EOFError, OSError):
            self._pipes.pop(worker).close()
            self._processes[worker].join()
            return Died(worker, self._processes[worker].exitcode)
        try:
            return Answered(worker, answer, loads(payload))
        except Exception as error:
            return Answered(worker, unreadable(answer, error))

    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes.values()]

    def kill_worker(self, worker: int) -> None:
        self._processes[worker].kill()

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        self.board.abandon_all()
        for worker in range(self.n_workers):
            self.send(worker, Exit())
        deadline = time.monotonic() + CLOSE_SECONDS
        answers: list[Answered | Logged] = []
        while self._pipes and (events := self.wait(max(0.0, deadline - time.monotonic()))):
            answers += [Answered(event.worker, event.answer) for event in events if isinstance(event, Answered)]
        self.kill()
        for process in self._processes.values():
            process.join()
            process.close()
        self._processes.clear()
        while self._pipes:
            self._pipes.popitem()[1].close()
        return answers if read_answers else []


class PipeSampler(Sampler[Any, Any]):
    """Collects trajectories in forked processes."""

    def make_engine(self, setup: WorkerSetup) -> Engine:
        return PipeEngine(setup)
