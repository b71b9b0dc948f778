"""What all workers of a sampler share: their setup, the status board, published payloads and the pipe for stacks."""

from __future__ import annotations

import contextlib
import os
import pickle
from mmap import mmap

from streamsampler.engines.launch.descriptors import close_fd, own_fd
from streamsampler.engines.processes.shared_memory import ArenaReader, ArenaWriter, anonymous_file, read_only
from streamsampler.engines.processes.wire import Stored, pack, unpack
from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.serialization import Payload
from streamsampler.workers.board import StatusBoard, board_bytes

__all__ = ["SharedFiles"]


class SharedFiles:
    """Files that the workers of a sampler share, and payloads that are written once for all of them.

    Args:
        setup: What workers are given at their start.
        n_workers: How many workers there are.
        inline_limit: Bytes up to which a report travels in the message itself.
        report_memory: Whether workers write to the status board how much memory they have.

    Attributes:
        inline_limit: As above.
        board: The status board.
        stacks_fd: Where workers' stacks are read; never blocking.
        setup_fd, board_fd, updates_fd, stacks_write_fd: What workers are given.
    """

    def __init__(self, setup: ProcessSetup, n_workers: int, inline_limit: int, *, report_memory: bool) -> None:
        self.inline_limit = inline_limit
        pickled = pickle.dumps((setup, inline_limit, report_memory), protocol=5)
        with contextlib.ExitStack() as self._opened:
            setup_fd = self._own(anonymous_file("streamsampler-setup", pickled))
            self.board_fd = self._own(anonymous_file("streamsampler-board", bytes(board_bytes(n_workers))))
            updates_fd = self._own(anonymous_file("streamsampler-updates"))
            # Read-only: what one worker wrote there by mistake, all others would read.
            self.setup_fd, self.updates_fd = self._own(read_only(setup_fd)), self._own(read_only(updates_fd))
            self.stacks_fd, self.stacks_write_fd = map(self._own, os.pipe())
            os.set_blocking(self.stacks_fd, False)
            self.board = StatusBoard(memoryview(self._opened.enter_context(mmap(self.board_fd, 0))))
            self._opened.callback(self.board.release)
            self._writer = ArenaWriter(updates_fd)
            self._reader = ArenaReader(self.updates_fd)
            self._opened.callback(self._reader.close)
            self._opened = self._opened.pop_all()

    def _own(self, fd: int) -> int:
        self._opened.callback(close_fd, own_fd(fd))
        return fd

    def close(self) -> None:
        """Close all of them; may be repeated."""
        self._opened.close()

    def write(self, payload: Payload) -> Stored:
        """Write a payload once, where all workers can read it."""
        packed = pack(payload)
        if sum(view.nbytes for view in packed) <= self.inline_limit // 3:  # a message carries up to four
            return Stored(None, b"".join(packed))
        return Stored(self._writer.write(packed))

    def read(self, stored: Stored) -> Payload:
        """Return a copy of a payload."""
        packed = self._reader.read(stored.region) if stored.region is not None else stored.data or b""
        head, buffers = unpack(memoryview(packed))
        return Payload(bytes(head), tuple(bytes(buffer) for buffer in buffers))

    def free(self, stored: Stored) -> None:
        """Free the memory of a payload."""
        if stored.region is not None:
            self._writer.give_back(stored.region)
