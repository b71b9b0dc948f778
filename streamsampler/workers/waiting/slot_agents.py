"""The agent of each slot: the agent itself, a copy, a share of its parameters, a stand-in for batches, or a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from streamsampler.agents.base import acts_alone, is_agent, reset_agent_function, shared_agent
from streamsampler.agents.updates import name_of, updated_agent
from streamsampler.core.errors import UsageError
from streamsampler.data.trees import as_constant
from streamsampler.environments.multi_agent import MultiAgentEnv, agents_of
from streamsampler.environments.updates import AnyEnv
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import Worker
from streamsampler.workers.fragments import InForce
from streamsampler.workers.masks import finder_of
from streamsampler.workers.recorders import recorder_for
from streamsampler.workers.several.policy_set import EnvAgents, PolicySet, updated_players
from streamsampler.workers.waiting.driver import TrajectorySetup
from streamsampler.workers.waiting.ready_rows import ReadyRows, refuse_rows_with_places

__all__ = ["Slot", "SlotAgents"]


@dataclass(slots=True, eq=False)
class Slot:
    """A place for a trajectory in flight.

    Attributes:
        number: Its number in the worker.
        setup: The setup of its trajectories.
        agent_mark: The version of its agent: `SlotAgents`' mark, or the updates of its own copy; None without an agent.
        is_spoiled: Whether to replace its environment, and its copy of the agent, before the next trajectory.
    """

    number: int
    setup: TrajectorySetup
    agent_mark: object = None
    is_spoiled: bool = False

    @property
    def env(self) -> AnyEnv:
        return cast("AnyEnv", self.setup.env.given)


class SlotAgents:
    """The agents of slots.

    An agent without memory is shared by all slots. An agent with memory has a share with the same parameters in each
    slot, if it can; otherwise a copy. An agent with `get_actions` only is asked for rows. With several agents, policies
    play at a table in each slot.

    Attributes:
        agent: The latest agent; None before.
        players: The policies of several agents; None for a single agent, or without environment.
    """

    def __init__(self, worker: Worker, most: int, ready_rows: ReadyRows) -> None:
        self._worker, self._most, self._ready_rows = worker, most, ready_rows
        self._env: AnyEnv | None = None
        self._loaded: dict[str, tuple[Any, Any]] = {}  # parameters and filters: the payload, and the loaded value
        self.agent: Any = None
        self.players: PolicySet | None = None
        self._copies = self._shares = self._asks_for_rows = False
        self._mark = object()  # of the current agent, for slots without copies

    def update(self, update: Any) -> None:
        """Replace the agent, or pass it new parameters."""
        if self.players is not None and not is_agent(update):
            self.players.update(update)  # at all tables
            return
        spaces = None if self._env is None or self._several is not None else self._worker.spaces
        agent = updated_agent(self.agent, update, spaces)
        if agent is not self.agent:
            self.agent, self.players = agent, None
        self._arrange()

    def play_in(self, env: AnyEnv) -> None:
        self._env = env
        self._arrange()

    @property
    def _several(self) -> MultiAgentEnv | None:
        return None if self._env is None else agents_of(self._env)

    def _arrange(self) -> None:
        """Choose the kind of agent for slots, once environment and agent exist.

        The new mark seats all slots again: so an update need not reach existing shares.
        """
        if self._env is None or self.agent is None:
            return
        self._mark = object()
        self._copies = self._shares = self._asks_for_rows = False
        if (several := self._several) is not None:
            if self.players is None:
                self.players = PolicySet(self.agent, [several], self._worker.warn_once, waits=True)
            else:
                self.players.move_to([several])
            return
        self.players = None
        if not acts_alone(self.agent):
            refuse_rows_with_places(self.agent)
            self._ready_rows.use(self.agent)
            self._asks_for_rows = True
        elif self._most > 1 and reset_agent_function(self.agent) is not None:
            self._shares = shared_agent(self.agent) is not None
            self._copies = not self._shares

    def assign(self, slot: Slot) -> None:
        """Give a slot the latest agent."""
        setup = slot.setup
        if self._copies:
            if not isinstance(slot.agent_mark, InForce):
                setup.agent = None
                slot.agent_mark = InForce(self._worker, partial(self._update_copy, setup))
            slot.agent_mark.apply(self._load)
            return
        if slot.agent_mark is self._mark:
            return
        if self.players is not None:
            self._assign_table(setup, slot.number)
        elif self._asks_for_rows or self._shares:
            self._worker.phase = Phase.AGENT_UPDATE
            rows = self._ready_rows.of_slot(slot.number, self._worker.spaces) if self._asks_for_rows else None
            self._give(setup, rows or self._new_share())
        else:
            self._give(setup, self.agent)
        slot.agent_mark = self._mark

    def _new_share(self) -> Any:
        if (share := shared_agent(self.agent)) is None:
            raise UsageError(f"sharing_parameters of {name_of(self.agent)} returned an agent, and then None")
        return share

    def _assign_table(self, setup: TrajectorySetup, number: int) -> None:
        several = agents_of(setup.env.given)
        assert self.players is not None
        assert several is not None
        setup.agent = table = self.players.new_table(several, number)
        setup.reset_agent = partial(self._begin_table, table)
        setup.recorder = recorder_for(several, table)

    def _begin_table(self, table: EnvAgents, seed: int) -> None:
        assert self._worker.trajectory is not None
        table.begin(self._worker.trajectory, seed)

    def _update_copy(self, setup: TrajectorySetup, update: Any) -> None:
        agent = updated_agent(setup.agent, update, self._worker.spaces)
        if agent is not setup.agent:
            self._give(setup, agent)

    def _give(self, setup: TrajectorySetup, agent: Any) -> None:
        setup.agent, setup.reset_agent = agent, reset_agent_function(agent)
        setup.masks = finder_of(agent, setup.env.given, self._worker.warn_once)

    def _load(self, kind: str) -> Any:
        payload = self._worker.in_force[kind]
        if kind not in self._loaded or self._loaded[kind][0] is not payload:
            # Slots share it; writing to it raises an error.
            self._loaded[kind] = payload, as_constant(self._worker.load(payload))
        return self._loaded[kind][1]

    def replace_after(self, slot: Slot) -> None:
        """Load the latest agent again after a slot's agent raised, unless the slot has its own copy, or an old agent.

        Other trajectories in flight continue with theirs.
        """
        several, made = self._several, cast("Any", None)
        if slot.agent_mark is not self._mark or (self.players is not None and self.players.remember):
            return

        def apply(update: Any) -> None:
            nonlocal made
            if several is None:
                made = updated_agent(made, update, self._worker.spaces)
            else:
                made = updated_players(made, update, [several], self._worker.warn_once, waits=True)

        InForce(self._worker, apply).apply(lambda kind: self._worker.load(self._worker.in_force[kind]))
        self._mark = object()
        if several is not None:
            self.agent, self.players = made.given, made
            return
        self.agent = made
        if self._asks_for_rows:
            self._ready_rows.replace(made)
