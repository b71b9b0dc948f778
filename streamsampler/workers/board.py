"""The words that sampler and workers share outside their messages.

Each word has one writer, so none needs a lock: the sampler writes the oldest agent version still wanted, and for each
worker a flag that says to look at it; each worker writes its own progress. A word is eight aligned bytes, which a
reader sees either before or after a write, never in between.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from streamsampler.protocol.messages import NEVER_AGAIN, Phase

__all__ = ["Progress", "StatusBoard", "WorkerRow", "board_bytes"]

_WORD = 8
_ROW = 8  # words: one cache line each, so that workers do not slow each other down
_PHASES = tuple(Phase)

# Words of a worker's row.
_VERSION, _TIMESTEPS, _TRAJECTORY, _PHASE, _MEMORY, _ENDED, _FLAG = range(7)


def board_bytes(n_workers: int) -> int:
    """Return the size of a board: the sampler's row, then one row a worker."""
    return (1 + n_workers) * _ROW * _WORD


def phase_number(phase: Phase) -> int:
    """Return what stands for a phase on the board."""
    return _PHASES.index(phase)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker was last seen doing.

    Attributes:
        version: The agent version in hand.
        timesteps: Timesteps of the ticket in hand, so far.
        trajectory: Index of the trajectory in hand; None outside trajectories.
        phase: What it was doing.
    """

    version: int
    timesteps: int
    trajectory: int | None
    phase: Phase


class StatusBoard:
    """The sampler's view.

    Args:
        memory: `board_bytes(n_workers)` bytes, zeroed; shared with the workers where they are other processes.
    """

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("B").cast("q")
        n_workers = len(self._words) // _ROW - 1
        self._flags = range(_ROW + _FLAG, (1 + n_workers) * _ROW, _ROW)

    def want(self, version: int) -> None:
        """Make `version` the oldest one still wanted."""
        # The flags last: who sees one looks at the version.
        self._words[0] = version
        for flag in self._flags:
            self._words[flag] = 1

    def want_nothing(self) -> None:
        """Let every rollout be abandoned."""
        self.want(NEVER_AGAIN)

    def heed(self, worker: int) -> None:
        """Lower the flag of a worker that is idle, and about to be told of the version that is wanted now."""
        self._words[self._flags[worker]] = 0

    def watch(self, worker: int) -> None:
        """Ask a worker to write its progress in each timestep and each action, until its next start."""
        self._words[self._flags[worker]] = 1

    def clear(self, worker: int) -> None:
        """Forget the progress of a worker that is gone."""
        row = (1 + worker) * _ROW
        for word in range(row, row + _FLAG):
            self._words[word] = 0

    def progress(self, worker: int) -> Progress:
        """Return what `worker` was last seen doing."""
        row = (1 + worker) * _ROW
        version, timesteps, trajectory, phase = self._words[row : row + 4].tolist()
        return Progress(version, timesteps, trajectory - 1 if trajectory else None, _PHASES[phase])

    def ran(self, worker: int) -> int:
        """Return how many timesteps `worker` has run since it was started, as far as it has shown them."""
        row = (1 + worker) * _ROW
        ran: int = self._words[row + _ENDED] + self._words[row + _TIMESTEPS]
        return ran

    def memory(self, worker: int) -> int:
        """Return the bytes of private memory that `worker` had when it last wrote them; 0 before."""
        memory: int = self._words[(1 + worker) * _ROW + _MEMORY]
        return memory

    def row(self, worker: int) -> WorkerRow:
        """Return the view of one worker."""
        return WorkerRow(self._words, worker)

    def release(self) -> None:
        """Let go of the memory."""
        self._words.release()


class WorkerRow:
    """One worker's view: it reads what is still wanted and writes its progress.

    A rollout loop that cannot afford calls uses `words[timesteps_word]` and `words[phase_word]` with `phase_number`
    directly, each some 40 ns.

    Attributes:
        attention: True, as a condition, when something may have changed since the last start: then ask `wanted`, and
            write the timesteps. (The truth of a ctypes number is the quickest look at shared memory that Python has:
            15 ns. An item of a memoryview takes three times as long, and in a loop of much other code ten times.)
        words: All words; words[0] is the oldest version still wanted.
    """

    def __init__(self, words: memoryview, worker: int) -> None:
        self.words = words
        self._row = (1 + worker) * _ROW
        self.attention = ctypes.c_int64.from_buffer(words[self._row + _FLAG :])
        self.timesteps_word = self._row + _TIMESTEPS
        self.phase_word = self._row + _PHASE
        self.trajectory_word = self._row + _TRAJECTORY

    def wanted(self, version: int) -> bool:
        """Whether `version` is still wanted."""
        wanted: int = self.words[0]
        return wanted <= version

    def begin_ticket(self, version: int) -> None:
        """Write that a ticket of `version` is in hand."""
        self.words[self.timesteps_word] = 0
        self.words[self._row + _VERSION] = version

    def begin_trajectory(self, index: int) -> None:
        """Write that trajectory `index` is in hand."""
        self.words[self.trajectory_word] = index + 1

    def end_ticket(self, n_timesteps: int) -> None:
        """Write that no trajectory is in hand, and how many timesteps the ticket took that was."""
        self.words[self.timesteps_word] = 0
        self.words[self.trajectory_word] = 0
        self.words[self._row + _ENDED] += n_timesteps

    def memory(self, n_bytes: int) -> None:
        """Write how much private memory the worker has."""
        self.words[self._row + _MEMORY] = n_bytes

    def phase(self, phase: Phase) -> None:
        """Write what the worker is doing."""
        self.words[self.phase_word] = phase_number(phase)
