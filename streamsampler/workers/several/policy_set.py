"""Assign the agents of environments to policies, and call each policy for the acting agents.

`PolicySet` owns the policies, and an `EnvAgents` for each environment, which has the interface of an agent for drivers
and hooks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamsampler.agents.base import is_agent
from streamsampler.agents.filters import FilterParameters
from streamsampler.agents.policies import SHARED, Policies, PolicyUpdates
from streamsampler.agents.updates import updated_agent
from streamsampler.core.awaiting import is_awaitable
from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import loads
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.workers.masks import Warn
from streamsampler.workers.restoring import own_copy
from streamsampler.workers.several.agent_slots import AgentSlot
from streamsampler.workers.several.policies import PolicyCall, PolicyInPlay


class EnvAgents:
    """The agents of an environment, each with its policy; it has the interface of an agent.

    `place` is the environment's number. With `waits`, policies may be awaited.

    Attributes:
        place: The same.
        acting: The acting agents, in the order of `MultiAgentEnv.numbers`.
        turn: See `set_acting`.
        shown: Their observations, by agent id.
        awaited: The last awaited policy's name, and its agent; None for several agents.
    """

    awaited: tuple[str, str | None] = ("", None)

    def __init__(self, players: PolicySet, env: MultiAgentEnv, place: int = 0, *, waits: bool = False) -> None:
        self._players, self._env, self.place = players, env, place
        self._numbers = env.numbers
        self._seats: dict[str, AgentSlot] = {}
        self._alone = [self]
        self._waits = waits
        self.shown: Mapping[str, Any] = {}
        self.set_acting([], None)

    @property
    def one_by_one(self) -> bool:
        return self._players.one_by_one

    def begin(self, index: int, seed: int) -> None:
        """Begin a trajectory with the agents after the reset; `seed` is the trajectory's seed for agents."""
        self._index, self._seed = index, seed
        self._seats = {}
        self._players.begin_trajectory(self.place)
        self._begin_for(self._env.env.agents)

    def begin_with(self, policy: PolicyInPlay) -> None:
        """Begin a policy in the middle of an episode."""
        if slots := [it for it in self._seats.values() if it.policy is policy and self._env.lists(it.agent_id)]:
            policy.begin(slots, self._seed)

    def _begin_for(self, agent_ids: Sequence[str]) -> None:
        new: dict[PolicyInPlay, list[AgentSlot]] = {}
        for agent_id in sorted((it for it in agent_ids if it in self._numbers), key=self._numbers.__getitem__):
            policy = self._players.policy_of(agent_id, self._index)
            policy.join(agent_id, self._env)
            slot = self._seats[agent_id] = AgentSlot(agent_id, self._numbers[agent_id], policy, self)
            new.setdefault(policy, []).append(slot)
        for policy, slots in new.items():
            policy.begin(slots, self._seed)

    def slot_of(self, agent_id: str) -> AgentSlot:
        """Return an agent's slot; a new agent begins now."""
        if agent_id not in self._seats:
            self._begin_for([agent_id])
        return self._seats[agent_id]

    def set_acting(self, slots: list[AgentSlot], turn: list[str] | None) -> None:
        """Set the acting agents.

        `turn` is the list from `MultiAgentEnv.turn`, if all its agents act: they act until it is another list object.
        """
        self.acting, self.turn = slots, turn

    def get_action(self, observations: Mapping[str, Any]) -> Any:
        self.shown = observations
        if self._waits:
            return self._get_awaited()
        self._players.choose(self._alone)
        return self.actions(), self.infos()

    @property
    def awaited_call(self) -> str:
        """The awaited call, for messages."""
        policy, agent_id = self.awaited
        of = f"of policy {policy!r}"
        return f"get_actions {of}" if agent_id is None else f"get_action {of} for agent {agent_id!r}"

    async def _get_awaited(self) -> tuple[dict[str, Any], dict[str, Any]]:
        await self._players.choose_awaited(self)
        return self.actions(), self.infos()

    def actions(self) -> dict[str, Any]:
        return {slot.agent_id: slot.action for slot in self.acting}

    def infos(self) -> dict[str, Any]:
        return {slot.agent_id: slot.own_info() for slot in self.acting}

    def infos_apart(self) -> dict[str, Any]:
        return {slot.agent_id: {} if slot.policy.crosses else slot.info for slot in self.acting}


def updated_players(
    players: PolicySet | None, update: Any, envs: Sequence[MultiAgentEnv], warn: Warn, **how: Any
) -> PolicySet:
    if players is not None and not is_agent(update):
        players.update(update)
        return players
    return PolicySet(updated_agent(None if players is None else players.given, update, None), envs, warn, **how)


class PolicySet:
    """The policies of the agents of environments.

    Args:
        given: `Policies`, or a single agent for all.
        envs: The environments, which have the same agents.
        warn: See `MaskFinder`.
        across: Whether policies are asked across environments.
        n_envs: The environments with rows in such batches; None for the number of `envs`.
        waits: Whether trajectories are in flight at the same time, at tables of `new_table`, and policies may be
            awaited.

    Attributes:
        given: The same.
        policies: The policies, by name.
        tables: The table of each environment.
        asked: The last requests to policies.
    """

    def __init__(
        self, given: Any, envs: Sequence[MultiAgentEnv], warn: Warn, *, across: bool = False, n_envs: int | None = None,
        waits: bool = False,
    ) -> None:  # fmt: skip
        self.given, self._n_envs, self._waits = given, n_envs, waits
        self._is_shared = not isinstance(given, Policies)
        self._chosen = Policies({SHARED: given}) if self._is_shared else given
        self.policies = {
            name: PolicyInPlay(name, agent, warn, across=across, waits=waits)
            for name, agent in self._chosen.agents.items()
        }
        self._applied: dict[str, tuple[Any, Any]] = {}
        self.move_to(envs)

    def plays_in(self, envs: Sequence[Any]) -> bool:
        return len(envs) == len(self._envs) and all(map(operator.is_, envs, self._envs))

    def move_to(self, envs: Sequence[MultiAgentEnv]) -> None:
        """Play in other environments, from the beginning of their trajectories."""
        self._envs = envs
        self.tables = [EnvAgents(self, env, place, waits=self._waits) for place, env in enumerate(envs)]
        self.asked: list[PolicyCall] = []
        self._grouped: list[list[AgentSlot]] = []
        for name, policy in self.policies.items():
            may_play = self._chosen.may_play(name, envs[0].numbers)
            policy.move_to(envs, [envs[0].numbers[it] for it in may_play], self._n_envs or len(envs))

    def new_table(self, env: MultiAgentEnv, place: int) -> EnvAgents:
        """Return a table for a further environment, and discard the policies' state at this place."""
        for policy in self.policies.values():
            policy.discard_place(place)
        return EnvAgents(self, env, place, waits=self._waits)

    def update(self, update: Any) -> None:
        self._grouped = []
        if isinstance(update, FilterParameters):
            given = update["filter"]
            for name, policy in self.policies.items():
                own = given.get(name) if isinstance(given, Mapping) else given
                if own is not None:
                    policy.take_filter(own)
        elif isinstance(update, PolicyUpdates):
            for name, payloads in update.items():
                self._update_policy(self.policies[name], *payloads)
        elif self._is_shared:
            self.policies[SHARED].update(update)
        else:
            raise UsageError(f"several policies take a dict of updates by policy name, got {update!r:.60}")

    @property
    def one_by_one(self) -> bool:
        return not any(policy.together for policy in self.policies.values())

    def _update_policy(self, policy: PolicyInPlay, agent: Any, parameters: Any, mark: bytes | None) -> None:
        """Apply changes since the last update: updates repeat those of earlier calls."""
        its_mark, before = self._applied.get(policy.name, (None, None))
        if agent is not None and mark != its_mark:
            policy.update(loads(agent))
            before = None
        if parameters is not None and parameters != before:
            policy.update(loads(parameters))
        self._applied[policy.name] = (mark, parameters)

    def begin_part(self, places: Sequence[int]) -> None:
        """Begin another fragment.

        Replaced policies begin in `places`, the environments in the middle of an episode.
        """
        for policy in self.policies.values():
            policy.begin_part()
            for place in places if policy.is_replaced else ():
                self.tables[place].begin_with(policy)
            policy.is_replaced = False

    @property
    def remember(self) -> bool:
        return all(policy.remembers for policy in self.policies.values())

    @property
    def are_restorable(self) -> bool:
        return all(policy.is_restorable for policy in self.policies.values())

    def get_state(self) -> Any:
        return {name: (self._mark_of(name), policy.get_state()) for name, policy in self.policies.items()}

    def set_state(self, state: Any) -> None:
        """Continue from a `get_state`; policies replaced since then begin again."""
        for name, (mark, of_policy) in state.items():
            self.policies[name].is_replaced = False  # all began with their environments
            if self._mark_of(name) in (None, mark):  # None also if a loaded sampler has the agent itself
                self.policies[name].set_state(of_policy)

    def _mark_of(self, name: str) -> Any:
        """Return the mark of a policy's new agent; None for the original agent."""
        return self._applied.get(name, (None, None))[0]

    def begin_trajectory(self, place: int) -> None:
        for policy in self.policies.values():
            policy.begin_trajectory(place)

    def policy_of(self, agent_id: str, index: int) -> PolicyInPlay:
        return self.policies[self._chosen.name_for(agent_id, index)]

    def choose(self, tables: Sequence[EnvAgents], set_trajectory: Callable[[int], None] | None = None) -> None:
        """Choose the actions of the acting agents at some tables: set `action` and `info` of their slots.

        `set_trajectory` receives each environment's place before its request, and -1 for all environments.
        """
        acting = [table.acting for table in tables]
        if len(acting) != len(self._grouped) or not all(map(operator.is_, acting, self._grouped)):
            self._group(acting)
        for asked in self.asked:
            if set_trajectory is not None:
                set_trajectory(asked.row)
            if asked.rows is not None:
                asked.policy.ask(asked)
                continue
            for slot in asked.slots:
                try:
                    chosen = slot.get_action(slot.observation)  # type: ignore[misc]
                except Exception as error:
                    error.add_note(f"(agent {slot.agent_id!r} was to act)")
                    raise
                _take_answer(slot, chosen)

    async def choose_awaited(self, table: EnvAgents) -> None:
        """Choose the actions at a table as `choose` does, and await policies one after the other.

        So policies with common random generators draw in the order of the agents.
        """
        self._group([table.acting])
        for asked in self.asked:
            if asked.rows is not None:
                table.awaited = asked.policy.name, None
                chosen = asked.policy.ask_rows(asked)
                asked.policy.take_rows(asked, await chosen if is_awaitable(chosen) else chosen)
                continue
            for slot in asked.slots:
                table.awaited = asked.policy.name, slot.agent_id
                try:
                    chosen = slot.get_action(slot.observation)  # type: ignore[misc]
                    if is_awaitable(chosen):
                        chosen = await chosen
                except Exception as error:
                    error.add_note(f"(agent {slot.agent_id!r} was to act)")
                    raise
                _take_answer(slot, chosen)

    def _group(self, acting: list[list[AgentSlot]]) -> None:
        groups: dict[tuple[PolicyInPlay, int], list[AgentSlot]] = {}
        for slots in acting:
            for slot in slots:
                groups.setdefault((slot.policy, -1 if slot.policy.crosses else slot.table.place), []).append(slot)
        self.asked = [PolicyCall(policy, slots) for (policy, _), slots in groups.items()]
        self._grouped = acting


def _take_answer(slot: AgentSlot, chosen: Any) -> None:
    if not isinstance(chosen, tuple | list) or len(chosen) != 2:
        raise wrong_answer(slot)
    slot.action, slot.info = map(own_copy, chosen)  # the next call may return the same arrays


def wrong_answer(slot: AgentSlot) -> UsageError:
    return UsageError(
        f"get_action of policy {slot.policy.name!r} must return (action, agent_info), with agent_info a dict "
        f"(agent {slot.agent_id!r} was to act)"
    )
