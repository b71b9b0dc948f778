"""Ask a policy for actions: of all environments' agents, of a single environment's, or of a single agent's.

Policies with ``row_independent = True`` are asked across environments: each agent of each environment has its own row,
whoever acts. So batches have a constant size, and a row is a function of trajectory index and agent. Silent rows copy
another row's observation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.base import (
    Agent,
    acts_alone,
    give_spaces,
    is_row_independent,
    mask_argument,
    reset_agent_function,
    row_keywords,
)
from streamsampler.agents.draws import Draws, RowDraws
from streamsampler.agents.filters import FilterParameters
from streamsampler.agents.masks import ACTION_MASKS, Mask, MaskFinder
from streamsampler.agents.updates import updated_agent
from streamsampler.core.awaiting import has_coroutines
from streamsampler.core.errors import UsageError
from streamsampler.core.seeding import seed_of_agent
from streamsampler.core.serialization import dumps, loads
from streamsampler.data.spaces import same_spaces
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.workers.finishing import give_memory, is_restorable, memory_of, with_filter
from streamsampler.workers.generators import preserved_generators
from streamsampler.workers.masks import Warn, masks_reach
from streamsampler.workers.restoring import own_copy
from streamsampler.workers.several.agent_slots import AgentSlot
from streamsampler.workers.vec.agents import probe_rows
from streamsampler.workers.vec.aligned_copies import AlignedCopies
from streamsampler.workers.vec.batch_infos import info_of_row
from streamsampler.workers.vec.rows import checked_results, stacked

_FIRST_ROOM = 8
"""The rows at first, where any number of agents may appear."""
_MULTIPLE = 16
"""The number of rows across environments is a multiple of this: in smaller batches, or in the rest of a matrix
product's blocks, a row's last bits may depend on its place.
"""
_AT_ONE_PLACE = frozenset(("slots", "starts"))
_OF_ROWS = frozenset(("draws", "seeds", "starts"))


class PolicyRows:
    """The rows of a policy's batches; a row is an agent of an environment.

    `starts` marks rows at their start; `is_new` says that no row has begun in the current trajectory.
    """

    def __init__(self, agent: Any, n_rows: int) -> None:
        self.agent, self.n_rows, self.is_new = agent, n_rows, True
        self.draws = Draws(n_rows)
        self.seeds = np.zeros(n_rows, dtype=np.int64)
        self.starts = np.zeros(n_rows, dtype=np.bool_)

    def make_room(self, n_rows: int) -> None:
        """Make room for twice as many rows: any number of agents may appear."""
        if n_rows > self.n_rows:
            more = (0, 2 * n_rows - self.n_rows)
            self.n_rows = 2 * n_rows
            self.draws = self.draws.with_rows(self.n_rows)
            self.seeds, self.starts = np.pad(self.seeds, more), np.pad(self.starts, more)

    def begin(self, slots: Sequence[AgentSlot], seeds: list[int]) -> None:
        prepared = self.draws.prepare(seeds)
        for position, (slot, own) in enumerate(zip(slots, seeds, strict=True)):
            self.draws.begin(slot.row, prepared, position)
            self.seeds[slot.row], self.starts[slot.row] = own, True

    def draws_of(self, numbers: NDArray[np.int64], acts: NDArray[np.bool_] | None) -> RowDraws:
        """Return the random numbers of the requested rows; only acting rows draw."""
        everybody = len(numbers) == self.n_rows
        if everybody or acts is not None:
            self.draws.only(None if everybody else acts)
            return self.draws
        return self.draws.of_rows(numbers)


class PolicyCall:
    """A policy call for some agents, repeated in each step while the same agents act.

    `row` is the environment's row, -1 for all; `numbers` are the agents' rows, `places` their places in the batch of
    `n_shown` rows.

    Attributes:
        policy: The policy.
        slots: The agents: of a single environment, or of all, if the policy is asked across environments.
        rows: The policy's rows; None if it is asked for a single agent at a time.
        acts: Marks acting rows, in batches of all rows; None otherwise.
        infos: The policy's last infos of all rows.
    """

    def __init__(self, policy: PolicyInPlay, slots: list[AgentSlot]) -> None:
        self.policy, self.slots = policy, slots
        place = slots[0].table.place
        self.row = -1 if policy.crosses else place
        self.rows = policy.rows_at(place) if policy.together else None
        self.numbers = np.array([slot.row for slot in slots])
        self.n_shown, self.places, self.acts = len(slots), list(range(len(slots))), None
        if self.rows is not None and policy.shows_all_rows:
            self.n_shown, self.places = self.rows.n_rows, self.numbers.tolist()
            self.acts = np.zeros(self.n_shown, np.bool_)
            self.acts[self.numbers] = True
        self.infos: dict[str, Any] = {}


class PolicyInPlay:
    """A policy in play: its agent, the copies of it, and the rows of its batches.

    Args:
        name: Its name.
        agent: Its agent.
        warn: See `MaskFinder`.
        across: Whether to ask it across environments, if its rows are independent.
        waits: See `PolicySet`: the agent itself then never plays, because copies are made of it while others play.

    Attributes:
        name: Its name.
        spaces: Observation and action space of its agents; None before it plays any.
        together: Whether it is asked for several agents in a call.
        crosses: Whether these are the agents of all environments.
        n_rows: The number of rows then.
        is_replaced: Whether its agent is newer than the unfinished episodes.
    """

    def __init__(self, name: str, agent: Agent, warn: Warn, *, across: bool = False, waits: bool = False) -> None:
        self.name, self._agent, self._warn, self._across, self._waits = name, agent, warn, across, waits
        self.together = self.crosses = self._takes_masks = False
        self.n_rows, self.is_replaced = 0, False
        self._envs: Sequence[MultiAgentEnv] = ()
        self._n_envs = 0
        self._ranks: dict[int, int] = {}
        self.spaces: tuple[Space[Any], Space[Any]] | None = None
        self._first = ""  # the first agent with these spaces
        self._copies: dict[tuple[int, int], Any] = {}
        self._rows: dict[int, PolicyRows] = {}  # by environment; across environments at place 0
        self._filter: Any = None
        self._fitting: set[str] = set()
        self._is_probed = False
        self._memory = AlignedCopies()

    def update(self, update: Any) -> None:
        """Replace the agent, or pass new parameters to it and its copies."""
        updated = updated_agent(self._agent, update, self.spaces)
        if updated is self._agent:
            for each in self._copies.values():
                if each is not updated:
                    updated_agent(each, update, None)
            self._probe()
            return
        self._agent, self._copies, self._is_probed, self.is_replaced = updated, {}, False, True
        if self._filter is not None and self.spaces is not None:
            self._apply_filter(self.spaces[0])
        self._look_at_agent()
        self._probe()

    def take_filter(self, given: Any) -> None:
        self._filter = given
        if self.spaces is not None:
            self._apply_filter(self.spaces[0])

    def _apply_filter(self, space: Any) -> None:
        filtered = with_filter(self._agent, self._filter, space)
        if filtered is self._agent:
            for each in self._copies.values():
                if each is not filtered:
                    each.set_param_values(FilterParameters(self._filter, space))
            return
        self._agent = filtered
        self._look_at_agent()

    def move_to(self, envs: Sequence[MultiAgentEnv], numbers: Collection[int], n_envs: int) -> None:
        """Play in other environments.

        `numbers` are those of the agents it may play, as far as known; its batches have rows for `n_envs` environments.
        """
        self._n_envs = n_envs
        self.spaces, self._copies, self._fitting = None, {}, set()
        self._envs, self._n_agents = envs, _FIRST_ROOM if envs[0].is_open else len(envs[0].numbers)
        self._ranks = {number: rank for rank, number in enumerate(numbers)}
        self._is_probed = False
        self._look_at_agent()

    def join(self, agent_id: str, env: MultiAgentEnv) -> None:
        """Prepare to play an agent of an environment; its spaces must be those of all agents of the policy."""
        if agent_id in self._fitting:
            return
        spaces = env.observation_space[agent_id], env.action_space[agent_id]
        if self.spaces is None:
            self._first, self.spaces = agent_id, spaces
            give_spaces(self._agent, *spaces)
            if self._filter is not None:
                self._apply_filter(spaces[0])
            self._probe()
        elif not same_spaces(self.spaces, spaces):
            raise differing_spaces(self.name, {self._first: self.spaces, agent_id: spaces})
        self._find_mask = MaskFinder(None, spaces[1], self._warn)
        self._fitting.add(agent_id)  # comparing spaces is slow

    def _probe(self) -> None:
        """Check a declared independence of rows, before any agent begins."""
        if self.crosses and not self._is_probed and self.spaces is not None:
            with preserved_generators():
                self._is_probed = probe_rows(self._agent, self.spaces, self.n_rows).conclusive

    def _look_at_agent(self) -> None:
        if not self._envs:
            return
        agent: Any = self._agent
        if has_coroutines(agent, "get_value"):
            raise UsageError(
                f"get_value of policy {self.name!r} is an async def, which is not awaited in environments of "
                "several agents: make it an ordinary method"
            )
        takes_turns, is_open = self._envs[0].takes_turns, self._envs[0].is_open
        self._reset = reset_agent_function(agent)
        get_actions: Any = getattr(agent, "get_actions", None)
        self._keywords = row_keywords(get_actions) if callable(get_actions) else set()
        # An agent with the keyword `starts` may have a memory by rows: then each call has all rows. If agents act in
        # turn, it would remember the turns of others; if any agents may appear, the number of rows is unknown.
        self._all_rows = bool(self._keywords & _AT_ONE_PLACE)
        remembers = self._reset is not None and not self._keywords & _OF_ROWS
        can_batch = (
            callable(get_actions)
            and not remembers
            and not (self._all_rows and (takes_turns or is_open))
            and mask_argument(getattr(agent, "reset", len)) is None
        )
        self.crosses = self._across and can_batch and not is_open and is_row_independent(agent)
        # A single agent leaves nothing to batch.
        self.together = can_batch and (self.crosses or self._n_agents > 1)
        self._takes_masks = masks_reach(agent, self._warn, together=self.together)
        self.n_rows = -(-self._n_envs * len(self._ranks) // _MULTIPLE) * _MULTIPLE if self.crosses else 0
        self._rows = {}

    def agent_of(self, slot: AgentSlot) -> Any:
        """Return the agent for a slot: the same for all if it has no memory."""
        if self.together:
            return self.rows_at(slot.table.place).agent
        return self._agent if self._reset is None else self._copy_for(slot.table.place, slot.number)

    def _copy_for(self, place: int, number: int) -> Any:
        if (place, number) not in self._copies:
            # The first is the agent itself, as with a single agent.
            is_copied = self._copies or self._waits
            self._copies[place, number] = loads(dumps(self._agent, "the agent")) if is_copied else self._agent
        return self._copies[place, number]

    @property
    def remembers(self) -> bool:
        return self._reset is not None or (self.together and self._all_rows)

    def discard_place(self, place: int) -> None:
        """Discard the state and copies of an environment."""
        self._rows.pop(place, None)
        for key in [key for key in self._copies if key[0] == place]:
            del self._copies[key]

    def rows_at(self, place: int) -> PolicyRows:
        """Return the rows of an environment's batches."""
        place = 0 if self.crosses else place
        if place not in self._rows:
            remembers = not self.crosses and (self._reset is not None or self._all_rows)
            agent = self._copy_for(place, 0) if remembers else self._agent
            self._rows[place] = PolicyRows(agent, self.n_rows or self._n_agents)
        return self._rows[place]

    def row_of(self, place: int, number: int) -> int:
        """Return an agent's row in batches across environments."""
        return place * len(self._ranks) + self._ranks[number]

    def begin_trajectory(self, place: int) -> None:
        if not self.crosses and (rows := self._rows.get(place)) is not None:
            rows.is_new = True

    def begin(self, slots: Sequence[AgentSlot], seed: int) -> None:
        """Begin the trajectories of agents of an environment; `seed` is its trajectory's seed for agents."""
        seeds = [seed_of_agent(seed, slot.number) for slot in slots]
        if self.together:
            self._begin_together(slots, seeds)
            return
        for slot, own in zip(slots, seeds, strict=True):
            agent = self.agent_of(slot)
            slot.get_action = getattr(agent, "get_action", None)
            if not acts_alone(agent):
                raise UsageError(
                    f"policy {self.name!r} has get_actions alone, but is asked for one agent at a time, because it has "
                    "a memory, or because there is only one agent: give it get_action, too"
                )
            if self._takes_masks:
                slot.get_action = slot.masked(self._find_mask, agent.get_action)
            if (reset := reset_agent_function(agent)) is not None:
                reset(own)

    def _begin_together(self, slots: Sequence[AgentSlot], seeds: list[int]) -> None:
        rows = self.rows_at(slots[0].table.place)
        if self.crosses:
            for slot in slots:
                slot.row = self.row_of(slot.table.place, slot.number)
        else:
            rows.make_room(1 + max(slot.number for slot in slots))
            if rows.is_new:
                rows.is_new, rows.draws = False, Draws(rows.n_rows)
                if (reset := reset_agent_function(rows.agent)) is not None:
                    reset(seeds[0])
        rows.begin(slots, seeds)

    def begin_part(self) -> None:
        """Let the agents record their memory, before all continue in another fragment."""
        for agent in {id(each): each for each in (self._agent, *self._copies.values())}.values():
            if callable(begin := getattr(agent, "begin_part", None)):
                begin()

    @property
    def is_restorable(self) -> bool:
        return is_restorable(self._agent, by_rows=self.together)

    def get_state(self) -> Any:
        copies = {key: memory_of(agent) for key, agent in self._copies.items()}
        rows = {
            place: (it.draws, it.seeds, it.starts, it.is_new, memory_of(it.agent)) for place, it in self._rows.items()
        }
        return copies, rows

    def set_state(self, state: Any) -> None:
        copies, rows = state
        for (place, number), memory in copies.items():
            give_memory(self._copy_for(place, number), memory)
        for place, (draws, seeds, starts, is_new, memory) in rows.items():
            mine = self.rows_at(place)
            mine.draws, mine.seeds, mine.starts, mine.is_new = draws, seeds, starts, is_new
            mine.n_rows = len(seeds)
            give_memory(mine.agent, memory)

    @property
    def can_wait(self) -> bool:
        """Whether it may be called while some environments wait: an agent that gets all rows may remember them."""
        return not (self.crosses and self._all_rows)

    @property
    def shows_all_rows(self) -> bool:
        """Whether batches include silent rows."""
        return self._all_rows or self.crosses

    def ask(self, asked: PolicyCall) -> None:
        self.take_rows(asked, self.ask_rows(asked))

    def ask_rows(self, asked: PolicyCall) -> Any:
        rows, slots, n_shown = asked.rows, asked.slots, asked.n_shown
        assert self.spaces is not None
        assert rows is not None
        if asked.acts is not None and "starts" in self._keywords:
            rows.starts |= ~asked.acts  # the memory of the other rows would go on
        keywords = self._values(asked, rows)
        if self._takes_masks:
            keywords[ACTION_MASKS] = self._masks(slots, asked.places, n_shown)
        return rows.agent.get_actions(self._batch(slots, asked.places, n_shown), **keywords)

    def take_rows(self, asked: PolicyCall, chosen: Any) -> None:
        """Set the agents' actions and infos from the result of `get_actions`."""
        rows, slots, n_shown = asked.rows, asked.slots, asked.n_shown
        assert self.spaces is not None
        assert rows is not None
        if "starts" in self._keywords:
            rows.starts[asked.numbers] = False
        singles, infos = checked_results(self.spaces[1], chosen, n_shown)
        asked.infos = infos
        for place, slot in zip(asked.places, slots, strict=True):
            slot.action = singles[place]
            slot.info = own_copy(info_of_row(infos, place)) if infos and not self.crosses else infos

    def _batch(self, slots: Sequence[AgentSlot], places: Sequence[int], n_shown: int) -> Any:
        """Return the agents' observations, tree of (n_shown, ...); other places copy the first agent's."""
        assert self.spaces is not None
        first = slots[0].recorder
        if self.crosses and first.encoded_observations is not None:
            encoded = [first.encoded_observations[-1]] * n_shown
            for place, slot in zip(places, slots, strict=True):
                encoded[place] = slot.recorder.encoded_observations[-1]
            shape = (n_shown, *first.observation_shape)
            return self._memory.copy(np.ndarray(shape, first.observation_dtype, b"".join(encoded)))
        shown = [slots[0].observation] * n_shown
        for place, slot in zip(places, slots, strict=True):
            shown[place] = slot.observation
        batch = stacked(self.spaces[0], shown)
        return self._memory.copy(batch) if self.crosses else batch

    def _masks(self, slots: Sequence[AgentSlot], places: Sequence[int], n_shown: int) -> Mask | None:
        masks = [slot.mask_of(self._find_mask) for slot in slots]
        if self._find_mask.size is None:
            return None
        shown = [masks[0]] * n_shown
        for place, mask in zip(places, masks, strict=True):
            shown[place] = mask
        return np.stack(shown)  # type: ignore[arg-type]

    def _values(self, asked: PolicyCall, rows: PolicyRows) -> dict[str, Any]:
        values: dict[str, Any] = {}
        shown = asked.numbers if asked.acts is None else np.arange(rows.n_rows)
        if "draws" in self._keywords:
            values["draws"] = rows.draws_of(asked.numbers, asked.acts)
        for name, of_all in (("seeds", rows.seeds), ("starts", rows.starts)):
            if name in self._keywords:
                values[name] = of_all[shown].copy()
        if "slots" in self._keywords:
            values["slots"] = shown
        return values


def differing_spaces(name: str, spaces: Mapping[str, tuple[Any, Any]]) -> UsageError:
    """Return the error of a policy for two agents (`spaces` by agent) with different spaces."""
    first, second = spaces.values()
    return UsageError(
        f"policy {name!r} plays {' and '.join(map(repr, spaces))}, whose spaces differ: {first[0]} and {first[1]}, but "
        f"{second[0]} and {second[1]}. Assign them to different policies with policy_of="
    )
