"""Connect the policies of a manager's caller with several agents in its environments.

Who acts is read from the rows and the episodes each time, and stored nowhere else: so a restored, reset or interrupted
environment waits for actions of the agents in its last result.
"""

from __future__ import annotations

import copy
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gymnasium.spaces import Space

from streamsampler.agents.policies import PolicyNames
from streamsampler.core.errors import UsageError
from streamsampler.core.seeding import SeedUse, TrajectorySeeds, derived_seed
from streamsampler.data.trees import object_array
from streamsampler.stepping.game_proxies import game_of
from streamsampler.stepping.games import GameFacts, JointSpace
from streamsampler.stepping.joint_env import NO_ENDS, Ends, Turn
from streamsampler.stepping.policy_steps import AgentStep, EnvStep, JointSteps, PolicySpaces, listed
from streamsampler.stepping.rows import EnvSpaces, Kind
from streamsampler.stepping.steps import Steps
from streamsampler.workers.restoring import own_copy

_LOG = logging.getLogger("streamsampler")


class SeveralAgents:
    """The agents of a manager's environments, and their policies.

    `now` returns the number of an environment's episode and its last result, None between episodes.
    """

    def __init__(
        self, facts: Sequence[GameFacts], policy_of: Any, seed: int, now: Callable[[int], tuple[int, Turn | None]]
    ) -> None:
        self.facts, self.names = facts, PolicyNames(policy_of)
        self._now, self._n_envs = now, len(facts)
        self._warned: set[str] = set()
        self._policies: dict[str, PolicySpaces] = {}
        self._fitting: set[tuple[int, str, str]] = set()  # spaces compared already: a comparison is slow
        self._spaces = [dict(it.spaces) for it in facts]
        self._playing = [_EpisodePolicies(-1) for _ in facts]
        self._seeds = TrajectorySeeds(seed, 0)
        for env_id, it in enumerate(facts):
            for agent in () if callable(policy_of) else it.spaces:
                self._policy_of(env_id, 0, agent)

    def _policy_of(self, env_id: int, number: int, agent: str) -> PolicySpaces:
        if self._playing[env_id].number != number:
            self._playing[env_id] = _EpisodePolicies(number)
        policies = self._playing[env_id].policies
        if agent not in policies:
            name = self.names.name_for(agent, env_id + number * self._n_envs)
            spaces = self._spaces[env_id][agent]
            if name not in self._policies:
                self._policies[name] = PolicySpaces(name, agent, spaces, self._warn)
            if (env_id, agent, name) not in self._fitting:
                self._policies[name].join(agent, spaces)
                if self.facts[env_id].possible_agents is not None:  # otherwise agents appear without end
                    self._fitting.add((env_id, agent, name))
            policies[agent] = self._policies[name]
        return policies[agent]

    def _warn(self, where: str, text: str) -> None:
        """Warn once at each place of a value that is named like a mask but is none."""
        if where not in self._warned:
            self._warned.add(where)
            _LOG.warning("%s", text)

    def _meet(self, env_id: int, turn: Turn) -> None:
        if self.facts[env_id].possible_agents is None:
            earlier = {} if turn.result.rewards is None else self._spaces[env_id]
            self._spaces[env_id] = {**earlier, **turn.spaces}

    def spaces_of(self, env_id: int, kind: Kind) -> Any:
        game = game_of(self.facts[env_id])
        return game.observation_space if kind == "observation" else game.action_space

    def shown(self, steps: Steps, autoreset: str) -> Steps:
        """Split results by agent; observations and actions become dicts by agent, copied."""
        lasts = steps.last_observations
        envs = [self._env_step(steps, row, lasts[row], autoreset) for row in range(len(steps))]
        observations, last, previous = (
            object_array([None if it is None else by_agent(it) for it in turns])
            for turns in (steps.observations, lasts, steps.previous_observations)
        )
        return replace(
            steps, observations=observations, last_observations=last, previous_observations=previous,
            actions=object_array([own_copy(it) for it in steps.actions]), joint=JointSteps(envs, self._policies),
        )  # fmt: skip

    def _env_step(self, steps: Steps, row: int, last: Turn, autoreset: str) -> EnvStep:
        env_id, number = int(steps.env_ids[row]), int(steps.episodes[row])
        infos: Mapping[str, Any] = steps.info_by_row.get(row, {})
        turn: Turn = steps.observations[row]
        is_reset = turn.result.rewards is None and autoreset == "same_step"
        next_start = turn if is_reset and steps.timesteps[row] else None
        last, ended_infos = (turn, infos) if next_start is None else (last, infos.get("final_info", {}))
        self._meet(env_id, last)
        if steps.failed[row]:
            before = steps.previous_observations[row] if steps.timesteps[row] else None
            ended = [] if before is None else list(self._cut_short(env_id, number, before))
        else:
            ended = [self._agent_step(env_id, number, it, last, ended_infos, ends) for it, ends in last.ended.items()]
        if next_start is not None:
            self._meet(env_id, next_start)
        acting = [self._agent_step(env_id, now, agent, shown, infos) for now, shown, agent in self._acting(env_id)]
        return EnvStep(acting, ended, last, next_start)

    def _agent_step(
        self, env_id: int, number: int, agent: str, turn: Turn, infos: Mapping[str, Any], ends: Ends = NO_ENDS
    ) -> AgentStep:
        policy, reward = self._policy_of(env_id, number, agent), turn.rewards.get(agent, 0.0)
        return AgentStep(agent, policy, turn.observation_of(agent), reward, ends, turn.info_of(agent, infos))

    def _cut_short(self, env_id: int, number: int, before: Turn) -> Iterator[AgentStep]:
        for agent in before.acting:
            policy = self._policy_of(env_id, number, agent)
            yield AgentStep(agent, policy, before.observation_of(agent), ends=(False, True))

    def _acting(self, env_id: int) -> list[tuple[int, Turn, str]]:
        """Return acting agents, each with the episode's number and last result."""
        number, turn = self._now(env_id)
        return [] if turn is None else [(number, turn, agent) for agent in turn.acting]

    def joint_actions(self, env_ids: Sequence[int], actions: Any) -> list[dict[str, Any]]:
        """Return each environment's actions by agent, from batches by policy.

        A batch has an action for each acting agent, by environment and then in the order of agents. Raises UsageError
        for an unknown or missing policy, ActionError for a batch that does not fit.
        """
        if not isinstance(actions, Mapping) or not all(isinstance(name, str) for name in actions):
            raise UsageError(
                "environments of several agents need actions by policy: manager.step({name: actions}), with an action "
                f"for each row of steps[name]; got {actions!r:.80}"
            )
        places = self._places(env_ids)
        for name in actions:
            if name not in self._policies:
                raise UsageError(f"there is no policy {name!r}; the policies are {listed(self._policies)}")
        if missing := [name for name in places if name not in actions]:
            who = [agent for _, agent in places[missing[0]]]
            raise UsageError(f"actions of policy {missing[0]!r} are missing, but its agents {who} are to act")
        found: list[dict[str, Any]] = [{} for _ in env_ids]
        for name, batch in actions.items():
            own = places.get(name, [])
            for (place, agent), action in zip(own, self._policies[name].actions(batch, len(own)), strict=True):
                found[place][agent] = action
        return found

    def _places(self, env_ids: Sequence[int]) -> dict[str, list[tuple[int, str]]]:
        """Return acting agents by policy, with the position of their environment in `env_ids`."""
        places: dict[str, list[tuple[int, str]]] = {}
        for place, env_id in enumerate(env_ids):
            for number, _, agent in self._acting(env_id):
                places.setdefault(self._policy_of(env_id, number, agent).name, []).append((place, agent))
        return places

    def random_actions(self, env_ids: Sequence[int]) -> dict[str, Any]:
        """Return random actions of all acting agents, in the form of `joint_actions`.

        An agent's n-th random action is a function of the manager's seed, the environment and the agent.
        """
        drawn = {
            name: [self._drawing_space(env_ids[place], agent).sample() for place, agent in places]
            for name, places in self._places(env_ids).items()
        }
        return {name: self._policies[name].stacked_actions(each) for name, each in drawn.items()}

    def _drawing_space(self, env_id: int, agent: str) -> Space[Any]:
        playing = self._playing[env_id]
        if agent not in playing.spaces:
            space = playing.spaces[agent] = copy.deepcopy(self._spaces[env_id][agent][1])
            seed = derived_seed(self._seeds[env_id + playing.number * self._n_envs], SeedUse.AGENT)
            space.seed(zlib.crc32(agent.encode(), seed))
        return playing.spaces[agent]


@dataclass
class _EpisodePolicies:
    """The policies and spaces in an environment's episode."""

    number: int
    policies: dict[str, PolicySpaces] = field(default_factory=dict)  # by agent
    spaces: dict[str, Space[Any]] = field(default_factory=dict)  # to draw random actions from, by agent


def several_agents(
    spaces: EnvSpaces, policy_of: Any, seed: int, now: Callable[[int], tuple[int, Turn | None]]
) -> SeveralAgents | None:
    """Return the agents of environments of several agents; None for single agents."""
    facts = [it.facts for it in spaces.observation if isinstance(it, JointSpace) and it.facts is not None]
    if not facts:
        if policy_of is not None:
            raise UsageError(
                "policy_of= is for environments of several agents (PettingZoo's), but these have a single agent"
            )
        return None
    if len(facts) < len(spaces.observation):
        raise UsageError(
            "some of these environments have a single agent, and some have several: make a manager for each kind"
        )
    return SeveralAgents(facts, policy_of, seed, now)


def by_agent(turn: Turn) -> dict[str, Any]:
    return {agent: own_copy(it) for agent, it in turn.result.observations.items()}
