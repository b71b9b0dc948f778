"""Policies: named agents, each acting for some agents of an environment of several agents.

An *agent id* is the environment's name of an agent. `PolicyNames.name_for` chooses its policy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from streamsampler.agents.base import Agent, as_agent, binds, signature_of
from streamsampler.core.errors import UsageError

SHARED = "shared"
"""The policy name of an agent passed without a dict."""

PolicyOf: TypeAlias = Callable[[str, int], str] | Mapping[str, str]
"""A function `(agent_id, trajectory_index) -> policy name`, or a dict by agent id."""


class PolicyNames:
    """Chooses, by name, the policy that acts for each agent of an environment.

    Without `policy_of`, that is the agent id, or the agent id up to its last `_`, or the only name. Without `names`,
    any name is valid.

    Raises:
        UsageError: `policy_of` is neither a function of agent id and trajectory index nor a dict of names.
    """

    def __init__(self, policy_of: PolicyOf | None, names: Mapping[str, Any] | None = None) -> None:
        self.policy_of, self.names = policy_of, names
        if isinstance(policy_of, Mapping):
            for agent_id, name in policy_of.items():
                self._check(name, agent_id, "policy_of")
        elif not (policy_of is None or callable(policy_of)):
            raise UsageError(
                f"policy_of is a function (agent_id, trajectory_index) -> policy name, or a dict, not {policy_of!r:.60}"
            )
        elif policy_of is not None and (found := signature_of(policy_of)) is not None and not binds(found, "", 0):
            raise UsageError(
                f"policy_of takes {found}, and is called with two arguments: policy_of(agent_id, trajectory_index) -> "
                "policy name"
            )

    def name_for(self, agent_id: str, index: int) -> str:
        """Return the name of the policy that acts for an agent in a trajectory; UsageError if no policy has it."""
        chosen = self.policy_of
        if chosen is None:
            return self._name_of_agent(agent_id)
        if isinstance(chosen, Mapping):
            if agent_id not in chosen:
                raise UsageError(f"policy_of names no policy for agent {agent_id!r}, only for {_listed(chosen)}")
            return chosen[agent_id]
        name = chosen(agent_id, index)
        self._check(name, agent_id, f"policy_of({agent_id!r}, {index})")
        return name

    def _name_of_agent(self, agent_id: str) -> str:
        beginning, names = agent_id.rpartition("_")[0], self.names
        if names is None:
            return beginning or agent_id
        name = next((name for name in (agent_id, beginning) if name in names), None)
        if name is None and len(names) > 1:
            raise UsageError(
                f"no policy plays agent {agent_id!r}: the policies have the names {_listed(names)}, and none has "
                f"the name {agent_id!r}{f' or {beginning!r}' if beginning else ''}. Pass policy_of=, a dict "
                "by agent id or a function (agent_id, trajectory_index) -> policy name"
            )
        return next(iter(names)) if name is None else name

    def may_play(self, name: str, agent_ids: Iterable[str]) -> list[str]:
        """Return the agents for which a policy may act in some trajectory: all of them, where a function chooses."""
        if callable(self.policy_of):
            return list(agent_ids)
        found = []
        for agent_id in agent_ids:
            with contextlib.suppress(UsageError):  # raised again when an agent without policy takes part
                if self.name_for(agent_id, 0) == name:
                    found.append(agent_id)
        return found

    def _check(self, name: Any, agent_id: Any, what: str) -> None:
        if self.names is None:
            if not isinstance(name, str) or not name:
                raise UsageError(f"{what} names the policy {name!r} for agent {agent_id!r}: names must be strings")
        elif not isinstance(name, str) or name not in self.names:
            raise UsageError(
                f"{what} names the policy {name!r} for agent {agent_id!r}, but the policies are {_listed(self.names)}"
            )


class Policies(PolicyNames):
    """Agents by policy name, and the choice of a policy for each agent of the environment; see `PolicyNames`.

    Raises:
        UsageError: The dict is empty, a name is not a string, or `policy_of` is invalid.
    """

    def __init__(self, agents: Mapping[str, Any], policy_of: PolicyOf | None = None) -> None:
        if not agents or not all(isinstance(name, str) and name for name in agents):
            raise UsageError(f"agents={{…}} must have at least one agent, with strings as names, not {list(agents)}")
        self.agents: dict[str, Agent] = {name: as_agent(agent) for name, agent in agents.items()}
        super().__init__(policy_of, self.agents)

    def get_action(self, observation: Any) -> Any:
        """Raise UsageError, because policies act only in environments of several agents."""
        del observation
        raise UsageError(
            "agents={…} is for environments of several agents (PettingZoo's), but this environment has one agent: "
            "pass one agent, or PerWorker([…]) with an agent for each worker"
        )


class PolicyUpdates(dict[str, tuple[Any, ...]]):
    """Cumulative updates by policy name: a pickled new agent, pickled parameters, and the agent's mark, each or None.

    `traits` has the traits of new agents by policy name.
    """

    traits: Mapping[str, Any] = {}

    def over(self, before: PolicyUpdates) -> PolicyUpdates:
        """Return these updates merged over earlier updates."""
        merged = PolicyUpdates(before)
        for name, (agent, parameters, mark) in self.items():
            kept, _, its_mark = before.get(name, (None, None, None))
            merged[name] = (kept, parameters, its_mark) if agent is None else (agent, parameters, mark)
        merged.traits = {**before.traits, **self.traits}
        return merged


def with_policies(agents: Any, policy_of: PolicyOf | None) -> Any:
    """Return a sampler's `agents`, as `Policies` for a dict, or with `policy_of` as the single policy "shared"."""
    if isinstance(agents, Mapping):
        return Policies(agents, policy_of)
    return agents if policy_of is None else Policies({SHARED: agents}, policy_of)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names))
