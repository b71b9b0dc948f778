"""Asking an agent for the actions of several environments at once."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.agent_updates import apply_agent_update
from streamsampler.agents import Agent, as_agent, reset_agent_function
from streamsampler.errors import UsageError
from streamsampler.protocol import Phase
from streamsampler.serialization import dumps, loads
from streamsampler.trees import Tree, snapshot
from streamsampler.workers.base import Worker
from streamsampler.workers.batch_recording import BatchRecorder
from streamsampler.workers.batch_rows import copied, row_of

__all__ = ["AgentPool", "BatchedAgent", "Rows"]

_LOG = logging.getLogger("streamsampler")
# An enum's member costs 100 ns to look up on Python 3.11.
_ACTION, _RECORDING = Phase.ACTION, Phase.RECORDING


@dataclass(slots=True)
class Rows:
    """The rows of one batched step.

    Attributes:
        first: The number of the first row, counted over the ticket.
        observations: (n, ...) arrays that are the agent's to change.
        slots: (n,) the slot of each row.
        begun: The step of the block in which the trajectory of each row began, n integers.
        step: This step of the block.
    """

    first: int
    observations: Tree
    slots: NDArray[np.int64]
    begun: Sequence[int] | NDArray[np.int64]
    step: int


class BatchedAgent(ABC):
    """What chooses and records the actions of a batch.

    Attributes:
        row: The row in hand, for error messages; -1 for all of them.
        by_slot: Whether it wants to be told of each trajectory's beginning.
    """

    row = -1
    by_slot = False

    def begin_block(self, seed: int) -> None:  # noqa: B027 - most agents need not know
        """Take note that a block begins.

        Args:
            seed: The block's seed for the agent.
        """

    def begin_trajectory(self, slot: int, seed: int) -> None:  # noqa: B027 - most agents need not know
        """Take note that a slot begins a trajectory.

        Args:
            slot: The slot.
            seed: The trajectory's seed for its agent.
        """

    @abstractmethod
    def choose(self, rows: Rows, recorder: BatchRecorder, worker: Worker) -> tuple[Tree | None, list[Any]]:
        """Choose the actions of some rows, and record them with their infos.

        Args:
            rows: The rows.
            recorder: Where they are recorded.
            worker: Told about the phase.

        Returns:
            The actions as they were recorded, where there is a batch of them, and the single actions.
        """


class _Together(BatchedAgent):
    """An agent with `get_actions`."""

    def __init__(self, agent: Any) -> None:
        self._get_actions = agent.get_actions
        self._reset = reset_agent_function(agent)
        names = _keywords(self._get_actions)
        self._wants_slots, self._wants_starts = "slots" in names, "starts" in names
        self._plain = not names

    def begin_block(self, seed: int) -> None:
        if self._reset is not None:
            self._reset(seed)

    def choose(self, rows: Rows, recorder: BatchRecorder, worker: Worker) -> tuple[Tree | None, list[Any]]:
        worker.phase = _ACTION
        if self._plain:
            chosen = self._get_actions(rows.observations)
        else:
            keywords: dict[str, Any] = {}
            if self._wants_slots:
                keywords["slots"] = rows.slots.copy()
            if self._wants_starts:
                keywords["starts"] = np.array(rows.begun) == rows.step
            chosen = self._get_actions(rows.observations, **keywords)
        # A tuple and nothing else: an array of two rows unpacks just as well.
        if not isinstance(chosen, tuple) or len(chosen) != 2 or not isinstance(chosen[1], dict):
            raise UsageError("get_actions must return a tuple (actions, agent_infos), with agent_infos a dict")
        worker.phase = _RECORDING
        n_rows = len(rows.slots)
        # Environments get a copy: they may keep or change it, and the agent may use its array again.
        actions, singles = recorder.actions.take(copied(chosen[0]), n_rows)
        if chosen[1]:
            recorder.agent_infos.record(np.arange(rows.first, rows.first + n_rows), chosen[1])
        return actions, singles


class _OneByOne(BatchedAgent):
    """An agent without `get_actions`; one for all slots, or a copy for each where it keeps state."""

    def __init__(self, agents: list[Agent]) -> None:
        self._get_action = [agent.get_action for agent in agents]
        self._reset = [reset_agent_function(agent) for agent in agents]
        self.by_slot = any(self._reset)

    def begin_trajectory(self, slot: int, seed: int) -> None:
        reset = self._reset[slot % len(self._reset)]
        if reset is not None:
            reset(seed)

    def choose(self, rows: Rows, recorder: BatchRecorder, worker: Worker) -> tuple[Tree | None, list[Any]]:
        record, record_info = recorder.actions.record, recorder.record_agent_info
        words, timesteps_word, watched = worker.row.words, worker.row.timesteps_word, worker.row.attention
        singles = []
        for row, slot in enumerate(rows.slots.tolist()):
            self.row = row
            worker.phase = _ACTION
            if watched:
                words[timesteps_word] = rows.first + row
            chosen = self._get_action[slot % len(self._get_action)](row_of(rows.observations, row))
            if not isinstance(chosen, tuple | list) or len(chosen) != 2:
                raise UsageError("get_action must return (action, agent_info), with agent_info a dict")
            worker.phase = _RECORDING
            action, info = chosen
            record(action)
            if info.__class__ is not dict or info:
                record_info(rows.first + row, info)
            singles.append(snapshot(action))  # the agent may use one array for all of them
        self.row = -1
        return None, singles


class AgentPool:
    """The agent, as many times as it is needed.

    Args:
        hint: Whether to say that an agent would be faster with `get_actions`.
    """

    def __init__(self, *, hint: bool) -> None:
        self._hint = hint
        self._agents: list[Agent] = []
        self._batched: tuple[int, BatchedAgent] | None = None

    @property
    def empty(self) -> bool:
        """Whether there is no agent yet."""
        return not self._agents

    def update(self, agent_update: Any, n_slots: int) -> None:
        """Replace the agent, or hand it new parameters; see `agent_updates.apply_agent_update`.

        Args:
            agent_update: The update.
            n_slots: How many agents may be needed.
        """
        self._batched = None
        if self._agents:
            updated = apply_agent_update(self._agents[0], agent_update)
            if updated is self._agents[0]:
                for agent in self._agents[1:]:
                    apply_agent_update(agent, agent_update)
            else:
                self._agents = [updated]
        else:
            self._agents = [as_agent(agent_update)]
        self.batched(n_slots)

    def batched(self, n_slots: int) -> BatchedAgent:
        """The agent for so many slots."""
        if self._batched is None or self._batched[0] != n_slots:
            self._batched = n_slots, self._make(n_slots)
        return self._batched[1]

    def _make(self, n_slots: int) -> BatchedAgent:
        agent = self._agents[0]
        if callable(getattr(agent, "get_actions", None)):
            return _Together(agent)
        if self._hint:
            self._hint = False
            _LOG.warning(
                "VecWorker: the agent (%s) has no get_actions(observations), so it is asked for one action at a time. "
                "With get_actions it would be asked once for all environments.", type(agent).__qualname__,
            )  # fmt: skip
        if reset_agent_function(agent) is not None and len(self._agents) < n_slots:
            pickled = dumps(agent, "the agent")
            self._agents += [loads(pickled) for _ in range(n_slots - len(self._agents))]
        return _OneByOne(self._agents)


def _keywords(function: Callable[..., Any]) -> set[str]:
    """Which of the keywords that a recurrent agent needs this function takes."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name in ("slots", "starts") if name in parameters and parameters[name].kind in kinds}
