"""Step environments of several agents like those of a single agent: an observation holds all agents' results.

It is checked in the environment's process, so bad data are a failure of the environment. Samplers' rules decide who
acts next, which rewards answer which actions, and which agents have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from streamsampler.core.errors import DataError, ObservationError, UsageError
from streamsampler.data.spaces import flag_of
from streamsampler.environments.multi_agent import MultiAgentEnv, returned
from streamsampler.rollouts.script import begin_of
from streamsampler.stepping.games import GameFacts, GameResultMaker, JointResult, JointSpace
from streamsampler.stepping.values import EnvValues
from streamsampler.workers.restoring import own_copy
from streamsampler.workers.several.agent_recorder import mapping_of, named, no_answer, no_observation, reward_of
from streamsampler.workers.several.recorder import NOBODY

Ends = tuple[bool, bool]
NO_ENDS: Ends = (False, False)


class Turn(NamedTuple):
    """The results of all agents at a reset or a step."""

    result: JointResult  # a copy of the reset's or step's
    spaces: dict[str, Any]  # of new agents, in an open environment
    # When no agent is left, the outcome of agents without a last turn; see `MultiAgentEnv.outstanding`.
    outstanding: dict[str, Any]
    acting: tuple[str, ...] = ()  # the agents to act next, in their order
    rewards: Mapping[str, float] = {}  # by agent, the reward of actions answered now
    ended: Mapping[str, Ends] = {}  # the ends of agents that had acted

    def __deepcopy__(self, memo: Any) -> Turn:
        """Return this: it is a copy already, and readers receive copies."""
        return self

    def observation_of(self, agent: str) -> Any:
        """Return the observation of an agent that acts next, or has ended."""
        shown = self.result.observations
        return shown[agent] if agent in shown else self.outstanding[agent][0]

    def info_of(self, agent: str, infos: Mapping[str, Any]) -> Any:
        """Return the info of an agent that acts next, or has ended, from this result's infos."""
        return infos.get(agent) if agent in self.result.observations else self.outstanding[agent][4]


class JointEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps an environment of several agents as an environment of a single agent, with `Turn`s as observations.

    An action is a dict by agent, the reward a sum, and the ends those of a trajectory of all agents, as in samplers.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        self._referee = _Referee(game)
        self.observation_space, self.action_space = JointSpace(GameFacts.of(env)), JointSpace()

    @property
    def spec(self) -> Any:  # type: ignore[override]
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = begin_of(self.env.reset(seed=seed, options=options))
        return self._referee.turn_of_reset(observations), dict(mapping_of(infos, "infos"))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result: Any = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise UsageError("step must return (observations, rewards, terminated, truncated, infos), dicts by agent")
        *shown, infos = result
        return *self._referee.turn_of_step(action, *shown), dict(mapping_of(infos, "infos"))


class _Referee(GameResultMaker):
    """Determines who acts, receives rewards and ends, by the rules of a `JointRecorder`."""

    def __init__(self, env: MultiAgentEnv) -> None:
        super().__init__(env)
        self._values: dict[str, EnvValues] = {}  # of agents with an observation so far

    def turn_of_reset(self, observations: Any) -> Turn:
        self._begin()
        self._waiting: list[str] = []  # agents with an unanswered action
        self._last_ends = NO_ENDS
        if self._env.is_open:
            self._values.clear()
        shown = self._copied(observations)
        return Turn(self._result(shown, None, None, None), self._spaces(), {}, self._next(shown))

    def turn_of_step(
        self, actions: Mapping[str, Any], observations: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> tuple[Turn, float, bool, bool]:
        """Return a step's results, the sum of rewards, and how the trajectory ended, or twice False.

        Raises DataError if an acting agent has no result, or results are no dicts by agent, or outside their spaces.
        """
        self._length += 1
        self._acted.update(dict.fromkeys(actions))
        self._waiting += actions
        self._env.meet_listed()
        shown, known = self._copied(observations), self._env.numbers
        got = mapping_of(rewards, "rewards")
        rewards = {agent: reward_of(it, agent) if agent in known else it for agent, it in got.items()}
        ends = dict(mapping_of(terminated, "terminated")), dict(mapping_of(truncated, "truncated"))
        brought, ended, total = self._answers(rewards, *ends)
        result = self._result(shown, rewards, *ends)
        outstanding = {
            agent: (self._value(agent, seen), *others, own_copy(info))
            for agent, (seen, *others, info) in self._outstanding(result).items()
        }
        if over := self._env.is_over(self._ended):
            total += self._end_rest(outstanding, brought, ended)
            if self._last_ends == NO_ENDS:
                raise DataError("no agent is left, and none was terminated or truncated")
        turn = Turn(result, self._spaces(), outstanding, () if over else self._next(shown), brought, ended)
        if missing := [agent for agent in ended if not (agent in shown or agent in outstanding)]:
            raise ObservationError(f"agent {missing[0]!r}, which has ended, has no last observation")
        return turn, total, *(self._last_ends if over else NO_ENDS)

    def _copied(self, observations: Any) -> dict[str, Any]:
        known = self._env.numbers
        return {
            agent: self._value(agent, it) if agent in known else own_copy(it)
            for agent, it in mapping_of(observations, "observations").items()
        }

    def _value(self, agent: str, observation: Any) -> Any:
        if (values := self._values.get(agent)) is None:
            space = self._env.observation_space[agent]
            values = self._values[agent] = EnvValues([space], 1, "observation", ObservationError, np.zeros)
        try:
            values.put(0, 0, observation)
        except ObservationError as error:
            raise named(error, agent) from None
        return values.read(0, 0)

    def _answers(
        self, rewards: Mapping[str, float], terminated: Mapping[str, Any], truncated: Mapping[str, Any]
    ) -> tuple[dict[str, float], dict[str, Ends], float]:
        """Return rewards, ends and the rewards' sum of agents answered now."""
        answered, self._waiting = self._waiting, []
        if self._env.takes_turns:
            self._waiting = [agent for agent in answered if agent not in terminated]
            answered = [agent for agent in answered if agent in terminated]
        brought: dict[str, float] = {}
        ended: dict[str, Ends] = {}
        total = 0.0
        try:
            for agent in answered:
                brought[agent] = rewards[agent]
                total += brought[agent]
                self._take_end(agent, (terminated[agent], truncated[agent]), ended)
        except KeyError as error:
            raise no_answer(error.args[0]) from None
        for agent in terminated:
            if agent in self._ended:
                if not (terminated[agent] or truncated.get(agent)) and self._env.lists(agent):
                    raise returned(agent, self._ended)
            elif agent in self._env.numbers and agent not in self._acted:
                total += rewards.get(agent, 0.0)
                self._take_end(agent, (terminated[agent], truncated.get(agent, False)), ended)
        return brought, ended, total

    def _take_end(self, agent: str, flags: tuple[Any, Any], ended: dict[str, Ends]) -> None:
        ends = flag_of(f"terminated of {agent!r}", flags[0]), flag_of(f"truncated of {agent!r}", flags[1])
        if not any(ends):
            return
        last = self._last_ends
        self._last_ends = (last[0] or ends[0], last[1] or ends[1]) if ended else ends
        self._ended[agent] = self._length - 1
        if agent in self._acted:
            ended[agent] = ends

    def _end_rest(self, outstanding: Mapping[str, Any], brought: dict[str, float], ended: dict[str, Ends]) -> float:
        """Record the ends of agents without a last turn; return their rewards' sum."""
        if not self._acted:
            raise self._nobody_acted()
        total = 0.0
        for agent in [it for it in self._acted if it not in self._ended]:
            _, reward, terminated, truncated, _ = outstanding[agent]
            ends = flag_of(f"terminated of {agent!r}", terminated), flag_of(f"truncated of {agent!r}", truncated)
            if not any(ends):
                raise DataError(f"the agent {agent!r} is gone, and was neither terminated nor truncated")
            self._last_ends = ended[agent] = ends
            if agent in self._waiting:
                brought[agent] = reward_of(reward, agent)
                total += brought[agent]
        return total

    def _next(self, shown: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the agents to act next, without those about to join."""
        turn = self._env.turn(self._ended)
        if not (turn or self._length) and self._env.is_over(self._ended):
            raise self._nobody_acted()
        acting = tuple(it for it in turn if it in self._acted or it in shown or not self._length)
        if missing := [agent for agent in acting if agent not in shown]:
            raise no_observation(missing[0])
        return acting

    def _nobody_acted(self) -> UsageError:
        change = self._env.change_of_possible_agents()
        return UsageError(f"{NOBODY}. {change}" if change else NOBODY)
