"""A block of trajectories that are run together: which of them begins next, and how far they have come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamsampler.errors import DataError
from streamsampler.protocol.messages import Phase
from streamsampler.seeding import Stream, derived_seed
from streamsampler.workers.base import Worker
from streamsampler.workers.explain import row_at_fault
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.recorder import BatchRecorder

__all__ = ["Block", "BlockCursor", "Seconds", "explain_batch"]

_AGENT_RESET, _RECORDING = Phase.AGENT_RESET, Phase.RECORDING  # an enum's member costs 100 ns to look up on Python 3.11


@dataclass(frozen=True, slots=True)
class Block:
    """Trajectories that are run together.

    Attributes:
        version: Their agent version.
        first: The position of the first one in its ticket.
        indices: Their indices.
        seeds: Their seeds.
    """

    version: int
    first: int
    indices: range
    seeds: list[int]


@dataclass(slots=True)
class Seconds:
    """The seconds of resets, of the agent and of steps."""

    reset: float = 0.0
    agent: float = 0.0
    step: float = 0.0


class BlockCursor:
    """Assigns a block's trajectories to slots, and looks after each step whether the block goes on.

    Args:
        block: The block.
        agent: The agent, which may reset for each trajectory.
        recorder: Where trajectories are recorded.
        worker: Shows trajectory and phase.

    Attributes:
        block: The block.
        left: How many trajectories have not begun.
        next_position: The position in the ticket of the trajectory that begins next.
        seed: The seed of the trajectory that began last.
        abandoned: Whether the block ended because its version may no longer run.
    """

    def __init__(self, block: Block, agent: BatchedAgent, recorder: BatchRecorder, worker: Worker) -> None:
        self.block = block
        self.left = len(block.indices)
        self.next_position = block.first
        self.seed = block.seeds[0]
        self.abandoned = False
        self._agent, self._recorder, self._worker = agent, recorder, worker
        self._words, self._timesteps_word = worker.row.words, worker.row.timesteps_word
        self._version = block.version

    def index_at(self, position: int) -> int:
        """Return the index of the trajectory at a position in the ticket."""
        return self.block.indices[position - self.block.first]

    def seed_at(self, position: int) -> int:
        """Return the seed of the trajectory at a position in the ticket."""
        return self.block.seeds[position - self.block.first]

    def begin(self) -> int:
        """Begin the next trajectory: show it, and return its position in the ticket."""
        position, block = self.next_position, self.block
        self.next_position = position + 1
        self.left -= 1
        number = position - block.first
        self.seed = block.seeds[number]
        self._worker.trajectory = index = block.indices[number]
        self._worker.row.begin_trajectory(index)
        return position

    def begin_recording(self, slot: int, reset_info: Any) -> None:
        """Reset the agent for the trajectory that began last, and record the info of its environment's reset."""
        if self._agent.by_slot:
            self._worker.phase = _AGENT_RESET
            self._agent.begin_trajectory(slot, derived_seed(self.seed, Stream.AGENT))
        self._worker.phase = _RECORDING
        self._recorder.begin(reset_info)

    def end(self, position: int, length: int, last_observation: Any, terminated: bool, truncated: bool) -> None:
        """End a trajectory; see `BatchRecorder.end`."""
        self._worker.phase, self._worker.trajectory = _RECORDING, self.index_at(position)
        self._recorder.end(position, length, last_observation, terminated, truncated)

    def goes_on(self) -> bool:
        """Show the timesteps after a step, and return whether the version may still run."""
        self._words[self._timesteps_word] = len(self._recorder.rewards)
        self.abandoned = self._words[0] > self._version
        return not self.abandoned


def explain_batch(error: BaseException, worker: Worker, running: list[int]) -> None:
    """Take the first trajectory of a batch, or the one at fault, for the one in hand, and name them all in a note."""
    worker.phase = Phase.ACTION
    worker.trajectory = running[row_at_fault(error, 0)]
    if not isinstance(error, DataError) or error.row is None:
        error.add_note(f"get_actions had the observations of trajectories {', '.join(map(str, running))}")
