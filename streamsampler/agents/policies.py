"""Several agents by name, and which of them plays which agent of an environment: where that is chosen.

In an environment of several agents, an *agent id* is the environment's name for one of them, and a *policy* is an agent
that plays some of them, under a name. `PolicyNames.name_for` chooses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from streamsampler.agents.base import Agent, as_agent, binds, signature_of
from streamsampler.core.errors import UsageError

SHARED = "shared"
"""The name of the only policy, where samplers are given an agent and no dict."""

PolicyOf: TypeAlias = Callable[[str, int], str] | Mapping[str, str]
"""A function `(agent_id, trajectory_index) -> policy name`, or a dict by agent id."""


class PolicyNames:
    """Says by its name which policy plays which agent.

    Args:
        policy_of: What says who plays whom; None for the name that is the agent id, or the agent id up to its last `_`,
            or the only name that there is.
        names: The names that there are; None where any name will do: without `policy_of` it is the agent id up to its
            last `_`, or the agent id that has none.

    Attributes:
        policy_of: See `name_for`.
        names: As above.

    Raises:
        UsageError: `policy_of` is neither a function of an agent id and a trajectory index nor a dict of names.
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
        """Return the name of the policy that plays an agent in a trajectory.

        Args:
            agent_id: The agent of the environment.
            index: The trajectory index.

        Raises:
            UsageError: There is no such policy.
        """
        chosen = self.policy_of
        if chosen is None:
            return self._name_of_agent(agent_id)
        if isinstance(chosen, Mapping):
            if agent_id not in chosen:
                raise UsageError(f"policy_of names no policy for agent {agent_id!r}, but for {_listed(chosen)}")
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
                f"no policy plays agent {agent_id!r}: those that there are have the names {_listed(names)}, of "
                f"which none is {agent_id!r}{f' or {beginning!r}' if beginning else ''}. Pass policy_of=, a dict "
                "by agent id or a function (agent_id, trajectory_index) -> policy name"
            )
        return next(iter(names)) if name is None else name

    def may_play(self, name: str, agent_ids: Iterable[str]) -> list[str]:
        """Return which agents a policy plays in some trajectory: maybe all, where a function chooses.

        Args:
            name: The policy's name.
            agent_ids: All agents that may take part.
        """
        if callable(self.policy_of):
            return list(agent_ids)
        found = []
        for agent_id in agent_ids:
            with contextlib.suppress(UsageError):  # there is none: that is said where the agent takes part
                if self.name_for(agent_id, 0) == name:
                    found.append(agent_id)
        return found

    def _check(self, name: Any, agent_id: Any, what: str) -> None:
        if self.names is None:
            if not isinstance(name, str) or not name:
                raise UsageError(f"{what} names the policy {name!r} for agent {agent_id!r}: names are strings")
        elif not isinstance(name, str) or name not in self.names:
            raise UsageError(
                f"{what} names the policy {name!r} for agent {agent_id!r}, and there are {_listed(self.names)}"
            )


class Policies(PolicyNames):
    """Agents by name, and what says which of them plays whom.

    Args:
        agents: The agents, by policy name.
        policy_of: See `PolicyNames`.

    Attributes:
        agents: The agents.

    Raises:
        UsageError: There is no agent, a name is no string, or `policy_of` is neither a function of an agent id and a
            trajectory index nor a dict of names.
    """

    def __init__(self, agents: Mapping[str, Any], policy_of: PolicyOf | None = None) -> None:
        if not agents or not all(isinstance(name, str) and name for name in agents):
            raise UsageError(f"agents={{…}} has at least one agent, by names that are strings, and not {list(agents)}")
        self.agents: dict[str, Agent] = {name: as_agent(agent) for name, agent in agents.items()}
        super().__init__(policy_of, self.agents)

    def get_action(self, observation: Any) -> Any:
        """Raise: it is an agent only where an environment has several.

        Raises:
            UsageError: Always.
        """
        del observation
        raise UsageError(
            "agents={…} is for environments of several agents (PettingZoo's), and this one has one agent: pass one "
            "agent, or PerWorker([…]) with one for each worker"
        )


class PolicyUpdates(dict[str, tuple[Any, ...]]):
    """Updates of policies by name, complete: of each a pickled new agent, pickled parameters, and a mark of the agent.

    What there is not is None.

    Attributes:
        traits: Of policies that are new agents, by name, what decides which updates they take.
    """

    traits: Mapping[str, Any] = {}

    def over(self, before: PolicyUpdates) -> PolicyUpdates:
        """Return these updates, and of policies that they do not name those before."""
        merged = PolicyUpdates(before)
        for name, (agent, parameters, mark) in self.items():
            kept, _, its_mark = before.get(name, (None, None, None))
            merged[name] = (kept, parameters, its_mark) if agent is None else (agent, parameters, mark)
        merged.traits = {**before.traits, **self.traits}
        return merged


def with_policies(agents: Any, policy_of: PolicyOf | None) -> Any:
    """Return what a sampler was given as `agents`, dicts as `Policies`.

    Args:
        agents: An agent, or a dict of agents by policy name.
        policy_of: See `Policies`; with it, an agent is the policy "shared".
    """
    if isinstance(agents, Mapping):
        return Policies(agents, policy_of)
    return agents if policy_of is None else Policies({SHARED: agents}, policy_of)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names))
