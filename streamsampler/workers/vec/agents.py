"""Ask an agent for the actions of several environments in a single call.

`BatchedAgent` hides the agent's form (`get_actions`, or only `get_action`) from drivers. It holds the seeds of each
row's trajectory; the agent itself holds memory and parameters.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.base import (
    Agent,
    is_row_independent,
    mask_argument,
    reset_agent_function,
    row_keywords,
    takes_masks,
    takes_seed,
)
from streamsampler.agents.draws import Draws
from streamsampler.agents.independence import Independence, probe
from streamsampler.agents.masks import ACTION_MASK, ACTION_MASKS, mask_size
from streamsampler.agents.updates import apply_agent_update, updated_agent
from streamsampler.core.errors import UsageError
from streamsampler.core.seeding import SeedUse, derived_seed, derived_seeds
from streamsampler.core.serialization import dumps, loads
from streamsampler.data.trees import Tree, snapshot
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import Worker
from streamsampler.workers.finishing import give_memory, is_restorable, memory_of, value_by_row, value_of
from streamsampler.workers.vec.columns import Columns
from streamsampler.workers.vec.rows import checked_result, row_of

_LOG = logging.getLogger("streamsampler")
# An enum's member costs 100 ns to look up on Python 3.11.
_ACTION, _RECORDING, _AGENT_RESET = Phase.ACTION, Phase.RECORDING, Phase.AGENT_RESET
_NONE: dict[str, Any] = {}


class BatchedAgent(ABC):
    """Chooses the actions of n rows; rows without a trajectory are silent.

    Attributes:
        row: The current row, for error messages; -1 for all rows.
        one_by_one: Whether `choose` needs the numbers of the live rows.
        can_wait: Whether `choose` may be called for some rows while other rows' trajectories wait.
        draws: The random numbers of rows; waiting rows must not draw (`Draws.only`).
        has_values: Whether `value_of` may return a value, by the last infos of the agent.
        agents: The agents; row r has agent number `r % len(agents)`.
        takes_masks: Whether `choose` needs masks.
    """

    agents: Sequence[Agent]
    row = -1
    one_by_one = can_wait = has_values = takes_masks = False
    draws: Draws | None = None

    def begin_block(self, seed: int) -> None:  # noqa: B027 - most agents do nothing then
        """Reset all rows for a block: its results must not depend on earlier blocks."""

    def prepare(self, seeds: list[int]) -> Any:
        """Return an argument for `begin`, computed for many trajectories at once; None if `begin` is not needed."""
        del seeds

    def begin(self, row: int, prepared: Any, position: int) -> None:  # noqa: B027 - most agents do nothing then
        """Begin a trajectory in a row; its seed was number `position` of those given to `prepare`."""

    @abstractmethod
    def get_state(self) -> Any:
        """Return memory and random generators of all rows; None if the agent cannot."""

    @abstractmethod
    def set_state(self, state: Any) -> None: ...

    def begin_part(self) -> None:
        """Let the agent record its memory, before all rows continue in another fragment."""
        for agent in self.agents:
            if callable(begin := getattr(agent, "begin_part", None)):
                begin()

    def value_of(self, row: int, observation: Any) -> float | None:
        """Return the value of a row's last observation, while the agent remembers the row.

        The value is None for an agent without values.
        """
        if (get_value := self._get_value(row)) is None:
            return None
        self.row = row
        value = value_of(get_value, observation)
        self.row = -1
        return value

    @abstractmethod
    def _get_value(self, row: int) -> Callable[[Any], Any] | None:
        """Return a function from an observation to its value, given the memory of the row; see `value_of`."""

    @abstractmethod
    def choose(
        self, observations: Tree, live: Sequence[int], worker: Worker, record_info: Callable[[int, Any], None],
        masks: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
        """Return the actions of n rows, as a batch or a sequence, and infos of all rows together, in arrays of n.

        Args:
            observations: (n, ...) arrays, which the agent may change.
            live: The rows with a trajectory. All others have a copy of a live row's observation.
            worker: Shows the phase.
            record_info: Receives a row and its info, from agents with an info for each row.
            masks: (n, k) allowed actions, for agents that take masks; None where the space has no masks.
        """


class _Together(BatchedAgent):
    """An agent with `get_actions`; rows from n_envs on are padding."""

    def __init__(self, agent: Any, n_rows: int, n_envs: int) -> None:
        self._agent, self.agents = agent, [agent]
        self._get_actions = agent.get_actions
        self._reset = reset_agent_function(agent)
        self._n_rows, self._n_envs = n_rows, n_envs
        self._keywords = row_keywords(self._get_actions)
        self.takes_masks = takes_masks(agent, together=True)
        self._draw_from(Draws(n_rows))
        self._seeds = [0] * n_rows
        self._starts = np.arange(n_rows) < n_envs
        self._by_row = bool(self._keywords - {"slots"})
        self.can_wait = self._keywords <= {"draws", "seeds"}  # the agent remembers nothing between steps
        self._value_by_row = None if self.can_wait else value_by_row(agent)

    def _draw_from(self, draws: Draws) -> None:
        self._draws = self.draws = draws
        self._same = (
            {"draws": draws} if "draws" in self._keywords else _NONE
        )  # arguments that are the same in each step

    def begin_block(self, seed: int) -> None:
        seed = derived_seed(seed, SeedUse.AGENT)
        if self._reset is not None:
            self._reset(seed)
        self._draw_from(Draws(self._n_rows))
        self._seeds = [seed] * self._n_rows
        self._starts[:] = False

    def prepare(self, seeds: list[int]) -> Any:
        if not self._by_row:
            return None
        mine = derived_seeds(seeds, SeedUse.AGENT)
        return mine, self._draws.prepare(mine) if "draws" in self._keywords else None

    def get_state(self) -> Any:
        if not is_restorable(self._agent, by_rows=True):
            return None
        return self._draws, self._seeds, self._starts, memory_of(self._agent)

    def set_state(self, state: Any) -> None:
        draws, self._seeds, self._starts, of_agent = state
        self._draw_from(draws)
        give_memory(self._agent, of_agent)

    def begin(self, row: int, prepared: Any, position: int) -> None:
        seeds, drawn = prepared
        self._seeds[row] = seeds[position]
        self._starts[row] = True
        if drawn is not None:
            self._draws.begin(row, drawn, position)

    def choose(
        self, observations: Tree, live: Sequence[int], worker: Worker, record_info: Callable[[int, Any], None],
        masks: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
        del record_info  # infos come for all rows together
        if len(live) < self._n_envs and "starts" in self._keywords:
            # The memory of a silent row would grow for ever: no trajectory ends in it.
            silent = np.arange(self._n_rows) < self._n_envs
            silent[live] = False
            self._starts |= silent
        worker.phase = _ACTION
        given = {ACTION_MASKS: masks} if self.takes_masks else _NONE
        chosen = checked_result(self._get_actions(observations, **self._values(), **given))
        self.has_values = self._value_by_row is not None and "value" in chosen[1]
        return chosen

    def _get_value(self, row: int) -> Callable[[Any], Any] | None:
        return partial(self._value_by_row, slot=row) if self.has_values and self._value_by_row else None

    def _values(self) -> dict[str, Any]:
        wanted = self._keywords
        if len(wanted) == len(self._same):
            return self._same
        values = {**self._same}
        if "slots" in wanted:
            values["slots"] = np.arange(self._n_rows)
        if "starts" in wanted:
            values["starts"] = self._starts.copy()
        if "seeds" in wanted:
            values["seeds"] = np.array(self._seeds)
        self._starts[:] = False
        return values


class _ByMask(_Together):
    """An agent with `get_actions` and a memory by rows; its `reset` takes a mask of the rows that begin."""

    def __init__(self, agent: Any, n_rows: int, n_envs: int, mask_name: str) -> None:
        super().__init__(agent, n_rows, n_envs)
        self.can_wait = False
        self._keywords -= {"starts"}
        self._reset_rows = agent.reset
        self._mask_name = mask_name
        self._takes_seed = takes_seed(agent.reset)
        self._by_row = True
        self._new = True  # whether the agent has yet to learn the number of rows

    def begin_block(self, seed: int) -> None:
        self._reset = None  # the first step resets the rows
        super().begin_block(seed)
        self._new = True

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self._reset, self._new = None, False

    def choose(
        self, observations: Tree, live: Sequence[int], worker: Worker, record_info: Callable[[int, Any], None],
        masks: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
        if self._new or self._starts.any():
            worker.phase = _AGENT_RESET
            self._reset_those_that_begin()
        return super().choose(observations, live, worker, record_info, masks)

    def _reset_those_that_begin(self) -> None:
        rows = np.flatnonzero(self._starts)
        masks = [np.ones(self._n_rows, dtype=np.bool_)] if self._new else []
        if self._takes_seed:
            # Each row has a seed of its own, so each call resets a single row.
            masks += [np.arange(self._n_rows) == row for row in rows]
        elif not self._new:
            masks = [self._starts.copy()]
        for mask in masks:
            seed = {"seed": self._seeds[int(mask.argmax())]} if self._takes_seed else {}
            self._reset_rows(**{self._mask_name: mask}, **seed)
        self._new = False
        self._starts[:] = False


class _OneByOne(BatchedAgent):
    """An agent without `get_actions`; each row has a copy if the agent keeps state."""

    one_by_one = can_wait = True

    def __init__(self, agents: list[Agent], n_rows: int) -> None:
        self._n_rows = n_rows
        self._agents = self.agents = agents
        self._get_action = [agent.get_action for agent in agents]
        self.takes_masks = takes_masks(agents[0])
        self._reset = [reset_agent_function(agent) for agent in agents]
        # Agents that may have a memory: they were reset, or have no `reset`.
        self._begun = {number for number, reset in enumerate(self._reset) if reset is None}
        self._has_value = [False] * len(agents)

    def get_state(self) -> Any:
        agents = {number: self._agents[number] for number in sorted(self._begun)}
        if not all(map(is_restorable, agents.values())):
            return None
        return {number: memory_of(agent) for number, agent in agents.items()}

    def set_state(self, state: Any) -> None:
        self._begun = set(state)
        for number, of_agent in state.items():
            if (reset := self._reset[number]) is not None:
                reset(0)  # creates attributes that the memory overwrites
            give_memory(self._agents[number], of_agent)

    def prepare(self, seeds: list[int]) -> Any:
        return derived_seeds(seeds, SeedUse.AGENT) if any(self._reset) else None

    def begin(self, row: int, prepared: Any, position: int) -> None:
        number = row % len(self._reset)
        if (reset := self._reset[number]) is not None:
            self._begun.add(number)
            reset(prepared[position])

    def choose(
        self, observations: Tree, live: Sequence[int], worker: Worker, record_info: Callable[[int, Any], None],
        masks: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
        words, timesteps_word, watched = worker.row.words, worker.row.timesteps_word, worker.row.attention
        shown = words[timesteps_word]
        actions: dict[int, Any] = {}
        for row in live:
            self.row = row
            worker.phase = _ACTION
            if watched:
                words[timesteps_word] = shown + len(actions)
            given = {ACTION_MASK: None if masks is None else masks[row]} if self.takes_masks else _NONE
            chosen = self._get_action[row % len(self._get_action)](row_of(observations, row), **given)
            if not isinstance(chosen, tuple | list) or len(chosen) != 2:
                raise UsageError("get_action must return (action, agent_info), with agent_info a dict")
            worker.phase = _RECORDING
            action, info = chosen
            if info.__class__ is not dict or info:
                record_info(row, info)
                self._has_value[row % len(self._agents)] = "value" in info
                self.has_values = self.has_values or "value" in info
            actions[row] = snapshot(action)  # the agent may return the same array each time
        self.row = -1
        first = actions[live[0]]
        return [actions.get(row, first) for row in range(self._n_rows)], _NONE

    def _get_value(self, row: int) -> Callable[[Any], Any] | None:
        number = row % len(self._agents)
        is_asked = self._has_value[number] and self._reset[number] is not None
        return getattr(self._agents[number], "get_value", None) if is_asked else None


def probe_rows(agent: Any, spaces: tuple[Space[Any], Space[Any]], n_rows: int) -> Independence:
    if not callable(getattr(agent, "get_actions", None)):
        return Independence(conclusive=True, of_place=True)
    space = copy.deepcopy(spaces[0])
    space.seed(0)
    examples = Columns(space, n_rows, "observation")
    examples.append([space.sample() for _ in range(n_rows)])
    return probe(agent, examples.row_batch(0), n_rows, mask_size(spaces[1]))


class AgentPool:
    """The agent, and the copies and batched forms made of it.

    With `hint`, it logs how an agent would be faster with `get_actions`.
    """

    def __init__(self, *, hint: bool) -> None:
        self._hint = hint
        self._agents: list[Agent] = []
        self._batched: dict[tuple[int, int], BatchedAgent] = {}

    @property
    def row_independent(self) -> bool:
        return is_row_independent(self._agents[0])

    @property
    def asked_together(self) -> bool:
        return callable(getattr(self._agents[0], "get_actions", None))

    @property
    def first(self) -> Agent:
        return self._agents[0]

    def probe(self, spaces: tuple[Space[Any], Space[Any]], n_rows: int) -> Independence:
        return probe_rows(self._agents[0], spaces, n_rows)

    @property
    def empty(self) -> bool:
        return not self._agents

    def update(self, agent_update: Any, spaces: tuple[Space[Any], Space[Any]] | None) -> None:
        """Replace the agent, or pass it new parameters.

        A new agent gets the spaces of an environment, None before an environment exists.
        """
        self._batched = {}
        old = self._agents[0] if self._agents else None
        updated = updated_agent(old, agent_update, spaces)
        if updated is old:
            for another in self._agents[1:]:
                apply_agent_update(another, agent_update)
        else:
            self._agents = [updated]

    def batched(self, n_slots: int, n_envs: int | None = None) -> BatchedAgent:
        wanted = n_slots, n_slots if n_envs is None else n_envs
        if wanted not in self._batched:
            self._batched[wanted] = self._make(*wanted)
        return self._batched[wanted]

    def _make(self, n_slots: int, n_envs: int) -> BatchedAgent:
        agent = self._agents[0]
        if self.asked_together:
            return self._asked_together(agent, n_slots, n_envs)
        if self._hint:
            self._hint = False
            _LOG.warning(
                "VecWorker: the agent (%s) has no get_actions(observations), so get_action is called for each "
                "environment in each step. With get_actions, a single call would serve all environments.",
                type(agent).__qualname__,
            )
        if reset_agent_function(agent) is not None and len(self._agents) < n_slots:
            pickled = dumps(agent, "the agent")
            self._agents += [loads(pickled) for _ in range(n_slots - len(self._agents))]
        return _OneByOne(self._agents, n_slots)

    def _asked_together(self, agent: Any, n_rows: int, n_envs: int) -> BatchedAgent:
        reset = getattr(agent, "reset", None)
        keywords = row_keywords(agent.get_actions)
        if not callable(reset) or "starts" in keywords:
            return _Together(agent, n_rows, n_envs)
        mask_name = mask_argument(reset)
        if mask_name is not None:
            return _ByMask(agent, n_rows, n_envs, mask_name)
        if self._hint and not takes_seed(reset):
            self._hint = False
            _LOG.warning(
                "VecWorker: the agent (%s) has get_actions, but its reset() is called at the start of each block only, "
                "not of each trajectory. If it remembers anything, its actions are wrong: add the keywords slots and "
                "starts to get_actions, or the argument do_resets to reset, a mask of the slots.",
                type(agent).__qualname__,
            )
        return _Together(agent, n_rows, n_envs)
