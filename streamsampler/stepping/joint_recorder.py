"""Make batches of several agents from a manager's steps, with the samplers' recorders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamsampler.agents.policies import PolicyNames
from streamsampler.core.errors import DataError, UsageError
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.multi_agent import assembled
from streamsampler.data.spaces import short
from streamsampler.data.trees import snapshot
from streamsampler.rollouts.script import End
from streamsampler.stepping.episodes import EnvEpisodes
from streamsampler.stepping.game_proxies import GameProxy, game_of
from streamsampler.stepping.games import INFOS, OUTSTANDING, SPACES
from streamsampler.stepping.joint_env import Turn
from streamsampler.stepping.recorder import StepsRecorder
from streamsampler.stepping.several_agents import SeveralAgents
from streamsampler.stepping.steps import Steps
from streamsampler.workers.several.policy_set import EnvAgents
from streamsampler.workers.vec.batch_infos import BatchInfos, info_of_row
from streamsampler.workers.vec.row_recorders import RowTrajectory
from streamsampler.workers.vec.several_agents import MultiAgentRows

if TYPE_CHECKING:
    from streamsampler.stepping.base_manager import BaseEnvManager


class _FirstTurn(NamedTuple):
    turn: Turn
    infos: Mapping[str, Any]


class JointStepsRecorder(StepsRecorder[_FirstTurn, RowTrajectory]):
    """Records steps of several agents.

    A stand-in for each environment answers the recorder's questions from its results.
    """

    def __init__(self, manager: BaseEnvManager, several: SeveralAgents, episodes: EnvEpisodes, max_held: int) -> None:
        super().__init__(manager, episodes, max_held)
        self._games = [game_of(it) for it in several.facts]
        self._rows = MultiAgentRows(self._games)
        self._callers = _CallersPlayers(several.names, self._games)
        players: Any = self._callers
        self._rows.use_policies(players)

    def _check_infos(self, steps: Steps, agent_infos: Any) -> None:
        if not isinstance(agent_infos, Mapping):
            raise DataError(f"agent_infos must be a dict of dicts by policy, got {short(agent_infos)}")
        acted = self._acted(steps)
        for name, infos in agent_infos.items():
            if not isinstance(infos, Mapping):
                raise DataError(f"agent_infos[{name!r}] must be a dict of arrays with a row for each action")
            BatchInfos("agent_infos").record(np.arange(len(acted.get(name, ()))), infos)

    def _acted(self, steps: Steps) -> dict[str, list[tuple[int, str]]]:
        """Return by policy the row and agent of each action."""
        acted: dict[str, list[tuple[int, str]]] = {}
        for row, timestep in enumerate(steps.timesteps.tolist()):
            if timestep:
                index = int(steps.env_ids[row] + steps.episodes[row] * self._manager.n_envs)
                for agent in steps.actions[row]:
                    acted.setdefault(self._callers.names.name_for(agent, index), []).append((row, agent))
        return acted

    def _starts_of(self, steps: Steps) -> tuple[Mapping[int, _FirstTurn], Mapping[int, _FirstTurn], Any]:
        infos = {row: snapshot(info) for row, info in steps.info_by_row.items()}
        starts, begins = dict[int, _FirstTurn](), dict[int, _FirstTurn]()
        if steps.joint is None:
            raise UsageError(
                "this recorder is for environments of several agents, but these Steps are of a single agent"
            )
        for row, env in enumerate(steps.joint.envs):
            own = infos.get(row, {})
            if env.next_start is not None:
                infos[row] = own.pop("final_info", {})
                begins[row] = _FirstTurn(env.next_start, own)
            elif not steps.timesteps[row]:
                starts[row] = _FirstTurn(env.turn, own)
        return starts, begins, infos

    def _new_episode(self, env_id: int, index: int, start: _FirstTurn | None) -> RowTrajectory:
        assert start is not None
        trajectory = self._rows.begin(index, 0, index, env_id)
        observations, *_, infos = self._taken(env_id, start.turn, start.infos)
        self._rows.rows[env_id].table.begin(index, 0)
        self._rows.rows[env_id].begin(infos)
        self._rows.rows[env_id].record_observation(observations)
        return trajectory

    def _taken(self, env_id: int, turn: Turn, infos: Mapping[str, Any]) -> Any:
        besides = {INFOS: infos, SPACES: turn.spaces, OUTSTANDING: turn.outstanding}
        return self._games[env_id].take(turn.result, besides)

    def _record(self, steps: Steps, rows: list[int], infos: Mapping[int, dict[str, Any]], agent_infos: Any) -> None:
        assert steps.joint is not None
        said = self._said(steps, agent_infos) if agent_infos else {}
        for row in rows:
            env_id = int(steps.env_ids[row])
            recorder, episode = self._rows.rows[env_id], self._now[env_id]
            recorder.record_action(steps.actions[row])
            step = len(recorder.float_rewards)
            if any(said.get(row, {}).values()):
                recorder.record_agent_info(step, said[row])
            observations, rewards, *ends, own = self._taken(env_id, steps.joint.envs[row].turn, infos.get(row, {}))
            recorder.record_reward(rewards)
            if own:
                recorder.record_env_info(step, own)
            recorder.flags(*ends)
            episode.length += 1
            if steps.ended[row]:
                episode.last = observations
            else:
                recorder.record_observation(observations)

    def _said(self, steps: Steps, agent_infos: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        said: dict[int, dict[str, Any]] = {}
        for name, acted in self._acted(steps).items():
            for position, (row, agent) in enumerate(acted):
                said.setdefault(row, {})[agent] = info_of_row(agent_infos.get(name, {}), position)
        return said

    def _end_record(self, steps: Steps, row: int, episode: RowTrajectory) -> None:
        ends = bool(steps.terminated[row]), bool(steps.truncated[row])
        end: Any = End(episode.last, *ends, False, {}, episode.length)
        nobody: Any = None  # no driver here to ask, no progress to show
        self._rows.end(episode, end, nobody, nobody)
        self._rows.rows[episode.row].parts()  # raises if an action is outside its space

    def _forget(self, env_id: int) -> None:
        self._rows.leave_out(env_id)

    def _keep(self, episodes: list[RowTrajectory]) -> None:
        self._rows.keep(episodes)

    def _batch_of(self, indices: list[int], episodes: list[RowTrajectory]) -> TrajectoryBatch[Any, Any]:
        spaces = self._games[0].observation_space, self._games[0].action_space
        return self._assembled(assembled, self._rows.gather, indices, episodes, spaces)


class _CallersPlayers:
    """Stands in for `PolicySet`: the caller plays all agents, so recorders need the policies' names alone."""

    asked = ()

    def __init__(self, names: PolicyNames, games: list[GameProxy]) -> None:
        self.names = names
        self.policies: dict[str, _CallersPolicy] = {}
        players: Any = self
        self.tables = [EnvAgents(players, game, place) for place, game in enumerate(games)]

    def begin_trajectory(self, place: int) -> None:
        """Do nothing: policies are the caller's."""

    def policy_of(self, agent_id: str, index: int) -> _CallersPolicy:
        name = self.names.name_for(agent_id, index)
        return self.policies.setdefault(name, _CallersPolicy(name))


class _CallersPolicy:
    """Stands in for a `PolicyInPlay`."""

    crosses = False

    def __init__(self, name: str) -> None:
        self.name = name

    def join(self, agent_id: str, env: Any) -> None:
        """Do nothing: an agent's observations are checked against its spaces on arrival."""

    def begin(self, seats: Any, seed: int) -> None:
        """Do nothing: policies are the caller's."""

    def agent_of(self, seat: Any) -> None:
        """Return None: no values are recorded."""
