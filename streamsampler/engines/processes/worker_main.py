"""A worker process: from its descriptors to the worker loop."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import setproctitle

from streamsampler.engines.base import FAIL_POINT_VARIABLE
from streamsampler.engines.launch.child import ignore_terminal
from streamsampler.engines.launch.descriptor_limits import lower_limit, original_limit
from streamsampler.engines.processes.channel import ProcessChannel
from streamsampler.engines.processes.memory_report import MemoryReporter
from streamsampler.engines.processes.shared_memory import ArenaReader, Region, anonymous_file
from streamsampler.engines.processes.stacks import answer_with_stacks
from streamsampler.serialization import Payload, loads
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.loop import Channel, run_worker
from streamsampler.workers.threads import ThreadLimit, set_unset

__all__ = ["main", "setup_file"]


@dataclass(frozen=True)
class _Setup:
    """What all workers of a sampler are given at their start.

    Attributes:
        seed: The sampler's seed.
        make_worker: A pickled callable that makes a worker from its context.
        path: The sampler's `sys.path`.
        cwd: Its working directory.
        environ: Its environment variables, as they were when the sampler was made.
        title: Its process title.
        inline_limit: Bytes up to which a report travels in the message itself.
        report_memory: Whether the worker writes its memory to the status board.
        descriptors: How many descriptors the process may have; None for as many as the sampler's process may.
        threads: How many threads libraries compute on; None for no limit.
    """

    seed: int
    make_worker: Payload
    path: list[str]
    cwd: str
    environ: dict[str, str]
    title: str
    inline_limit: int
    report_memory: bool
    descriptors: int | None
    threads: int | None


def setup_file(make_worker: Payload, seed: int, inline_limit: int, *, report_memory: bool, threads: int | None) -> int:
    """Return an anonymous file with what all workers are given; the arguments are as in `_Setup`."""
    setup = _Setup(
        seed,
        Payload(make_worker.data, tuple(bytes(buffer) for buffer in make_worker.buffers)),
        list(sys.path),
        os.getcwd(),
        dict(os.environ),
        setproctitle.getproctitle(),
        inline_limit,
        report_memory,
        original_limit(),
        threads,
    )
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
    # Before the environment variables change: the title is written over their first place in memory.
    setproctitle.setproctitle("worker:" + setup.title)
    lower_limit(setup.descriptors)
    sys.path[:] = setup.path
    os.environ.update(setup.environ)
    set_unset(os.environ, setup.threads)
    with contextlib.suppress(OSError):
        os.chdir(setup.cwd)
    row = StatusBoard(memoryview(mmap.mmap(board_fd, 0))).row(number)
    _redirect_descriptors_of(board_fd)
    keeper = RecordKeeper(number)
    keeper.install()
    threads = ThreadLimit(setup.threads, setup.environ)
    memory = MemoryReporter(row) if setup.report_memory else None
    channel = ProcessChannel(commands_fd, answers_fd, arena_fd, updates_fd, setup.inline_limit, keeper, threads, memory)
    context = WorkerContext(row, number, setup.seed, allocate=channel.allocate)
    run_worker(_with_fail_points(channel, number), lambda context: loads(setup.make_worker)(context), context)
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
