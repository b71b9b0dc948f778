"""The results of environments of several agents, as they travel between processes.

Recorders also ask an environment who is listed, who acts, and which outcome an agent without a last turn would get:
each result carries the answers until the next, see `stepping.game_proxies`. A result is a single object, and so is an
action: they travel outside shared memory, see `stepping.carried_values`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from gymnasium.spaces import Space

from streamsampler.data.spaces import FLAGS, same_spaces
from streamsampler.environments.multi_agent import MultiAgentEnv


class JointSpace(Space[Any]):
    """The space of all agents' observations, or actions, together: any object, checked on arrival."""

    def __init__(self, facts: GameFacts | None = None) -> None:
        super().__init__()
        self.facts = facts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JointSpace) or self.facts is None or other.facts is None:
            return isinstance(other, JointSpace) and self.facts is other.facts
        return self.facts.has_agents_of(other.facts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if self.facts is None:
            return "a space of several agents"
        who = "any agents" if self.facts.possible_agents is None else f"the agents {', '.join(self.facts.spaces)}"
        return f"a space of {who}, which act {'in turn' if self.facts.takes_turns else 'at once'}"

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        raise NotImplementedError

    def contains(self, x: Any) -> bool:  # noqa: ARG002 - it contains anything
        return True


class GameFacts(NamedTuple):
    """The facts about an environment of several agents in another process."""

    name: str  # for messages
    takes_turns: bool  # whether a single agent acts in each step
    possible_agents: tuple[str, ...] | None  # None if any may appear
    spaces: dict[str, tuple[Space[Any], Space[Any]]]

    @classmethod
    def of(cls, env: Any) -> GameFacts | None:
        """Return an environment's facts; None if it has a single agent."""
        game = env.unwrapped
        if not isinstance(game, MultiAgentEnv):
            return None
        spaces = {agent: (game.observation_space[agent], game.action_space[agent]) for agent in game.numbers}
        assert game.spec is not None
        return cls(game.spec.id, game.takes_turns, None if game.is_open else tuple(spaces), spaces)

    def has_agents_of(self, other: GameFacts) -> bool:
        forms = [(it.takes_turns, it.possible_agents) for it in (self, other)]
        return forms[0] == forms[1] and all(same_spaces(it, other.spaces[agent]) for agent, it in self.spaces.items())


class JointResult(NamedTuple):
    """All agents' results of a reset or a step; restored episodes must return equal ones."""

    observations: Any
    rewards: Any  # None for a reset, like the two ends
    terminated: Any
    truncated: Any
    agents: list[Any]  # the listed agents
    selection: Any  # the agent to act, if agents act in turn
    possible_agents: list[Any] | None  # if they have changed since the environment was made

    def __deepcopy__(self, memo: Any) -> JointResult:
        """Return this: its sender pickles it at once, its receiver never changes it."""
        return self


INFOS, SPACES, OUTSTANDING = "infos", "spaces", "outstanding"
"""Keys of further parts of a result: the infos, the spaces of new agents, and, by agent, the outcome of those without a
last turn where a trajectory may be cut off (see `MultiAgentEnv.outstanding`)."""


def spaces_of(env: Any) -> tuple[Any, Any]:
    """Return the spaces of observations and actions, as they travel."""
    if isinstance(env.unwrapped, MultiAgentEnv):
        return JointSpace(), JointSpace()
    return env.observation_space, env.action_space


class GameResultMaker:
    """Makes results with the answers to all questions of recorders, for trajectories of at most `limit` timesteps."""

    def __init__(self, env: MultiAgentEnv, limit: float = math.inf) -> None:
        self._env, self._limit = env, limit
        self.is_over = False

    def reset_result(self, observations: Any, infos: Any) -> tuple[JointResult, dict[str, Any]]:
        self._begin()
        return self._result(observations, None, None, None), {INFOS: infos, SPACES: self._spaces(), OUTSTANDING: {}}

    def _begin(self) -> None:
        self._length, self.is_over = 0, False
        self._acted: dict[str, None] = {}
        self._ended: dict[str, int] = {}  # with the timestep
        self._with_spaces: set[str] = set()  # agents with spaces already sent

    def step_result(
        self, actions: Mapping[str, Any], observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any
    ) -> tuple[JointResult, dict[str, Any]]:
        self._length += 1
        if isinstance(terminated, Mapping) and isinstance(truncated, Mapping):
            ended = [it for it in terminated if _is_true(terminated[it]) or _is_true(truncated.get(it))]
            self._ended.update(dict.fromkeys(ended, self._length - 1))
        result = self._result(observations, rewards, terminated, truncated)
        self.is_over = self._ended.keys() >= set(result.agents)
        self._acted.update(dict.fromkeys(actions))
        return result, {INFOS: infos, SPACES: self._spaces(), OUTSTANDING: self._outstanding(result)}

    def _result(self, observations: Any, rewards: Any, terminated: Any, truncated: Any) -> JointResult:
        env = self._env
        changed = list(env.env.possible_agents) if env.change_of_possible_agents() else None
        selection = getattr(env.env, "agent_selection", None) if env.takes_turns else None
        return JointResult(observations, rewards, terminated, truncated, list(env.env.agents), selection, changed)

    def _outstanding(self, result: JointResult) -> dict[str, Any]:
        """Return the outcome of agents without a last turn, if a trajectory may end here."""
        if not self._env.takes_turns or (result.agents and self._length < self._limit):
            return {}
        waiting = [it for it in self._acted if it not in self._ended and it not in result.observations]
        return {agent: self._env.outstanding(agent) for agent in waiting}

    def _spaces(self) -> dict[str, Any]:
        """Return the spaces of new agents in an open environment."""
        env = self._env
        if not env.is_open:
            return {}
        env.meet_listed()
        new = [agent for agent in env.numbers if agent not in self._with_spaces]
        self._with_spaces.update(new)
        return {agent: (env.observation_space[agent], env.action_space[agent]) for agent in new}


def _is_true(flag: Any) -> bool:
    """Whether a flag is valid and true; invalid flags raise where they arrive."""
    return flag.__class__ in FLAGS and bool(flag)
