"""Environments of several agents, and plain loops over them: what samplers are compared with.

They have the methods of PettingZoo's `ParallelEnv` and `AECEnv`, which need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from streamsampler.core.seeding import SeedUse, derived_seed, seed_of_agent

IDS = ("red_0", "red_1", "blue_0", "blue_1")


@dataclass(frozen=True)
class Stay:
    """When an agent takes part: from the step after which it appears to the one in which it ends."""

    first: int = 0
    last: int = 5
    terminated: bool = True


DEFAULT = {"red_0": Stay(0, 3), "red_1": Stay(0, 7, terminated=False), "blue_0": Stay(2, 5), "blue_1": Stay(0, 7)}


class _Game:
    """What both forms of the game share: observations that tell agent and step, and rewards of what agents do."""

    metadata: ClassVar = {"name": "comings_and_goings_v0"}
    possible_agents: tuple[Any, ...] = IDS

    def __init__(self, stays: Mapping[str, Stay] = DEFAULT) -> None:
        self.stays = dict(stays)
        self.agents: list[str] = []
        self.spaces = {agent: spaces.Box(-9.0, 99.0, (3,), np.float32) for agent in IDS}

    def observation_space(self, agent: str) -> Any:
        return self.spaces[agent]

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4)

    def begin(self, seed: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.t = 0
        self.total = 0
        self.agents = [agent for agent in self.possible_agents if agent in self.stays and self.stays[agent].first == 0]

    def seen(self, agent: str) -> Any:
        noise = self.rng.uniform(0, 1)
        return np.array([self.possible_agents.index(agent), self.t, self.total % 7 + noise], np.float32)

    def info(self, agent: str) -> dict[str, Any]:
        return {"t": self.t, "name": agent} if self.t % 2 else {}

    def close(self) -> None:
        self.agents = []


class Comings(_Game):
    """The parallel form."""

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.begin(seed)
        return {agent: self.seen(agent) for agent in self.agents}, {agent: {"began": 0} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Any:
        self.t += 1
        acted = list(self.agents)
        self.total += sum(int(actions[agent]) for agent in acted)
        joining = [agent for agent in self.possible_agents if agent in self.stays and self.stays[agent].first == self.t]
        ended = {agent for agent in acted if self.stays[agent].last == self.t}
        there = [*acted, *joining]
        rewards = {agent: float(actions[agent]) + self.t / 8 for agent in acted} | dict.fromkeys(joining, 0.5)
        self.agents = [agent for agent in there if agent not in ended]
        return (
            {agent: self.seen(agent) for agent in there},
            rewards,
            {agent: agent in ended and self.stays[agent].terminated for agent in there},
            {agent: agent in ended and not self.stays[agent].terminated for agent in there},
            {agent: self.info(agent) for agent in there},
        )


class Turns(_Game):
    """Agents act one after the other; those that ended have a last turn, as in PettingZoo's `AECEnv`."""

    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.begin(seed)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.infos: dict[str, dict[str, Any]] = {agent: {"began": 0} for agent in self.agents}
        self.agent_selection = self.agents[0] if self.agents else ""

    def observe(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent), self.t, self.total % 7], np.float32)

    def last(self) -> Any:
        agent = self.agent_selection
        return (
            self.observe(agent), self._cumulative_rewards[agent], self.terminations[agent], self.truncations[agent],
            self.infos[agent],
        )  # fmt: skip

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.agents.remove(agent)
            for values in (self.terminations, self.truncations, self._cumulative_rewards, self.infos):
                del values[agent]
            self._select()
            return
        self.t += 1
        self.total += int(action)
        self._cumulative_rewards[agent] = 0.0
        for each in self.agents:
            self._cumulative_rewards[each] += int(action) + (each == agent)
            self.infos[each] = self.info(each)
            stay = self.stays[each]
            if stay.last <= self.t:
                self.terminations[each], self.truncations[each] = stay.terminated, not stay.terminated
        for each in self.possible_agents:
            if each in self.stays and self.stays[each].first == self.t:
                self.agents.append(each)
                self.terminations[each] = self.truncations[each] = False
                self._cumulative_rewards[each], self.infos[each] = 0.25, {"began": self.t}
        self._select()

    def _select(self) -> None:
        """The dead first, then the others in turn."""
        dead = [agent for agent in self.agents if self.terminations[agent] or self.truncations[agent]]
        if dead:
            self.agent_selection = dead[0]
        elif self.agents:
            self.agent_selection = self.agents[self.t % len(self.agents)]


class Chooser:
    """Draws actions from a generator of its own, and remembers how many: a policy with a memory."""

    def __init__(self, shift: int = 0) -> None:
        self.shift, self.n = shift, 0
        self.rng = np.random.default_rng(0)

    def reset(self, seed: int) -> None:
        self.rng, self.n = np.random.default_rng(seed), 0

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self.n += 1
        action = (int(self.rng.integers(3)) + self.shift + int(observation[1])) % 4
        return action, {"n": self.n, "shift": self.shift}

    def set_param_values(self, values: tuple[int]) -> None:
        (self.shift,) = values


@dataclass
class AgentTicketRollouts:
    """What one agent did in one trajectory."""

    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    env_timesteps: list[int] = field(default_factory=list)
    infos: list[Any] = field(default_factory=list)
    last_observation: Any = None
    ends: tuple[bool, bool] = (False, False)

    def act(self, agent: Any, observation: Any, t: int) -> Any:
        """Let the agent choose an action, and keep it."""
        self.actions.append(agent.get_action(observation)[0])
        self.observations.append(copied(observation))
        self.env_timesteps.append(t)
        return self.actions[-1]

    def hear(self, reward: Any, info: Any) -> None:
        """Keep what an action brought."""
        self.rewards.append(float(reward))
        self.infos.append(dict(info))

    def end(self, observation: Any, terminated: Any, truncated: Any) -> None:
        """Keep how it ended; what is broken off is truncated."""
        self.last_observation = copied(observation)
        self.ends = bool(terminated), bool(truncated or not terminated)


def copied(value: Any) -> Any:
    """Return an observation that the environment may not change."""
    return {key: copied(each) for key, each in value.items()} if isinstance(value, dict) else np.array(value)


def seated(make: Callable[[str], Any], agent_ids: Any, seed: int) -> dict[str, Any]:
    """Return an agent for each id, begun as samplers begin it."""
    agents = {agent: make(agent) for agent in agent_ids}
    for number, agent in enumerate(agents.values()):
        agent.reset(seed_of_agent(derived_seed(seed, SeedUse.AGENT), number))
    return agents


def played_in_parallel(
    env: Any, make: Callable[[str], Any], seed: int, limit: int = 10**6
) -> dict[str, AgentTicketRollouts]:
    """Run a trajectory of a `ParallelEnv` as anybody would."""
    observations, _ = env.reset(seed=seed)
    agents = seated(make, env.possible_agents, seed)
    played: dict[str, AgentTicketRollouts] = {}
    t = 0
    while env.agents and t < limit:
        actions = {}
        for agent in env.possible_agents:
            if agent in env.agents:
                actions[agent] = played.setdefault(agent, AgentTicketRollouts()).act(
                    agents[agent], observations[agent], t
                )
        observations, rewards, terminated, truncated, infos = env.step(actions)
        t += 1
        for agent in actions:
            played[agent].hear(rewards[agent], infos[agent])
            if terminated[agent] or truncated[agent] or t == limit:
                played[agent].end(observations[agent], terminated[agent], truncated[agent])
    return played


def played_in_turns(
    env: Any, make: Callable[[str], Any], seed: int, limit: int = 10**6
) -> dict[str, AgentTicketRollouts]:
    """Run a trajectory of an `AECEnv` as anybody would."""
    env.reset(seed=seed)
    agents = seated(make, env.possible_agents, seed)
    played: dict[str, AgentTicketRollouts] = {}
    t = 0
    while env.agents and t < limit:
        agent, action = env.agent_selection, None
        observation, reward, terminated, truncated, info = env.last()
        if agent in played:
            played[agent].hear(reward, info)
        if not (terminated or truncated):
            action = played.setdefault(agent, AgentTicketRollouts()).act(agents[agent], observation, t)
        elif agent in played:
            played[agent].end(observation, terminated, truncated)
        env.step(action)
        t += 1
    for agent, mine in played.items():
        if mine.last_observation is None:
            mine.end(env.observe(agent), env.terminations[agent], env.truncations[agent])
            mine.hear(env._cumulative_rewards[agent], env.infos[agent])
    return played
