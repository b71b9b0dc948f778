"""Make agents of what users evaluate, and say which agent it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike, fspath
from typing import Any, Protocol, TypeAlias

import numpy as np
from gymnasium import Space

from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.agents.base import NAMED_AGENTS, as_agent, is_module
from streamsampler.agents.policies import Policies, PolicyOf
from streamsampler.data.trees import leaves
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.errors import UsageError
from streamsampler.samplers.per_worker import Agents, items_by_worker
from streamsampler.samplers.provenance import shown_name

__all__ = ["EvaluatedAgent", "Predicting", "agent_facts", "evaluated_agent", "has_predict"]


class Predicting(Protocol):
    """An object that acts by `predict`, as models of Stable-Baselines3 do."""

    @property
    def predict(self) -> Callable[..., Any]:
        """Takes an observation, and returns the action, or a tuple that begins with it."""


EvaluatedAgent: TypeAlias = Agents | Predicting | str | PathLike[str]
"""What is evaluated: whatever samplers take, an object with `predict`, or the file of a model."""

_NOT_APPLICABLE = (
    "deterministic is for agents with predict and for torch modules; this {} decides for itself: leave it out, "
    "or make the agent with deterministic=…"
)


def evaluated_agent(
    agent: Any, deterministic: bool | None, vec_normalize: Any, action_space: Callable[[], Space[Any]],
    policy_of: PolicyOf | None = None,
) -> Any:  # fmt: skip
    """Return what a sampler takes.

    Args:
        agent: An agent in any form that samplers take; a model of Stable-Baselines3, the `.zip` file of one, another
            object with `predict`; or a torch module.
        deterministic: Whether to act without drawing; None for True where there is `predict`, and otherwise for what
            the agent does by itself.
        vec_normalize: See `SB3Agent`.
        action_space: Returns the environment's; called for torch modules only.
        policy_of: Which of several policies plays which agent; see `streamsampler.Sampler`.

    Raises:
        UsageError: `deterministic` or `vec_normalize` is for another kind of agent.
        ImportError: A library is missing.
        OSError: A file cannot be read.
    """
    if isinstance(agent, Mapping):
        chosen = Policies(dict.fromkeys(agent, NAMED_AGENTS[0]), policy_of)
        return {
            name: evaluated_agent(each, deterministic, vec_normalize, partial(_space_of, action_space, chosen, name))
            for name, each in agent.items()
        }
    if isinstance(agent, PathLike) or (isinstance(agent, str) and agent.endswith(".zip")):
        return SB3Agent.load(fspath(agent), deterministic=deterministic is not False, vec_normalize=vec_normalize)
    if has_predict(agent):
        return SB3Agent(agent, deterministic=deterministic is not False, vec_normalize=vec_normalize)
    if vec_normalize is not None:
        raise UsageError("vec_normalize is for a model of Stable-Baselines3")
    if is_module(agent) and not callable(getattr(agent, "get_action", None)):
        from streamsampler.adapters.torch import TorchAgent  # needs torch, which the module has loaded

        return TorchAgent(agent, _space_of(action_space), deterministic=bool(deterministic))
    if deterministic is not None and getattr(agent, "deterministic", None) != deterministic:
        raise UsageError(_NOT_APPLICABLE.format(type(agent).__qualname__))
    return agent


def _space_of(action_space: Callable[[], Space[Any]], policies: Policies | None = None, name: str = "") -> Space[Any]:
    """Return the action space that an agent, or one of several policies, acts in."""
    space = action_space()
    if not isinstance(space, SpacesOfAgents):
        return space
    for agent_id, own in space.spaces.items():
        if policies is None or policies.name_for(agent_id, 0) == name:
            return own
    raise UsageError(f"policy {name!r} plays no agent: give it as a TorchAgent, with its action space")


def has_predict(agent: Any) -> bool:
    """Whether an object acts by `predict`, as models of Stable-Baselines3 do, and is no agent by itself."""
    return callable(getattr(agent, "predict", None)) and not callable(getattr(agent, "get_action", None))


def agent_facts(agent: Any) -> dict[str, Any]:
    """Return what tells an agent from others: its name, a digest of its parameters, whether it is deterministic.

    An agent's name is its attribute `name` where that is a text, as `SB3Agent` has the name of the model's file.

    Args:
        agent: What a sampler takes for agents.
    """
    items = items_by_worker(agent)
    if items is not None:
        return {"name": f"{len(items)} agents, one for each worker"}
    if isinstance(agent, Mapping):
        each = {name: agent_facts(one) for name, one in agent.items()}
        names = ", ".join(f"{name}={facts['name']}" for name, facts in each.items())
        digests = {name: facts["parameters"] for name, facts in each.items() if "parameters" in facts}
        return {"name": names, **({"parameters": digests} if digests else {})}
    agent = as_agent(agent)
    own = getattr(agent, "name", None)
    name = own if isinstance(own, str) and own else shown_name(getattr(agent, "function", agent))
    facts: dict[str, Any] = {"name": name}
    if isinstance(said := getattr(agent, "deterministic", None), bool):
        facts["deterministic"] = said
    if (digest := _digest(agent)) is not None:
        facts["parameters"] = f"sha256:{digest}"
    return facts


def _digest(agent: Any) -> str | None:
    """Return a digest of an agent's parameters; None where it has none to show."""
    get_param_values = getattr(agent, "get_param_values", None)
    if not callable(get_param_values):
        return None
    try:
        values = get_param_values()
        found = leaves(values) if not isinstance(values, dict) else [(key, values[key]) for key in sorted(values)]
        digest = hashlib.sha256()
        for name, leaf in found:
            array = np.ascontiguousarray(leaf)
            if array.dtype.hasobject:
                return None
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(array.tobytes())
    except Exception:  # parameters of a kind of their own are no reason not to evaluate
        return None
    return digest.hexdigest()
