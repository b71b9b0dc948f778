"""Hold the files shared by all worker processes of a pool."""

from __future__ import annotations

import contextlib
import os
import pickle
from mmap import mmap
from typing import Any

from streamsampler.core.serialization import Payload
from streamsampler.engines.launch.descriptors import close_fd, own_fd
from streamsampler.engines.processes.shared_memory import ArenaReader, ArenaWriter, anonymous_file, read_only
from streamsampler.engines.processes.wire import Stored, pack, unpack
from streamsampler.workers.board import StatusBoard, board_bytes


class SharedFiles:
    """Files shared by all workers of a pool, closed together."""

    def __init__(self, setup: Any, n_workers: int) -> None:
        with contextlib.ExitStack() as self._opened:
            self._setup_fd = self.own(anonymous_file("streamsampler-setup", pickle.dumps(setup, protocol=5)))
            board_fd = self.own(anonymous_file("streamsampler-board", bytes(board_bytes(n_workers))))
            self.stacks_fd, stacks_write_fd = map(self.own, os.pipe())  # for workers' stacks
            os.set_blocking(self.stacks_fd, False)
            self.board = StatusBoard(memoryview(self._opened.enter_context(mmap(board_fd, 0))))
            self._opened.callback(self.board.release)
            # Read-only: a worker's mistake must not reach all others.
            self.fds = [self.own(read_only(self._setup_fd)), board_fd, stacks_write_fd]
            self._open()
            self._opened = self._opened.pop_all()

    def _open(self) -> None:
        """Open a subclass's files."""

    def own(self, fd: int) -> int:
        """Close a descriptor together with the others; return it."""
        self._opened.callback(close_fd, own_fd(fd))
        return fd

    def set_up(self, setup: Any) -> None:
        """Change the setup of workers started from now on; all others have read theirs."""
        os.ftruncate(self._setup_fd, 0)
        with open(self._setup_fd, "wb", closefd=False) as file:
            file.seek(0)
            file.write(pickle.dumps(setup, protocol=5))

    def close(self) -> None:
        self._opened.close()


class PublishedFiles(SharedFiles):
    """Adds an arena for payloads, written once for all workers."""

    def __init__(self, setup: Any, n_workers: int, inline_limit: int) -> None:
        self.inline_limit = inline_limit  # bytes up to which a report travels in the message itself
        super().__init__(setup, n_workers)

    def _open(self) -> None:
        updates_fd = self.own(anonymous_file("streamsampler-updates"))
        self.updates_fd = self.own(read_only(updates_fd))
        self.fds.append(self.updates_fd)
        self._writer = ArenaWriter(updates_fd)
        self._reader = ArenaReader(self.updates_fd)
        self._opened.callback(self._reader.close)

    def write(self, payload: Payload) -> Stored:
        """Write a payload once, for all workers."""
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
        if stored.region is not None:
            self._writer.give_back(stored.region)
