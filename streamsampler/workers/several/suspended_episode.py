"""An unfinished episode of several agents between two parts.

A part ends before the next action is chosen. If agents act in turn, an agent may have acted without a reward yet: the
next part records this timestep again, with observation, action and info.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class UnansweredTimestep(NamedTuple):
    """The timestep of an agent without a reward yet.

    `info` is the policy's, `env_timestep` the environment's step of the action.
    """

    agent_id: str
    observation: Any
    action: Any
    info: Any
    env_timestep: int


class EarlierParts(NamedTuple):
    """The totals of an agent in earlier parts of an episode.

    `returned` is the sum of its rewards, added in order: so it does not depend on the parts. `last_info` is the
    environment's.
    """

    length: int = 0
    returned: float = 0.0
    last_info: Any = None


class SuspendedEpisode(NamedTuple):
    """An unfinished episode's state for the next recorder.

    Attributes:
        n_timesteps: The environment's steps.
        ended: The ended agents, with their last timesteps.
        last_ends: The flags of the agents with the last ends.
        early: The rewards of agents before their first actions.
        infos: The last step's infos.
        reset_infos: The reset's infos.
        first_infos: The infos of agents' first observations.
        before: The totals of agents without an end.
        unanswered: The timesteps without rewards.
    """

    n_timesteps: int
    ended: dict[str, int]
    last_ends: tuple[bool, bool]
    early: dict[str, float]
    infos: Mapping[str, Any]
    reset_infos: Mapping[str, Any]
    first_infos: dict[str, Any]
    before: dict[str, EarlierParts]
    unanswered: tuple[UnansweredTimestep, ...]

    def infos_of_unanswered(self) -> dict[str, Any]:
        """Return the policies' infos of actions without an answer, which no environment has."""
        return {each.agent_id: each.info for each in self.unanswered}

    def with_infos(self, infos: Mapping[str, Any]) -> SuspendedEpisode:
        unanswered = tuple(each._replace(info=infos.get(each.agent_id, each.info)) for each in self.unanswered)
        return self._replace(unanswered=unanswered)
