"""What a worker is made with, for tests that drive one by hand."""

from typing import Any

from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard, board_bytes


def new_board(n_workers: int = 1) -> StatusBoard:
    """Return a board in this process's memory."""
    return StatusBoard(memoryview(bytearray(board_bytes(n_workers))))


def context_of(board: StatusBoard | None = None, **fields: Any) -> WorkerContext:
    """Return the context of worker 0 on a board, or on one of its own."""
    return WorkerContext((board or new_board()).row(0), **fields)
