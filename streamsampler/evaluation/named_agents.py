"""Name the agents of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from streamsampler.agents.base import is_agent
from streamsampler.core.errors import UsageError
from streamsampler.evaluation.agents import agent_facts, has_predict, refuse_several_agents
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation


def named_agents(agents: Any, example: str) -> dict[str, Any]:
    """Return the agents of a comparison by name.

    Agents in a list are named after their files, functions or classes; dicts and lambdas are numbered from 1 on.

    Raises:
        UsageError: The argument is of another type, has fewer than two agents, or a repeated name.
    """
    if isinstance(agents, Mapping):
        named = {str(name): agent for name, agent in agents.items()}
    elif isinstance(agents, Sequence) and not isinstance(agents, str | bytes):
        named = {}
        for number, agent in enumerate(agents, start=1):
            name = _name_of(agent) or f"agent {number}"
            named[name if name not in named else f"{name} #{len(named) + 1}"] = agent
    else:
        raise UsageError(f"agents must be a dict by name, or a list, got {agents!r:.60}: {example}")
    if len(named) < 2:
        raise UsageError(f"a comparison needs at least two agents, got {len(named)}")
    for name, agent in named.items():
        refuse_several_agents(agent, f"agents[{name!r}]")
    return named


def _name_of(agent: Any) -> str:
    """Return the name of an agent in a list; empty for dicts and lambdas."""
    if isinstance(agent, str | PathLike):
        return Path(fspath(agent)).name
    if isinstance(agent, Evaluation):
        return str(agent.agent.get("name"))
    if isinstance(agent, SuiteEvaluation):
        names = {str(each.agent.get("name")) for each in agent.evaluations}
        return names.pop() if len(names) == 1 else ""
    if isinstance(agent, Mapping):
        return ""
    if has_predict(agent):
        return type(agent).__name__
    name = str(agent_facts(agent)["name"]) if callable(agent) or is_agent(agent) else type(agent).__name__
    return "" if name.endswith("<lambda>") else name
