"""Ask an agent for the actions of several environments at once."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.base import Agent, mask_argument, reset_agent_function, takes_seed
from streamsampler.agents.updates import apply_agent_update, updated_agent
from streamsampler.data.trees import Tree, snapshot, take
from streamsampler.errors import UsageError
from streamsampler.protocol.messages import Phase
from streamsampler.serialization import dumps, loads
from streamsampler.workers.base import Worker
from streamsampler.workers.vec.native_recorder import NativeRecorder
from streamsampler.workers.vec.recorder import BatchRecorder
from streamsampler.workers.vec.rows import copied, row_of

__all__ = ["AgentPool", "BatchedAgent", "Rows"]

_LOG = logging.getLogger("streamsampler")
# An enum's member costs 100 ns to look up on Python 3.11.
_ACTION, _RECORDING, _AGENT_RESET = Phase.ACTION, Phase.RECORDING, Phase.AGENT_RESET
_KEYWORDS = ("slots", "starts", "seeds")


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
        by_slot: Whether `begin_trajectory` is to be called.
    """

    row = -1
    by_slot = False

    def begin_block(self, seed: int) -> None:  # noqa: B027 - most agents do nothing then
        """Begin a block.

        Args:
            seed: The block's seed for the agent.
        """

    def begin_trajectory(self, slot: int, seed: int) -> None:  # noqa: B027 - most agents do nothing then
        """Begin a trajectory in a slot.

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
            worker: Shows the phase.

        Returns:
            The actions as they were recorded, where there is a batch of them, and the single actions.
        """

    @abstractmethod
    def act(self, rows: Rows, live: NDArray[np.bool_], recorder: NativeRecorder, worker: Worker) -> None:
        """Choose an action for each environment of a native vector environment, and record them with their infos.

        Args:
            rows: All rows.
            live: (n,) those that run a trajectory.
            recorder: Where they are recorded.
            worker: Shows the phase.
        """


class _Together(BatchedAgent):
    """An agent with `get_actions`."""

    def __init__(self, agent: Any) -> None:
        self._get_actions = agent.get_actions
        self._reset = reset_agent_function(agent)
        names = _keywords(self._get_actions)
        self._wants_slots, self._wants_starts, self._wants_seeds = (name in names for name in _KEYWORDS)
        self._plain = not names
        self._seeds: dict[int, int] = {}  # by slot
        self.by_slot = self._wants_seeds

    def begin_block(self, seed: int) -> None:
        if self._reset is not None:
            self._reset(seed)

    def begin_trajectory(self, slot: int, seed: int) -> None:
        self._seeds[slot] = seed

    def choose(self, rows: Rows, recorder: BatchRecorder, worker: Worker) -> tuple[Tree | None, list[Any]]:
        worker.phase = _ACTION
        if self._plain:
            chosen = self._asked(rows.observations, {})
        else:
            keywords: dict[str, Any] = {}
            if self._wants_slots:
                keywords["slots"] = rows.slots.copy()
            if self._wants_starts:
                keywords["starts"] = np.array(rows.begun) == rows.step
            if self._wants_seeds:
                keywords["seeds"] = np.array([self._seeds[slot] for slot in rows.slots.tolist()])
            chosen = self._asked(rows.observations, keywords)
        worker.phase = _RECORDING
        n_rows = len(rows.slots)
        # Environments get a copy: they may keep or change it, and the agent may use its array again.
        actions, singles = recorder.actions.take(copied(chosen[0]), n_rows)
        if chosen[1]:
            recorder.agent_infos.record(np.arange(rows.first, rows.first + n_rows), chosen[1])
        return actions, singles

    def act(self, rows: Rows, live: NDArray[np.bool_], recorder: NativeRecorder, worker: Worker) -> None:
        del live
        worker.phase = _ACTION
        actions, infos = self._asked_all(rows)
        worker.phase = _RECORDING
        recorder.actions.append(actions)
        if infos:
            recorder.agent_infos.record(rows.first + rows.slots, infos)

    def _asked_all(self, rows: Rows) -> tuple[Any, dict[str, Any]]:
        if self._plain:
            return self._asked(rows.observations, {})
        keywords: dict[str, Any] = {}
        if self._wants_slots:
            keywords["slots"] = rows.slots.copy()
        if self._wants_starts:
            keywords["starts"] = np.array(rows.begun) == rows.step
        if self._wants_seeds:
            first = next(iter(self._seeds.values()))  # for those that have never begun a trajectory
            keywords["seeds"] = np.array([self._seeds.get(slot, first) for slot in rows.slots.tolist()])
        return self._asked(rows.observations, keywords)

    def _asked(self, observations: Tree, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        chosen = self._get_actions(observations, **keywords)
        # A tuple and nothing else: an array of two rows unpacks just as well.
        if not isinstance(chosen, tuple) or len(chosen) != 2 or not isinstance(chosen[1], dict):
            raise UsageError("get_actions must return a tuple (actions, agent_infos), with agent_infos a dict")
        return chosen


class _ByMask(_Together):
    """An agent with `get_actions` and a memory by rows, whose `reset` takes a mask of those that begin a trajectory.

    Its rows are always those that the block began with: only then does the memory of each belong to one slot.
    """

    by_slot = True

    def __init__(self, agent: Any, mask_name: str) -> None:
        super().__init__(agent)
        self.by_slot = True
        self._reset_rows = agent.reset
        self._mask_name = mask_name
        self._takes_seed = takes_seed(agent.reset)
        self._begun: dict[int, int] = {}  # seeds, by the slots that begin a trajectory with the next step
        self._n_rows = 0

    def begin_block(self, seed: int) -> None:
        del seed  # rows are reset with the first trajectory's
        self._begun.clear()
        self._n_rows = 0

    def begin_trajectory(self, slot: int, seed: int) -> None:
        super().begin_trajectory(slot, seed)
        self._begun[slot] = seed

    def choose(self, rows: Rows, recorder: BatchRecorder, worker: Worker) -> tuple[Tree | None, list[Any]]:
        if self._begun:
            worker.phase = _AGENT_RESET
            self._reset_those_that_begin()
        worker.phase = _ACTION
        n_rows = self._n_rows
        row_of_slot = np.zeros(n_rows, dtype=np.int64)  # those that are silent get the first row's observation
        row_of_slot[rows.slots] = np.arange(len(rows.slots))
        keywords: dict[str, Any] = {}
        if self._wants_slots:
            keywords["slots"] = np.arange(n_rows)
        if self._wants_seeds:
            keywords["seeds"] = np.array([self._seeds[slot] for slot in range(n_rows)])
        actions, infos = self._asked(take(rows.observations, row_of_slot), keywords)
        worker.phase = _RECORDING
        if len(rows.slots) < n_rows:
            actions = take(recorder.actions.checked(actions, n_rows), rows.slots)
        recorded, singles = recorder.actions.take(copied(actions), len(rows.slots))
        if infos:
            recorder.agent_infos.record(np.arange(rows.first, rows.first + len(rows.slots)), infos, rows.slots)
        return recorded, singles

    def _asked_all(self, rows: Rows) -> tuple[Any, dict[str, Any]]:
        if self._begun:
            if not self._n_rows:
                first = self._begun[min(self._begun)]
                self._begun = {slot: self._begun.get(slot, first) for slot in rows.slots.tolist()}
            self._reset_those_that_begin()
        return super()._asked_all(rows)

    def _reset_those_that_begin(self) -> None:
        if not self._n_rows:
            self._n_rows = len(self._begun)
            self._seeds = dict(self._begun)
        mask = np.zeros(self._n_rows, dtype=np.bool_)
        mask[list(self._begun)] = True
        arguments: dict[str, Any] = {self._mask_name: mask}
        if self._takes_seed:
            arguments["seed"] = self._begun[min(self._begun)]
        self._begun.clear()
        self._reset_rows(**arguments)


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

    def act(self, rows: Rows, live: NDArray[np.bool_], recorder: NativeRecorder, worker: Worker) -> None:
        for row in np.flatnonzero(live).tolist():
            self.row = row
            worker.phase = _ACTION
            chosen = self._get_action[row % len(self._get_action)](row_of(rows.observations, row))
            if not isinstance(chosen, tuple | list) or len(chosen) != 2:
                raise UsageError("get_action must return (action, agent_info), with agent_info a dict")
            worker.phase = _RECORDING
            action, info = chosen
            recorder.actions.put(recorder.step, row, action)
            if info.__class__ is not dict or info:
                recorder.record_agent_info(rows.first + row, info)
        self.row = -1
        recorder.fill_actions(live)


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

    def update(self, agent_update: Any, n_slots: int, spaces: tuple[Space[Any], Space[Any]] | None) -> None:
        """Replace the agent, or hand it new parameters; see `agents.updates.apply_agent_update`.

        Args:
            agent_update: The update.
            n_slots: How many agents may be needed.
            spaces: The observation and action space of one environment, for a new agent; None where there
                is none yet.
        """
        self._batched = None
        old = self._agents[0] if self._agents else None
        updated = updated_agent(old, agent_update, spaces)
        if updated is old:
            for copy in self._agents[1:]:
                apply_agent_update(copy, agent_update)
        else:
            self._agents = [updated]
        self.batched(n_slots)

    def batched(self, n_slots: int) -> BatchedAgent:
        """Return the agent for so many slots."""
        if self._batched is None or self._batched[0] != n_slots:
            self._batched = n_slots, self._make(n_slots)
        return self._batched[1]

    def _make(self, n_slots: int) -> BatchedAgent:
        agent = self._agents[0]
        if callable(getattr(agent, "get_actions", None)):
            return self._asked_together(agent)
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

    def _asked_together(self, agent: Any) -> BatchedAgent:
        reset = getattr(agent, "reset", None)
        keywords = _keywords(agent.get_actions)
        if not callable(reset) or "starts" in keywords:
            return _Together(agent)
        mask_name = mask_argument(reset)
        if mask_name is not None:
            return _ByMask(agent, mask_name)
        if self._hint and not takes_seed(reset):
            self._hint = False
            _LOG.warning(
                "VecWorker: the agent (%s) has get_actions, and its reset() is called at the start of each block only, "
                "not of each trajectory. If it remembers anything, its actions are wrong: let get_actions take slots "
                "and starts, or reset the mask of slots that begin, reset(do_resets).", type(agent).__qualname__,
            )  # fmt: skip
        return _Together(agent)


def _keywords(function: Callable[..., Any]) -> set[str]:
    """Return which of the keywords that a recurrent agent needs a function takes."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name in _KEYWORDS if name in parameters and parameters[name].kind in kinds}
