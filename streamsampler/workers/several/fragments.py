"""Run fragments in environments of several agents, one after the other."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from streamsampler.data.copying import Allocate
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.rollouts.script import End
from streamsampler.workers.base import Worker
from streamsampler.workers.fragments import FragmentEnv
from streamsampler.workers.recorders import recorder_for
from streamsampler.workers.several.policy_set import EnvAgents, PolicySet, updated_players
from streamsampler.workers.several.recorder import JointRecorder


class MultiAgentFragmentEnv(FragmentEnv):
    """A `FragmentEnv` with several agents and its own copies of the policies."""

    _recorder: JointRecorder
    table: EnvAgents

    def __init__(self, worker: Worker, *args: Any) -> None:
        super().__init__(worker, *args)
        self._players: PolicySet | None = None

    @staticmethod
    def new_recorder(worker: Worker, allocate: Allocate = np.empty) -> RolloutRecorder:
        """Return a ticket's recorder; each environment brings its table."""
        recorder = recorder_for(worker.environments()[0], None, allocate)
        cast("JointRecorder", recorder).sent = []
        return recorder

    @property
    def players(self) -> PolicySet:
        assert self._players is not None
        return self._players

    def _update(self, update: Any) -> None:
        several = cast("MultiAgentEnv", self.env.unwrapped)
        self._players = updated_players(
            self._players, update, [several], self._worker.warn_once, waits=self._worker.waits
        )
        self._agent = self.table = self._players.tables[0]

    def _look_at_agent(self) -> None:
        self._reset_agent = self._begin_table

    def _begin_table(self, seed: int) -> None:
        self.table.begin(self.index, seed)

    @property
    def restorable(self) -> bool:
        """Whether copies of the policies can continue in the middle of an episode."""
        return self.players.are_restorable

    def begin_fragment(self) -> None:
        super().begin_fragment()
        self.players.begin_part([0] if self.length and not self._agent_is_new else [])
        self._recorder.use_env_agents(cast("MultiAgentEnv", self.env.unwrapped), self.table)

    def _go_on(self) -> None:
        super()._go_on()
        assert self.suspended is not None
        self._recorder.go_on(self.suspended)

    def take_end(self, end: End) -> None:
        super().take_end(end)
        if not end.ended:
            self.suspended, self.sent = self._recorder.suspended, self._recorder.sent

    def _memory_of_agent(self) -> Any:
        assert self.suspended is not None
        return self.players.get_state(), self.suspended.infos_of_unanswered()

    def _give_memory(self, memory: Any, *, is_replaced: bool) -> None:
        """Load the policies' memory, except into replaced policies: these have begun with the environment."""
        assert self.suspended is not None
        of_policies, infos = memory
        self.suspended = self.suspended.with_infos(infos)
        if not is_replaced:
            self.players.set_state(of_policies)
        self._agent_is_new = False
