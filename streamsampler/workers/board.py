"""The status board: the words of memory that sampler and workers share besides their messages.

Each word has one writer, so none needs a lock. The sampler writes the oldest agent version that may run and, for each
worker, a flag that asks it to look at the board; each worker writes its own progress. A word is eight aligned bytes,
which a reader sees either before or after a write, never in between.
"""

from __future__ import annotations

import ctypes

from streamsampler.protocol.messages import NEVER_AGAIN, Phase
from streamsampler.protocol.progress import Progress

__all__ = ["StatusBoard", "WorkerRow", "board_bytes", "phase_number"]

_WORD = 8
_ROW = 8  # words: one cache line each, so that workers do not slow each other down
_PHASES = tuple(Phase)
_NUMBERS = {phase: number for number, phase in enumerate(_PHASES)}  # looking through them would take a microsecond

# Words of a worker's row.
_VERSION, _TIMESTEPS, _TRAJECTORY, _PHASE, _MEMORY, _ENDED, _WAITS, _FLAG = range(8)


def board_bytes(n_workers: int) -> int:
    """Return the size of a board: the sampler's row, then one row for each worker."""
    return (1 + n_workers) * _ROW * _WORD


def phase_number(phase: Phase) -> int:
    """Return the number that stands for a phase on the board."""
    return _NUMBERS[phase]


class StatusBoard:
    """The sampler's view of the board.

    Args:
        memory: `board_bytes(n_workers)` bytes, zeroed; shared with the workers where they are other processes.
    """

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("B").cast("q")
        n_workers = len(self._words) // _ROW - 1
        self._flags = range(_ROW + _FLAG, (1 + n_workers) * _ROW, _ROW)

    def abandon_older(self, version: int) -> None:
        """Let workers abandon rollouts of versions older than `version` at their next timestep."""
        # The flags last: a worker that sees its flag reads the version.
        self._words[0] = version
        for flag in self._flags:
            self._words[flag] = 1

    def abandon_all(self) -> None:
        """Let workers abandon every rollout."""
        self.abandon_older(NEVER_AGAIN)

    def lower_flag(self, worker: int) -> None:
        """Lower the flag of an idle worker, whose next message brings the version that may run."""
        self._words[self._flags[worker]] = 0

    def request_progress(self, worker: int) -> None:
        """Ask a worker to write its progress in each timestep and each action, until its next `Start`."""
        self._words[self._flags[worker]] = 1

    def clear(self, worker: int) -> None:
        """Clear the progress of a worker that has ended."""
        row = (1 + worker) * _ROW
        for word in range(row, row + _FLAG):
            self._words[word] = 0

    def progress(self, worker: int) -> Progress:
        """Return the last known progress of a worker."""
        row = (1 + worker) * _ROW
        version, timesteps, trajectory, phase = self._words[row : row + 4].tolist()
        waits = self._words[row + _WAITS]
        index = trajectory - 1 if trajectory > 0 else None
        task = -1 - trajectory if trajectory < 0 else None
        return Progress(version, timesteps, index, _PHASES[phase], waits, task)

    def ran_timesteps(self, worker: int) -> int:
        """Return how many timesteps a worker has shown since its start."""
        row = (1 + worker) * _ROW
        ran: int = self._words[row + _ENDED] + self._words[row + _TIMESTEPS]
        return ran

    def memory_bytes(self, worker: int) -> int:
        """Return the private memory that a worker last wrote, in bytes; 0 before."""
        memory: int = self._words[(1 + worker) * _ROW + _MEMORY]
        return memory

    def row_bytes(self, worker: int) -> bytes:
        """Return a worker's row, for a sampler that does not share the memory; `show` is the other way."""
        row = (1 + worker) * _ROW
        return bytes(self._words[row : row + _ROW])

    def show(self, worker: int, row_bytes: bytes) -> None:
        """Show a worker's row as it was when `row_bytes` returned it."""
        row = (1 + worker) * _ROW
        self._words[row : row + _ROW] = memoryview(row_bytes).cast("q")

    def row(self, worker: int) -> WorkerRow:
        """Return a worker's view of the board."""
        return WorkerRow(self._words, worker)

    def copy(self) -> StatusBoard:
        """Return a board with the same words, in memory of its own."""
        return StatusBoard(memoryview(bytearray(self._words)))

    def release(self) -> None:
        """Release the memory."""
        self._words.release()


class WorkerRow:
    """A worker's view of the board: which versions may run, and the worker's own progress.

    A rollout loop that cannot afford calls writes `words[timesteps_word]` and `words[phase_word]`, with `phase_number`,
    itself: each takes some 40 ns.

    Attributes:
        attention: True, as a condition, while the worker's flag is up: call `may_run`, and write the timesteps. (The
            truth of a ctypes number is the quickest look at shared memory that Python has: 15 ns. An item of a
            memoryview takes three times as long, and in a loop of much other code ten times.)
        words: All words; words[0] is the oldest version that may run.
        index_base: What is written for trajectory 0, since 0 stands for none: 1, or more where the call knows the
            trajectories of a task by higher numbers. A loop that writes `words[trajectory_word]` itself adds it.
    """

    def __init__(self, words: memoryview, worker: int) -> None:
        self.words = words
        self._row = (1 + worker) * _ROW
        self.attention = ctypes.c_int64.from_buffer(words[self._row + _FLAG :])
        self.index_base = 1
        self.timesteps_word = self._row + _TIMESTEPS
        self.phase_word = self._row + _PHASE
        self.trajectory_word = self._row + _TRAJECTORY

    def may_run(self, version: int) -> bool:
        """Return whether rollouts of `version` may go on; otherwise abandon them."""
        oldest: int = self.words[0]
        return oldest <= version

    def begin_ticket(self, version: int) -> None:
        """Write that a ticket of `version` begins."""
        self.words[self._row + _VERSION] = version

    def begin_trajectory(self, index: int) -> None:
        """Write that trajectory `index` begins."""
        self.words[self.trajectory_word] = index + self.index_base

    def end_ticket(self, n_timesteps: int, running: int = 0) -> None:
        """Write that the ticket ended, how many timesteps it took, and how many later ones have taken already."""
        self.words[self.timesteps_word] = running
        self.words[self.trajectory_word] = 0
        self.words[self._row + _ENDED] += n_timesteps

    def count_wait(self) -> None:
        """Write that the worker waited for environments or agents, and goes on."""
        self.words[self._row + _WAITS] += 1

    def set_memory(self, n_bytes: int) -> None:
        """Write the private memory of the worker."""
        self.words[self._row + _MEMORY] = n_bytes

    def set_task(self, task: int) -> None:
        """Write the number of the task that the worker works for, until a trajectory begins or a ticket ends."""
        self.words[self.trajectory_word] = -1 - task

    def set_phase(self, phase: Phase) -> None:
        """Write what the worker is doing."""
        self.words[self.phase_word] = phase_number(phase)
