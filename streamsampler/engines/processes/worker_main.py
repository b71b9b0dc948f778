"""A worker process: from its descriptors to the worker loop."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from streamsampler.engines.base import FAIL_POINT_VARIABLE
from streamsampler.engines.launch.child import ignore_terminal
from streamsampler.engines.launch.descriptor_limits import lower_limit, original_limit
from streamsampler.engines.processes.channel import ProcessChannel
from streamsampler.engines.processes.memory_report import MemoryReporter
from streamsampler.engines.processes.shared_memory import ArenaReader, Region, anonymous_file
from streamsampler.engines.processes.stacks import answer_with_stacks
from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.serialization import Payload
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.loop import Channel, run_worker

__all__ = ["main", "setup_file"]


@dataclass(frozen=True)
class _Setup:
    """What all workers of a sampler are given at their start.

    Attributes:
        process: What is the same on other engines.
        inline_limit: Bytes up to which a report travels in the message itself.
        report_memory: Whether the worker writes its memory to the status board.
        descriptors: How many descriptors the process may have; None for as many as the sampler's process may.
    """

    process: ProcessSetup
    inline_limit: int
    report_memory: bool
    descriptors: int | None


def setup_file(make_worker: Payload, seed: int, inline_limit: int, *, report_memory: bool, threads: int | None) -> int:
    """Return an anonymous file with what all workers are given; see `_Setup` and `ProcessSetup`."""
    process = ProcessSetup.of_this_process(make_worker, seed, threads)
    setup = _Setup(process, inline_limit, report_memory, original_limit())
    return anonymous_file("streamsampler-setup", pickle.dumps(setup, protocol=5))


def main(number: int, fds: Sequence[int]) -> None:
    """Run worker `number` until it is to exit.

    Args:
        number: The worker number.
        fds: Descriptors of: commands, answers, the pipe at whose end the kernel kills this process, the setup, the
            board, the worker's own arena, the arena of updates, the pipe for stacks.
    """
    ignore_terminal()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork would inherit a handler of the user's program
    commands_fd, answers_fd, _, setup_fd, board_fd, arena_fd, updates_fd, stacks_fd = fds
    answer_with_stacks(stacks_fd)
    setup: _Setup = pickle.loads(bytes(ArenaReader(setup_fd).read(Region(0, os.fstat(setup_fd).st_size))))
    lower_limit(setup.descriptors)
    threads = setup.process.apply()
    row = StatusBoard(memoryview(mmap.mmap(board_fd, 0))).row(number)
    _redirect_descriptors_of(board_fd)
    keeper = RecordKeeper(number)
    keeper.install()
    memory = MemoryReporter(row) if setup.report_memory else None
    channel = ProcessChannel(commands_fd, answers_fd, arena_fd, updates_fd, setup.inline_limit, keeper, threads, memory)
    context = WorkerContext(row, number, setup.process.seed, allocate=channel.allocate)
    run_worker(_with_fail_points(channel, number), setup.process.worker, context)
    channel.send_records()


def _redirect_descriptors_of(fd: int) -> None:
    """Redirect all descriptors of a file that this process has mapped to /dev/null, that of the mapping included.

    Native code that writes to descriptors that are not its own would write to what all workers share.
    """
    file = os.fstat(fd)
    null = os.open(os.devnull, os.O_RDWR)
    for other in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # the one that lists the folder
            if os.path.samestat(os.fstat(other), file):
                os.dup2(null, other, inheritable=False)
    os.close(null)


def _with_fail_points(channel: ProcessChannel, number: int) -> Channel:
    """Return the channel; where a test has switched fail points on, one that kills the worker at a chosen place."""
    if FAIL_POINT_VARIABLE not in os.environ:
        return channel
    from streamsampler.testing.fail_points import armed

    return armed(channel, number)
