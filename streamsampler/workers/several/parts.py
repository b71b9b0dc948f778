"""What goes on of an episode of several agents from one part to the next, which another recorder may record.

A part ends where the next action would be chosen. An agent that has acted and is not answered yet, as in environments
whose agents act in turn, keeps its timestep for the next part, where it is recorded again: with its observation, its
action and its info.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Unanswered(NamedTuple):
    """The timestep of an agent that has acted, and is not answered yet.

    Attributes:
        agent_id: The agent.
        observation: What it acted on.
        action: Its action.
        info: The policy's info.
        env_timestep: In which step of the environment it acted.
    """

    agent_id: str
    observation: Any
    action: Any
    info: Any
    env_timestep: int


class Before(NamedTuple):
    """What an agent had in earlier parts of an episode.

    Attributes:
        length: Its timesteps.
        returned: Its rewards, added up one after the other: so the sum does not depend on where parts end.
        last_info: What the environment said last of it.
    """

    length: int = 0
    returned: float = 0.0
    last_info: Any = None


class Suspended(NamedTuple):
    """An episode that goes on, as far as its recorder has to know.

    Attributes:
        n_timesteps: The steps of the environment so far.
        ended: Who has ended, and at which timestep.
        last_ends: The ends of those that ended last.
        early: The rewards of agents before their first actions.
        infos: The infos of the last step.
        reset_infos: Those of the reset.
        first_infos: Those that came with the first observations of agents.
        before: What agents that go on had so far.
        unanswered: The timesteps of those that wait for an answer.
    """

    n_timesteps: int
    ended: dict[str, int]
    last_ends: tuple[bool, bool]
    early: dict[str, float]
    infos: Mapping[str, Any]
    reset_infos: Mapping[str, Any]
    first_infos: dict[str, Any]
    before: dict[str, Before]
    unanswered: tuple[Unanswered, ...]

    def infos_of_unanswered(self) -> dict[str, Any]:
        """Return the infos that policies gave with the actions which are not answered: no environment knows them."""
        return {each.agent_id: each.info for each in self.unanswered}

    def with_infos(self, infos: Mapping[str, Any]) -> Suspended:
        """Return the same with these infos of the policies."""
        told = tuple(each._replace(info=infos.get(each.agent_id, each.info)) for each in self.unanswered)
        return self._replace(unanswered=told)
