"""Stand-ins, in this process, for environments of several agents in other processes.

A stand-in has the class of the environment's own wrapper, and no environment: it answers recorders from the last
result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Space

from streamsampler.core.errors import ProtocolError
from streamsampler.environments.multi_agent import AecEnv, Dicts, MultiAgentEnv, ParallelEnv
from streamsampler.stepping.games import INFOS, OUTSTANDING, SPACES, GameFacts, JointResult
from streamsampler.workers.restoring import own_copy


class _ProxiedGame:
    """Stands in for the user's environment, with the last result's facts."""

    def __init__(self, facts: GameFacts) -> None:
        self.metadata = {"name": facts.name}
        self.possible_agents = None if facts.possible_agents is None else list(facts.possible_agents)
        self.agents: list[Any] = []
        self.agent_selection: Any = None
        self.spaces = dict(facts.spaces)

    def observation_space(self, agent: str) -> Space[Any]:
        return self.spaces[agent][0]

    def action_space(self, agent: str) -> Space[Any]:
        return self.spaces[agent][1]

    def step(self, actions: Any) -> Any:
        raise ProtocolError(f"the environment is in another process, but step was called here with {actions!r:.60}")

    def close(self) -> None:
        """Do nothing: its own process closes it."""


class GameProxy(MultiAgentEnv):
    """Stands in for an environment of several agents in another process."""

    _outstanding: Mapping[str, Any]

    def take(self, result: JointResult, besides: Mapping[str, Any]) -> Dicts:
        """Receive a result; return observations, rewards, the two ends, and infos.

        Observations are copies: a restored episode is compared with the original ones.
        """
        shown: _ProxiedGame = self.env
        if result.rewards is None:
            self._forget_agents()
            if self.is_open:
                shown.spaces.clear()
        shown.spaces.update(besides[SPACES])
        shown.agents, shown.agent_selection = list(result.agents), result.selection
        if result.possible_agents is not None:
            shown.possible_agents = result.possible_agents
        self._outstanding = besides[OUTSTANDING]
        if result.rewards is None or self.takes_turns:
            self.meet_listed()
        return own_copy(result.observations), result.rewards, result.terminated, result.truncated, besides[INFOS]


class ParallelProxy(GameProxy, ParallelEnv):
    """Stands in for a `ParallelEnv`."""


class AecProxy(GameProxy, AecEnv):
    """Stands in for an `AECEnv`."""

    def outstanding(self, agent_id: str) -> tuple[Any, Any, Any, Any, Any]:
        """Return the outcome for an agent without a last turn."""
        found: tuple[Any, Any, Any, Any, Any] = self._outstanding[agent_id]
        return found


def game_of(facts: GameFacts) -> GameProxy:
    return (AecProxy if facts.takes_turns else ParallelProxy)(_ProxiedGame(facts))
