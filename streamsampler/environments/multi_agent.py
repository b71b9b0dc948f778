"""Environments of several agents: PettingZoo's `ParallelEnv` and `AECEnv`, with the same `reset` and `step`.

They are recognised by their methods, so PettingZoo need not be installed. Observations, rewards, ends and infos are
dicts by agent id. A step of an `AECEnv` is a turn, with dicts about the agent that acts next: the reward is its sum
since its last action, and the observation is the input of its next action.

An agent id has a single life in a trajectory, with a single seed: listing it again after its end is an error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, Self

import gymnasium
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Space

from streamsampler.core.awaiting import has_coroutines, then
from streamsampler.core.errors import DataError, UsageError

Dicts = tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]


class MultiAgentEnvLike(Protocol):
    """An environment of several agents, for type checkers: PettingZoo's, or another with the same methods."""

    def observation_space(self, agent: Any, /) -> Any:
        """Return an agent's observation space."""

    def action_space(self, agent: Any, /) -> Any:
        """Return an agent's action space."""


class SpacesOfAgents(gym_spaces.Dict):
    """The spaces of all possible agents by agent id; a value is a dict with values of some agents."""

    def contains(self, x: Any) -> bool:
        """Return whether each value is in its agent's space; agents may be missing."""
        return isinstance(x, Mapping) and all(key in self.spaces and value in self[key] for key, value in x.items())


class OpenSpaces(SpacesOfAgents):
    """The spaces of agents in an environment without `possible_agents`, found when an agent appears.

    Copies are empty, and all copies are equal: batches state the common spaces of their agents.
    """

    def __init__(self, find: Callable[[str], Space[Any]] | None = None) -> None:
        super().__init__({})
        self._find = find
        self._found: dict[str, Space[Any]] = {}

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def __getitem__(self, agent: str) -> Space[Any]:
        if agent not in self._found:
            if self._find is None:
                raise KeyError(agent)
            self._found[agent] = self._find(agent)
        return self._found[agent]

    def contains(self, x: Any) -> bool:
        return isinstance(x, Mapping) and all(value in self[key] for key, value in x.items())

    def forget(self) -> None:
        """Forget all agents: each trajectory may have others."""
        self._found.clear()


def is_multi_agent(env: Any) -> bool:
    """Return whether an object is an environment of several agents, of PettingZoo or with the same methods.

    In Gymnasium's environments, `observation_space` and `action_space` are not methods.
    """
    methods = ("observation_space", "action_space", "reset", "step")
    return not isinstance(env, type | gymnasium.Env) and all(callable(getattr(env, name, None)) for name in methods)


def as_multi_agent(env: Any) -> MultiAgentEnv:
    """Wrap an environment of several agents in the interface that workers step."""
    takes_turns = callable(getattr(env, "last", None)) and callable(getattr(env, "observe", None))
    return AecEnv(env) if takes_turns else ParallelEnv(env)


class MultiAgentEnv(gymnasium.Env[Any, Any]):
    """An environment of several agents.

    Attributes:
        env: The environment itself, with all attributes not defined here.
        is_open: Whether it has no `possible_agents`: any agents may appear.
        numbers: Numbers by agent id, in the order of `possible_agents`; in an open environment, of the agents listed
            since the last reset, in order of appearance.
        observation_space: Observation spaces by agent id.
        action_space: Action spaces by agent id.
        takes_turns: Whether a single agent acts in each step.

    Raises:
        UsageError: `possible_agents` is empty, or has other values than strings.
    """

    takes_turns = False

    def __init__(self, env: Any) -> None:
        self.env = env
        name = _name_of(env)
        possible = getattr(env, "possible_agents", None)  # a property of PettingZoo's wrappers, which may raise
        self.is_open = possible is None
        ids = () if possible is None else tuple(possible)
        if not self.is_open and not (ids and all(isinstance(each, str) for each in ids) and len(set(ids)) == len(ids)):
            raise UsageError(f"{name}: possible_agents must be different strings, at least one, but are {ids!r:.80}")
        self.numbers = {agent_id: number for number, agent_id in enumerate(ids)}
        self._left: set[str] = set()  # agents that ended, and were not listed afterwards
        self.observation_space: Any = self._spaces("observation_space")
        self.action_space: Any = self._spaces("action_space")
        self.spec = SimpleNamespace(id=name, max_episode_steps=None)  # type: ignore[assignment]
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet
            raise AttributeError(name)
        return getattr(self.env, name)

    def __reduce__(self) -> tuple[type[Self], tuple[Any]]:
        return type(self), (self.env,)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute on its owner, the environment or a wrapper; a new attribute on the innermost environment."""
        holder = self.env
        while not (name in vars(holder) or hasattr(type(holder), name)) and "env" in vars(holder):
            holder = holder.env
        if not (force or hasattr(holder, name)):
            return False
        setattr(holder, name, value)
        return True

    def _spaces(self, name: str) -> SpacesOfAgents:
        find = partial(_space, self.env, name)
        return OpenSpaces(find) if self.is_open else SpacesOfAgents([(agent, find(agent)) for agent in self.numbers])

    def _forget_agents(self) -> None:
        """Forget the ended agents and, in an open environment, all agents."""
        self._left.clear()
        if self.is_open:
            self.numbers.clear()
            self.observation_space.forget()
            self.action_space.forget()

    def meet_listed(self) -> None:
        """Number newly listed agents of an open environment; raise DataError unless ids are strings."""
        if not self.is_open:
            return
        for agent in self.env.agents:
            if agent not in self.numbers:
                if not isinstance(agent, str):
                    raise DataError(f"the ids of agents must be strings, but env.agents has {agent!r:.60}")
                self.numbers[agent] = len(self.numbers)

    def _refuse_second_lives(self, ended: Mapping[str, int]) -> None:
        if back := [agent for agent in self.env.agents if agent in self._left]:
            raise returned(back[0], ended)
        self._left.update(agent for agent in ended if agent not in self.env.agents)

    @abstractmethod
    def turn(self, ended: Mapping[str, int]) -> list[str]:
        """Return the agents to act next, in the order of `numbers`.

        Args:
            ended: The timesteps of agents' ends (termination or truncation) in this trajectory, by agent id.

        Raises:
            DataError: An agent is unknown, disappeared without an end, or is listed again after its end.
        """

    @abstractmethod
    def is_over(self, ended: Mapping[str, int]) -> bool:
        """Return whether no agent remains."""

    def lists(self, agent: str) -> bool:
        return agent in self.env.agents

    def change_of_possible_agents(self) -> str:
        """Return a message about agents lost from `possible_agents`, which must not change, or ""."""
        gone = set() if self.is_open else self.numbers.keys() - self.env.possible_agents
        if not gone:
            return ""
        first = min(gone, key=self.numbers.__getitem__)
        return (
            f"possible_agents has lost {first!r} since the environment was made: let reset copy the list, "
            "self.agents = list(self.possible_agents), or the removal of an ended agent from agents changes both"
        )

    @abstractmethod
    def outstanding(self, agent_id: str) -> tuple[Any, Any, Any, Any, Any]:
        """Return an agent's observation, reward, two ends and info, as if its turn came now."""

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> Any:
        return self.env.close()


class ParallelEnv(MultiAgentEnv):
    """A `ParallelEnv`: all remaining agents act in each step."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.step = env.step  # type: ignore[method-assign]  # saves a call
        self._listed: list[str] = []
        self._n_ended = 0
        self._turn: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._forget_agents()
        reset = self.env.reset if options is None else partial(self.env.reset, options=options)
        return then(reset(seed=seed), self._met)  # type: ignore[no-any-return]

    def _met(self, result: Any) -> Any:
        self.meet_listed()
        return result

    def _forget_agents(self) -> None:
        super()._forget_agents()
        self._turn, self._n_ended = [], -1

    def turn(self, ended: Mapping[str, int]) -> list[str]:
        """Return all listed agents without an end."""
        listed = self.env.agents
        if len(ended) != self._n_ended or listed != self._listed:
            self._listed, self._n_ended = list(listed), len(ended)
            there = set(listed)
            self.meet_listed()
            if unknown := there.difference(self.numbers):
                raise DataError(f"the agents {sorted(map(str, unknown))} are not among possible_agents")
            if gone := [agent for agent in self._turn if agent not in there and agent not in ended]:
                raise DataError(f"the agent {gone[0]!r} is gone, and was neither terminated nor truncated")
            self._refuse_second_lives(ended)
            self._turn = [agent for agent in self.numbers if agent in there and agent not in ended]
        return self._turn

    def is_over(self, ended: Mapping[str, int]) -> bool:
        return not self.turn(ended)

    def explain_missing_action(self, error: KeyError, actions: Mapping[str, Any]) -> None:
        """Add a note to an error of a step, if the environment seems to need the action of an absent agent."""
        agent = error.args[0] if error.args else None
        if isinstance(agent, str) and agent in self.numbers and agent not in actions:
            error.add_note(
                f"(agent {agent!r} has no action in this step, because it has ended or is not in env.agents. Remove "
                "ended agents from env.agents, and let step read the actions of the other agents alone)"
            )

    def outstanding(self, agent_id: str) -> tuple[Any, Any, Any, Any, Any]:
        """Raise DataError, because a step must answer every agent that acts in it."""
        raise DataError(f"the environment returned no observation for agent {agent_id!r}, which has not ended")


class AecEnv(MultiAgentEnv):
    """An `AECEnv`: agents act in turn, and each ended agent has a last turn with the action None."""

    takes_turns = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        if unawaited := [name for name in ("last", "observe") if has_coroutines(env, name)]:
            raise UsageError(
                f"{_name_of(env)}: {unawaited[0]} is an async def, which is never awaited: wait in reset and step"
            )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; return the first agent's observation and info."""
        self._forget_agents()
        reset = self.env.reset if options is None else partial(self.env.reset, options=options)
        return then(reset(seed=seed), self._first)  # type: ignore[no-any-return]

    def _first(self, _: Any) -> tuple[Any, dict[str, Any]]:
        observations, _, _, _, infos = self._next()
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> Dicts:  # type: ignore[override]
        """Step with the current agent's action; return the next agent's results."""
        pending = self.env.step(actions.get(self.env.agent_selection))
        return self._next() if pending is None else then(pending, self._next)

    def _next(self, _: Any = None) -> Dicts:
        self.meet_listed()
        of_none = self._infos_of_no_agent()
        if not self.env.agents:
            return {}, {}, {}, {}, of_none
        agent = self.env.agent_selection
        try:
            observation, reward, terminated, truncated, info = self.env.last()
        except (TypeError, ValueError) as error:
            raise DataError(
                f"last() must return (observation, reward, terminated, truncated, info): {error}"
            ) from error
        return {agent: observation}, {agent: reward}, {agent: terminated}, {agent: truncated}, {**of_none, agent: info}

    def _infos_of_no_agent(self) -> dict[str, Any]:
        infos = getattr(self.env, "infos", None)
        if not isinstance(infos, Mapping) or infos.keys() <= self.numbers.keys():
            return {}
        return {key: info for key, info in infos.items() if key not in self.numbers}

    def turn(self, ended: Mapping[str, int]) -> list[str]:
        """Return the current agent, unless it has ended."""
        if ended:
            self._refuse_second_lives(ended)
        if not self.env.agents or (agent := self.env.agent_selection) in ended:
            return []
        if agent not in self.numbers:
            raise DataError(f"the agent {agent!r} is not among possible_agents")
        return [agent]

    def is_over(self, ended: Mapping[str, int]) -> bool:  # noqa: ARG002 - those that ended have turns, too
        return not self.env.agents

    def outstanding(self, agent_id: str) -> tuple[Any, Any, Any, Any, Any]:
        """Return an agent's observation now, its rewards since its last action, its two ends, and its info."""
        env = self.env
        # PettingZoo's private name, which its wrappers forward.
        try:
            reward = env._cumulative_rewards.get(agent_id, 0.0)
        except AttributeError:
            raise DataError("an AECEnv must have _cumulative_rewards, as PettingZoo's class has") from None
        ends = env.terminations.get(agent_id, False), env.truncations.get(agent_id, False)
        return env.observe(agent_id), reward, *ends, env.infos.get(agent_id)


def returned(agent: str, ended: Mapping[str, int]) -> DataError:
    """Return the error for an agent listed again after its end; `ended` as in `MultiAgentEnv.turn`."""
    return DataError(
        f"agent {agent!r} ended at timestep {ended[agent]}, but is in env.agents again: an ended agent cannot "
        "return in the same trajectory. Let the environment give each new life its own id, or start it in a new "
        "trajectory"
    )


def agents_of(env: Any) -> MultiAgentEnv | None:
    """Return the environment of several agents within wrappers; None for an environment of a single agent."""
    several = env.unwrapped
    return several if isinstance(several, MultiAgentEnv) else None


def refuse_other_agents(one: Any, other: Any) -> None:
    """Refuse environments with different agents in a worker: its rows share their policies."""
    found = [_form(env) for env in (one, other)]
    if found[0] != found[1]:
        raise DataError(
            "the environments of one worker must have the same agents, in the same order and of one kind: one has "
            f"{found[0]}, another has {found[1]}"
        )


def _form(env: Any) -> str:
    if not isinstance(env, MultiAgentEnv):
        return "one agent"
    who = "any agents" if env.is_open else f"{list(env.numbers)}"
    return f"{who}, which act {'in turn' if env.takes_turns else 'at once'}"


def _space(env: Any, name: str, agent: str) -> Space[Any]:
    space = getattr(env, name)(agent)
    if not isinstance(space, Space):
        raise UsageError(f"{_name_of(env)}: {name}({agent!r}) must be a space of Gymnasium, but is {space!r:.60}")
    return space


def _name_of(env: Any) -> str:
    metadata = getattr(env, "metadata", None)
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) else type(getattr(env, "unwrapped", env)).__qualname__
