"""Share status words between the sampler and its workers without messages or locks.

Each word has a single writer. The sampler writes the oldest agent version allowed to run, and for each worker a flag
which requests attention; each worker writes its progress. A word is eight aligned bytes: a read returns either the old
or the new value.
"""

from __future__ import annotations

import ctypes

from streamsampler.protocol.messages import NEVER_AGAIN, Phase
from streamsampler.protocol.progress import Progress

__all__ = ["StatusBoard", "WorkerRow", "board_bytes", "phase_number"]

_WORD = 8
_ROW = 8  # words: a cache line for each worker, which avoids false sharing
_PHASES = tuple(Phase)
_NUMBERS = {phase: number for number, phase in enumerate(_PHASES)}  # a search of the tuple takes a microsecond

# Words of a worker's row.
_VERSION, _TIMESTEPS, _TRAJECTORY, _PHASE, _MEMORY, _ENDED, _WAITS, _FLAG = range(8)


def board_bytes(n_workers: int) -> int:
    """Return the size of a board: the sampler's row, then a row for each worker."""
    return (1 + n_workers) * _ROW * _WORD


def phase_number(phase: Phase) -> int:
    """Return a phase's number on the board."""
    return _NUMBERS[phase]


class StatusBoard:
    """Gives the sampler its view of the board.

    Args:
        memory: `board_bytes(n_workers)` bytes, zeroed; shared with workers in other processes.
    """

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("B").cast("q")
        n_workers = len(self._words) // _ROW - 1
        self._flags = range(_ROW + _FLAG, (1 + n_workers) * _ROW, _ROW)

    def abandon_older(self, version: int) -> None:
        """Make workers abandon rollouts of versions older than `version` at their next timestep."""
        # The flags last: a worker reads the version after it sees its flag.
        self._words[0] = version
        for flag in self._flags:
            self._words[flag] = 1

    def abandon_all(self) -> None:
        """Make workers abandon every rollout."""
        self.abandon_older(NEVER_AGAIN)

    def lower_flag(self, worker: int) -> None:
        """Lower an idle worker's flag; its next message contains the version allowed to run."""
        self._words[self._flags[worker]] = 0

    def request_progress(self, worker: int) -> None:
        """Make a worker write its progress at each timestep and action, until its next `Start`."""
        self._words[self._flags[worker]] = 1

    def clear(self, worker: int) -> None:
        """Clear the progress of an ended worker."""
        row = (1 + worker) * _ROW
        for word in range(row, row + _FLAG):
            self._words[word] = 0

    def progress(self, worker: int) -> Progress:
        """Return a worker's last known progress."""
        row = (1 + worker) * _ROW
        version, timesteps, trajectory, phase = self._words[row : row + 4].tolist()
        waits = self._words[row + _WAITS]
        index = trajectory - 1 if trajectory > 0 else None
        task = -1 - trajectory if trajectory < 0 else None
        return Progress(version, timesteps, index, _PHASES[phase], waits, task)

    def ran_timesteps(self, worker: int) -> int:
        """Return a worker's timesteps since its start."""
        row = (1 + worker) * _ROW
        ran: int = self._words[row + _ENDED] + self._words[row + _TIMESTEPS]
        return ran

    def memory_bytes(self, worker: int) -> int:
        """Return a worker's last written private memory in bytes; 0 before the first."""
        memory: int = self._words[(1 + worker) * _ROW + _MEMORY]
        return memory

    def row_bytes(self, worker: int) -> bytes:
        """Return a worker's row, to send to a sampler without shared memory; `show` is the inverse."""
        row = (1 + worker) * _ROW
        return bytes(self._words[row : row + _ROW])

    def show(self, worker: int, row_bytes: bytes) -> None:
        """Write a worker's row from the result of `row_bytes`."""
        row = (1 + worker) * _ROW
        self._words[row : row + _ROW] = memoryview(row_bytes).cast("q")

    def row(self, worker: int) -> WorkerRow:
        """Return a worker's view of the board."""
        return WorkerRow(self._words, worker)

    def copy(self) -> StatusBoard:
        """Return a board with the same words in its own memory."""
        return StatusBoard(memoryview(bytearray(self._words)))

    def release(self) -> None:
        """Release the memory."""
        self._words.release()


class WorkerRow:
    """Gives a worker its view of the board: the versions allowed to run, and its own progress.

    A rollout loop which cannot afford calls writes `words[timesteps_word]` and `words[phase_word]`, with
    `phase_number`, itself: each write takes some 40 ns.

    Attributes:
        attention: True, as a condition, while the worker's flag is up: call `may_run` and write the timesteps. (A
            ctypes number's truth takes 15 ns, an item of a memoryview three to ten times as long.)
        words: All words; words[0] is the oldest version allowed to run.
        index_base: The number written for trajectory 0, since 0 stands for none: 1, or more for a task's indices. A
            loop which writes `words[trajectory_word]` itself adds it.
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
        """Return whether rollouts of `version` may continue; otherwise abandon them."""
        oldest: int = self.words[0]
        return oldest <= version

    def begin_ticket(self, version: int) -> None:
        """Write the current ticket's version."""
        self.words[self._row + _VERSION] = version

    def begin_trajectory(self, index: int) -> None:
        """Write the current trajectory's index."""
        self.words[self.trajectory_word] = index + self.index_base

    def end_ticket(self, n_timesteps: int, running: int = 0) -> None:
        """Write the end of a ticket with its timesteps, and the timesteps already run for later tickets."""
        self.words[self.timesteps_word] = running
        self.words[self.trajectory_word] = 0
        self.words[self._row + _ENDED] += n_timesteps

    def count_wait(self) -> None:
        """Count a wait for environments or agents."""
        self.words[self._row + _WAITS] += 1

    def set_memory(self, n_bytes: int) -> None:
        """Write the worker's private memory in bytes."""
        self.words[self._row + _MEMORY] = n_bytes

    def set_task(self, task: int) -> None:
        """Write the number of the current task, until a trajectory starts or a ticket ends."""
        self.words[self.trajectory_word] = -1 - task

    def set_phase(self, phase: Phase) -> None:
        """Write the current phase."""
        self.words[self.phase_word] = phase_number(phase)
