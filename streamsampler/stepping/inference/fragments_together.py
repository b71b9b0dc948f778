"""Run fragments in environments of other processes, which take each timestep together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamsampler.errors import DataError, WorkerError
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.inference.environments import Environments
from streamsampler.stepping.inference.episodes import History
from streamsampler.workers.explain import begin_of, locate
from streamsampler.workers.resets import Standing
from streamsampler.workers.vec.agents import AgentPool
from streamsampler.workers.vec.groups import Group, Row

__all__ = ["ParentGroup"]


class ParentGroup(Group):
    """The environments, whose steps and resets are requested together, and the agent that the worker has.

    Args:
        environments: The environments.
        agents: The worker's agent.
        args: Those of `Group`.
    """

    def __init__(self, environments: Environments, agents: AgentPool, *args: Any) -> None:
        super().__init__(*args)
        self._environments, self._proxies, self._pool = environments, environments.proxies, agents
        self._next: list[int] = []  # rows in which the next episode begins after this timestep

    def update_agent(self, load: Callable[[str], Any]) -> None:
        """Take the agent that is in force, which has its parameters and filters already."""
        del load
        in_force = self._worker.in_force["agent"]
        if in_force is not self._payloads[0]:
            self._payloads = in_force, None, None
            self._agent = self._pool.batched(self._n_rows)
            self._begin_new_agent()

    def history_of(self, env_id: int, n: int) -> History:
        """Return what is kept here of an episode's first n timesteps: of those in this fragment, if any."""
        del env_id, n
        return History([])

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, WorkerError):
            self._worker.trajectory = None  # the one in hand need not be the one that is lost
        else:
            super()._explain(error)

    def _restore(self, row: Row, standing: Standing, version: int, agent_is_known: bool) -> int:
        ran = super()._restore(row, standing, version, agent_is_known)
        if not row.length:
            self._environments.end(row.number)  # its episode was given up: the next loss is not to restore it
        return ran

    # ------------------------------------------------------------------ resets

    def _begin_all(self) -> None:
        for position, row in enumerate(self.rows):
            if row.length:
                row.observation = self._environments.current(row.number)
            else:
                self._request_reset(position)
        super()._begin_all()

    def _request_reset(self, position: int) -> None:
        row = self.rows[position]
        self._environments.reset(row.number, self._index_of(row), self._seed_of(row), self._worker.resets)

    def _reset(self, position: int) -> Any:
        worker, row = self._worker, self.rows[position]
        worker.phase = Phase.RESET
        worker.take_in_hand(self._index_of(row))
        try:
            result = begin_of(self._proxies[row.number].begun())
        except DataError as error:
            worker.phase = Phase.RECORDING  # where its process found out that it cannot be recorded
            locate(error, row.env, 0)
            raise
        self._begin_agent(position)
        return result

    def _begin_next(self, position: int) -> None:
        self._request_reset(position)
        self._next.append(position)

    # ------------------------------------------------------------------ steps

    def _step_all(self, goes_on: bool) -> None:
        self._next.clear()
        self._environments.step([row.number for row in self.rows], self._singles[: len(self.rows)])
        for row in self.rows:
            self._proxies[row.number].is_requested = True
        super()._step_all(goes_on)
        for position in self._next:
            self._position = position
            super()._begin_next(position)

    def _close(self, position: int, observation: Any, terminated: bool, truncated: bool) -> None:
        row = self.rows[position]
        if terminated or truncated:
            self._environments.end(row.number)
        else:  # others in its process may have been waited for meanwhile, and the process may have been lost
            observation = self._environments.current(row.number)
        super()._close(position, observation, terminated, truncated)
