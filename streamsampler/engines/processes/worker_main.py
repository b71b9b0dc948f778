"""A worker process: from its descriptors to the worker loop."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import resource
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import setproctitle

from streamsampler.data.buffers import Allocate
from streamsampler.engines.base import FAIL_POINT_VARIABLE
from streamsampler.engines.launch.child import ignore_terminal
from streamsampler.engines.launch.descriptor_limits import lower_limit, original_limit
from streamsampler.engines.processes.shared_memory import ArenaReader, ArenaWriter, Region, anonymous_file
from streamsampler.engines.processes.stacks import answer_with_stacks
from streamsampler.engines.processes.wire import MessageReader, Stored, frame, from_copy, pack, send, unpack
from streamsampler.protocol.messages import Answer, Exit, Message, Start
from streamsampler.serialization import Payload, dumps_report, loads
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard, WorkerRow
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.loop import Channel, run_worker
from streamsampler.workers.threads import ThreadLimit, set_unset

__all__ = ["main", "setup_file"]

_LARGE = 1 << 30
_HAS_PROC = os.path.exists("/proc/self/statm")


@dataclass(frozen=True)
class _Setup:
    """What all workers of a sampler are told at their start.

    Attributes:
        n_workers: How many there are.
        seed: The sampler's seed.
        make_worker: A pickled callable that makes a worker from its context.
        path: The sampler's `sys.path`.
        cwd: Its working directory.
        environ: Its environment variables, as they were when the sampler was made.
        title: Its process title.
        inline_limit: Bytes up to which a report travels in the message itself.
        report_memory: Whether to tell how much memory the process has.
        descriptors: How many descriptors the process may have; None for as many as the sampler's process may.
        threads: How many threads libraries are to compute on; None leaves all as it is.
    """

    n_workers: int
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


def setup_file(
    n_workers: int,
    make_worker: Payload,
    seed: int,
    inline_limit: int,
    *,
    report_memory: bool,
    threads: int | None = None,
) -> int:
    """Return an anonymous file with what all workers are told; the arguments are as in `_Setup`."""
    make_worker = Payload(make_worker.data, tuple(bytes(buffer) for buffer in make_worker.buffers))
    setup = _Setup(
        n_workers,
        seed,
        make_worker,
        list(sys.path),
        os.getcwd(),
        dict(os.environ),
        setproctitle.getproctitle(),
        inline_limit,
        report_memory,
        original_limit(),
        threads,
    )
    data = pickle.dumps(setup, protocol=5)
    fd = anonymous_file("streamsampler-setup")
    try:
        ArenaWriter(fd).write([memoryview(data)])
    except BaseException:
        os.close(fd)
        raise
    return fd


def main(number: int, fds: Sequence[int]) -> None:
    """Be worker `number`.

    Args:
        number: The worker number.
        fds: Descriptors of: commands, answers, the pipe at whose end the kernel kills this process, the setup, the
            board, the worker's own arena, the arena of updates, the pipe for stacks.
    """
    ignore_terminal()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by fork, a handler of the user's program would have come along
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
    _put_out_of_reach(board_fd)
    keeper = RecordKeeper(number)
    keeper.install()
    threads = ThreadLimit(setup.threads, setup.environ)
    channel = _ProcessChannel(commands_fd, answers_fd, arena_fd, updates_fd, setup.inline_limit, keeper, threads)
    if setup.report_memory:
        channel.before_answer = partial(_tell_memory, row, _inherited_bytes())
    context = WorkerContext(row, number, setup.seed, allocate=channel.allocate)
    run_worker(_with_fail_points(channel, number), lambda context: loads(setup.make_worker)(context), context)
    channel.send_records()


def _put_out_of_reach(fd: int) -> None:
    """Let this process's descriptors of a file that it has mapped lead nowhere, that of the mapping itself included.

    Native code that writes to descriptors that are not its own would write to what all workers share.
    """
    file = os.fstat(fd)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for other in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # the one that lists the folder
            if os.path.samestat(os.fstat(other), file):
                os.dup2(nowhere, other, inheritable=False)
    os.close(nowhere)


def _with_fail_points(channel: _ProcessChannel, number: int) -> Channel:
    """Return the channel; where tests have switched them on, one that lets the worker die at a chosen place."""
    if FAIL_POINT_VARIABLE not in os.environ:
        return channel
    from streamsampler.testing.fail_points import armed

    return armed(channel, number)


def _inherited_bytes() -> int:
    """Return how much of this process's memory is its parent's, by fork: copied only where one of them writes to it."""
    if not _HAS_PROC:
        return 0
    with open("/proc/self/smaps_rollup", "rb") as file:
        sizes = dict(line.split(b":") for line in file.read().splitlines()[1:])
    private = sum(1024 * int(sizes[name].split()[0]) for name in (b"Private_Dirty", b"Private_Clean"))
    return max(0, _anonymous_bytes() - private)


def _anonymous_bytes() -> int:
    with open("/proc/self/statm", "rb", buffering=0) as file:
        resident, shared = file.read().split()[1:3]
    return (int(resident) - int(shared)) * mmap.PAGESIZE


def _tell_memory(row: WorkerRow, inherited: int) -> None:
    """Write to the board what the process has of memory of its own; pages of files do not count.

    Where there is no /proc it is the most that it ever had.
    """
    if not _HAS_PROC:
        row.set_memory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    row.set_memory(max(0, _anonymous_bytes() - inherited))


def _nothing() -> None:
    """Do nothing."""


class _ProcessChannel:
    """A worker's connection to a sampler in another process."""

    interruptible = False

    def __init__(
        self,
        commands_fd: int,
        answers_fd: int,
        arena_fd: int,
        updates_fd: int,
        inline_limit: int,
        keeper: RecordKeeper,
        threads: ThreadLimit,
    ) -> None:
        self._commands = MessageReader(commands_fd)
        self._heard: deque[bytes] = deque()
        self._answers_fd = answers_fd
        self._arena = ArenaWriter(arena_fd)
        self._updates = ArenaReader(updates_fd)
        self._poller = select.poll()
        self._poller.register(commands_fd, select.POLLIN)
        self._inline_limit = inline_limit
        self._keeper = keeper
        self._threads = threads
        self._pid = os.getpid()
        self.send: Callable[[int, bytes], None] = send
        self.before_answer: Callable[[], None] = _nothing
        # Rows recorded in the arena need no copy to get there.
        self.allocate: Allocate = self._arena.allocate if inline_limit < _LARGE else np.empty

    def receive(self, *, wait: bool) -> Message | None:
        self._stop_copies()
        self._threads.hold()
        while not self._heard:
            if not self._poller.poll(None if wait else 0):
                return None
            messages = self._commands.read()
            if messages is None:
                return Exit()
            self._heard.extend(messages)
        message: Message
        message, released = pickle.loads(self._heard.popleft())
        for region in released:
            self._arena.give_back(region)
        if isinstance(message, Start):
            if message.levels is not None:
                self._keeper.tell(self.load(message.levels))
            else:
                self._keeper.apply()
        return message

    def load(self, payload: Stored) -> Any:
        packed = self._updates.read(payload.region) if payload.region is not None else bytearray(payload.data or b"")
        # The copy just made is private memory: arrays may stand on it for good.
        head, buffers, _ = unpack(memoryview(packed))
        loaded = pickle.loads(head, buffers=buffers)
        self._keeper.apply()  # modules that were imported just now may have set levels of their own
        self._threads.hold()  # torch may be among them
        return loaded

    def _stop_copies(self) -> None:
        """End this process if it is a forked copy of the worker: there would be two that read and answer."""
        if os.getpid() != self._pid:
            with contextlib.suppress(OSError):
                send(self._answers_fd, from_copy())
            os._exit(1)

    def answer(self, answer: Answer, contents: Any = None) -> None:
        self._stop_copies()
        if isinstance(contents, BaseException):
            contents = None  # the answer has it in words, and pickled
        buffers: list[Any] = []
        if contents is not None:
            head, buffers = dumps_report(*contents)
            buffers = [head, *map(self._placed, buffers)]
        self.before_answer()
        self._send(answer, buffers)
        for region in buffers:
            if isinstance(region, Region):
                self._arena.hand_over(region)

    def send_records(self) -> None:
        """Send the log records that were made since the last answer."""
        self._send(None, [])

    def _send(self, answer: Answer | None, parts: list[Any]) -> None:
        records = self._keeper.take()
        if answer is None and not records:
            return
        # The answer apart from its contents: it can be read even where they cannot be unpickled.
        head = pickle.dumps((records, answer), protocol=5)
        with contextlib.suppress(BrokenPipeError):  # the sampler is gone, and so is this process in a moment
            self.send(self._answers_fd, frame(pack(head, parts), self._arena.write, self._inline_limit))

    def _placed(self, buffer: pickle.PickleBuffer) -> memoryview | Region:
        """Return where a buffer lies in the arena, if it was recorded there, else the buffer."""
        raw = buffer.raw()
        return self._arena.lent_region(raw) or raw
