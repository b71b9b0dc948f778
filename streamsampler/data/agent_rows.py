"""Which agents of an environment the trajectories of a batch are of, where it has several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.errors import DataError

__all__ = ["OF_AGENTS", "AgentRows", "BatchAgents"]

OF_AGENTS = "(agents)"
"""The name, among the infos of episodes, of what is known of each agent."""


class AgentRows(NamedTuple):
    """What is said of N trajectories of agents, of T timesteps in all.

    Attributes:
        known: The agents that may take part in the environment.
        numbers: (N,) int64: which of them each trajectory is of.
        episodes: (N,) int64: the number of the episode that each trajectory is of.
        env_timesteps: (T,) int64: in which step of the environment, from its reset on, each timestep was.
    """

    known: tuple[str, ...]
    numbers: NDArray[np.int64]
    episodes: NDArray[np.int64]
    env_timesteps: NDArray[np.int64]

    def select(self, timesteps: Any, rows: Any) -> AgentRows:
        """Return what is said of some timesteps and some trajectories."""
        return self._replace(
            numbers=self.numbers[rows], episodes=self.episodes[rows], env_timesteps=self.env_timesteps[timesteps]
        )

    def check(self, n_trajectories: int, n_timesteps: int) -> None:
        """Check that this is said of so many trajectories and timesteps.

        Raises:
            DataError: It is not.
        """
        lengths = (n_trajectories, n_trajectories, n_timesteps)
        for name, n in zip(self._fields[1:], lengths, strict=True):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.shape != (n,) or array.dtype != np.int64:
                raise DataError(f"agents.{name} should be an array of int64 of shape ({n},), and is {array!r:.80}")
        if len(self.numbers) and not 0 <= self.numbers.min() <= self.numbers.max() < len(self.known):
            raise DataError(f"agents.numbers should be from 0 to {len(self.known) - 1}")

    @classmethod
    def joined(cls, batches: Sequence[Any]) -> AgentRows | None:
        """Return what batches say together; None where none of them says anything.

        Raises:
            DataError: Only some of them do, or of other agents.
        """
        each = [it.agents for it in batches]
        if all(rows is None for rows in each):
            return None
        if len(known := {None if rows is None else rows.known for rows in each}) > 1:
            raise DataError(f"the batches are of different agents: {', '.join(map(str, known))}")
        arrays = (np.concatenate([getattr(rows, name) for rows in each]) for name in cls._fields[1:])
        return cls(each[0].known, *arrays)


class BatchAgents:
    """The part of a `TrajectoryBatch` that says which agents its trajectories are of."""

    if TYPE_CHECKING:
        agents: AgentRows | None

    @property
    def agent_ids(self) -> NDArray[np.str_]:
        """(N,) str: the agent that each trajectory is of."""
        rows = self._agent_rows()
        return cast("NDArray[np.str_]", np.array(rows.known)[rows.numbers])

    @property
    def episode_numbers(self) -> NDArray[np.int64]:
        """(N,) int64: the number of the episode that each trajectory is of, in `MultiAgentBatch.episodes`."""
        return self._agent_rows().episodes

    @property
    def env_timesteps(self) -> NDArray[np.int64]:
        """(T,) int64: the step of the environment, from its reset on, in which the agent acted."""
        return self._agent_rows().env_timesteps

    def _agent_rows(self) -> AgentRows:
        if self.agents is None:
            raise DataError("only what one policy did, batch['policy name'] of a MultiAgentBatch, is of several agents")
        return self.agents
