"""Run fragments of several agents in groups: each policy plays in all environments of a group."""

from __future__ import annotations

from typing import Any, cast

from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import End, Script
from streamsampler.workers.several.policy_set import PolicySet, updated_players
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.fragments import EnvGroup
from streamsampler.workers.vec.row_recorders import RowTrajectory
from streamsampler.workers.vec.several_agents import MultiAgentRows, PolicyBatches


class MultiAgentEnvGroup(EnvGroup):
    """A `EnvGroup` of environments with several agents."""

    _recorder: MultiAgentRows

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._recorder.keeps_sent = True
        self._rounds = True
        self._players: PolicySet | None = None

    @property
    def players(self) -> PolicySet:
        assert self._players is not None
        return self._players

    def _update(self, update: Any) -> None:
        envs = [cast("MultiAgentEnv", row.env.unwrapped) for row in self.rows]
        self._players = updated_players(
            self._players, update, envs, self._worker.warn_once, across=True, n_envs=self._batch_rows()
        )

    def _made_agent(self) -> BatchedAgent:
        self._play_with(self.players)
        return PolicyBatches(self.players, self._worker)

    def _play_with(self, players: PolicySet) -> None:
        """Use these policies, with the tables of this group's environments."""
        self._players = players
        self._recorder.use_policies(players)
        for row, table in zip(self.rows, players.tables, strict=True):
            row.table = table

    def run(self, version: int, n_timesteps: int) -> bool:
        self.players.begin_part([place for place, row in enumerate(self.rows) if row.length])
        return super().run(version, n_timesteps)

    def _resume(self, position: int, script: Script) -> None:
        suspended = self.rows[position].suspended
        assert suspended is not None
        self._recorder.rows[position].go_on(suspended)
        self._start(position, script, self._bound(position))

    def _end_record(self, part: RowTrajectory, end: End) -> None:
        self._worker.phase = Phase.RECORDING
        self._recorder.end(part, end, self.agent, self._worker)
        row, recorder = self.rows[part.row], self._recorder.rows[part.row]
        row.suspended, row.sent = (None, None) if end.ended else (recorder.suspended, recorder.sent)
        self._worker.phase = Phase.STEP

    def _state_of_agent(self) -> Any:
        state = self.agent.get_state()
        infos_of_rows = [None if row.suspended is None else row.suspended.infos_of_unanswered() for row in self.rows]
        return None if state is None else (state, infos_of_rows)

    def _set_state_of_agent(self, state: Any, *, is_replaced: bool) -> None:
        of_policies, infos_of_rows = state
        for row, infos in zip(self.rows, infos_of_rows, strict=True):
            if row.suspended is not None:
                row.suspended = row.suspended.with_infos(infos)
        super()._set_state_of_agent(of_policies, is_replaced=is_replaced)
