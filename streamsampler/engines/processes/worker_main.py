"""Run a worker process, from its descriptors to the worker loop."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from streamsampler.engines.launch.exit_handlers import forget_foreign_handlers, run_finalizers
from streamsampler.engines.process_setup import ProcessSetup, StartedProcess
from streamsampler.engines.processes.channel import ProcessChannel
from streamsampler.engines.processes.stacks import answer_with_stacks
from streamsampler.engines.worker_memory import MemoryReporter
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.fail_points import armed
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.loop import run_worker


@dataclass(frozen=True)
class StartedPipeProcess(StartedProcess):
    """A started worker process with pipes."""

    commands_fd: int
    answers_fd: int
    others: Sequence[int]


def begin(number: int, fds: Sequence[int]) -> StartedPipeProcess:
    """Give a new process the settings of its starter.

    `fds` are: commands, answers, the pipe at the end of which the kernel kills this process, the setup (a tuple that
    starts with a `ProcessSetup`), the board, the pipe for stacks, and others.
    """
    forget_foreign_handlers()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a program that ignores it lets its fork server ignore it, too
    commands_fd, answers_fd, _, setup_fd, board_fd, stacks_fd, *others = fds
    answer_with_stacks(stacks_fd)
    setup = pickle.loads(mmap.mmap(setup_fd, 0, access=mmap.ACCESS_READ))
    of_process: ProcessSetup = setup[0]
    keeper = RecordKeeper(number)
    keeper.install()
    threads, settings = of_process.apply()
    row = StatusBoard(memoryview(mmap.mmap(board_fd, 0))).row(number)
    _redirect_descriptors_of(board_fd)
    return StartedPipeProcess(
        number, setup, row, keeper, threads=threads, settings=settings, commands_fd=commands_fd, answers_fd=answers_fd,
        others=others,
    )  # fmt: skip


def main(number: int, fds: Sequence[int]) -> None:
    """Run worker `number` of a sampler until `Exit`; see `begin` for `fds`."""
    process = begin(number, fds)
    updates_fd, arena_fd = process.others
    setup: ProcessSetup
    setup, inline_limit, report_memory = process.setup
    memory = MemoryReporter(process.row) if report_memory else None
    channel = ProcessChannel(
        process.commands_fd, process.answers_fd, arena_fd=arena_fd, updates_fd=updates_fd, inline_limit=inline_limit,
        keeper=process.keeper, threads=process.threads, settings=process.settings, before_answer=memory,
    )  # fmt: skip
    context = WorkerContext(process.row, number, setup.seed, allocate=channel.allocate)
    run_worker(armed(channel, number), setup.worker, context)
    process.end()
    channel.send_records()
    run_finalizers()


def _redirect_descriptors_of(fd: int) -> None:
    """Redirect all descriptors of a mapped file to /dev/null.

    Native code writing to descriptors of others would change memory shared by all workers.
    """
    file = os.fstat(fd)
    null = os.open(os.devnull, os.O_RDWR)
    for other in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if os.path.samestat(os.fstat(other), file):
                os.dup2(null, other, inheritable=False)
    os.close(null)
