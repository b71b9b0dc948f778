"""Update an agent: distinguish parameters from a new agent, and refuse anything else.

The caller's process checks updates before they are sent. There the current agent is pickled, so the check uses only its
`AgentTraits`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Space

from streamsampler.agents.base import (
    Agent,
    CallableAgent,
    acts_alone,
    adapter_line,
    agent_waits,
    as_agent,
    give_spaces,
    is_agent,
    reset_agent_function,
    shared_agent,
)
from streamsampler.agents.policies import Policies, PolicyUpdates
from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import Payload, dumps, loads

__all__ = [
    "AgentTraits", "UpdateKind", "apply_agent_update", "is_parameters", "resolved_update", "traits_of",
    "updated_agent",
]  # fmt: skip

Converter = Callable[[Any], Any]
UpdateKind = Literal["agent", "parameters"]
"""The effect of an update: a new agent, or parameters for `set_param_values`."""


@dataclass(frozen=True)
class AgentTraits:
    """The facts about an agent that decide which updates it accepts.

    Attributes:
        name: Its name in errors.
        takes_parameters: It has `set_param_values`.
        callable_class: A plain callable's full class name; otherwise None.
        converter: The pickled function from `get_param_converter`, or None.
        takes_spaces: It has `set_spaces`.
        acts_alone: It has `get_action`.
        is_copied: Simultaneous trajectories need copies: it has a `reset`, and does not share parameters.
        waits: `get_action` or `get_actions` is an `async def`.
        of_policies: Traits by policy name, for several policies; otherwise None.
    """

    name: str
    takes_parameters: bool
    callable_class: str | None
    converter: Payload | None
    takes_spaces: bool
    acts_alone: bool = True
    is_copied: bool = False
    waits: bool = False
    of_policies: Mapping[str, AgentTraits] | None = None

    def after(self, before: Any) -> AgentTraits:
        """Return the traits after policy updates, which may include new agents."""
        if not isinstance(before, PolicyUpdates):
            return self
        return replace(self, of_policies={**(self.of_policies or {}), **before.traits})


def traits_of(agent: Agent) -> AgentTraits:
    """Return an agent's traits.

    Raises:
        UsageError: Its `get_param_converter` returns no function.
        SerializationError: That function cannot be pickled.
    """
    if isinstance(agent, Policies):
        of_policies = {name: traits_of(each) for name, each in agent.agents.items()}
        waits = any(each.waits for each in of_policies.values())
        return AgentTraits(
            "several policies",
            True,
            None,
            None,
            takes_spaces=True,
            waits=waits,
            of_policies=of_policies,
            is_copied=any(reset_agent_function(each) is not None for each in agent.agents.values()),
        )
    converter = _converter_of(agent)
    return AgentTraits(
        name=name_of(agent),
        takes_parameters=callable(getattr(agent, "set_param_values", None)),
        callable_class=_class_name(agent.function) if isinstance(agent, CallableAgent) else None,
        converter=None
        if converter is None
        else dumps(converter, "the function from the agent's get_param_converter").owned(),
        takes_spaces=callable(getattr(agent, "set_spaces", None)),
        acts_alone=acts_alone(agent),
        is_copied=reset_agent_function(agent) is not None and not _shares(agent),
        waits=agent_waits(agent),
    )


def _shares(agent: Agent) -> bool:
    try:
        return shared_agent(agent) is not None
    except Exception:  # `AsyncWorker` raises it later; other workers do not call the method
        return False


def has_rows_alone(agent: str, kind: str) -> UsageError:
    """Return the error for an agent with only `get_actions` in a worker that asks for single actions."""
    return UsageError(
        f"the agent ({agent}) has only get_actions, but {kind} asks it for one action at a time: give it get_action, "
        "too, or pass worker_class=VecWorker to the sampler"
    )


def resolved_update(update: Any, traits: AgentTraits) -> tuple[UpdateKind, Any]:
    """Return an update's effect on an agent with these traits.

    The result is "parameters" and the argument for `set_param_values`, or "agent" and the update, for `as_agent`.

    Raises:
        UsageError: The agent does not accept the update.
    """
    if traits.of_policies is not None and not isinstance(update, Policies):
        return "parameters", _policy_updates(update, traits.of_policies)
    if traits.converter is not None:
        made = loads(traits.converter)(update)
        if made is not NotImplemented:
            return "parameters", _checked(made, traits)
    if is_parameters(update):
        if not traits.takes_parameters:
            raise UsageError(
                f"agent_update is a {_kind(update)}, which goes to the agent's set_param_values, but the agent "
                f"({traits.name}) has none; give it one, or pass a whole agent as the update"
            )
        return "parameters", update
    if is_agent(update) or (callable(update) and _class_name(update) == traits.callable_class):
        return "agent", update
    raise _refused(update, traits)


def apply_agent_update(agent: Agent, update: Any) -> Agent:
    """Update an agent, and return it or the agent that replaces it.

    None changes nothing; a tuple, dict or array goes to `set_param_values`, as does the result of
    `get_param_converter`; an agent or plain function replaces the agent.

    Raises:
        UsageError: The agent does not accept the update.
    """
    if update is None:
        return agent
    # In a worker, updates are already resolved to parameters or agents: skip computing traits each time.
    set_param_values = getattr(agent, "set_param_values", None)
    if is_parameters(update) and callable(set_param_values):
        set_param_values(update)
        return agent
    if is_agent(update) and not callable(getattr(agent, "get_param_converter", None)):
        return as_agent(update)
    kind, resolved = resolved_update(update, traits_of(agent))
    if kind == "agent":
        return as_agent(resolved)
    agent.set_param_values(resolved)  # type: ignore[attr-defined]
    return agent


def updated_agent(agent: Agent | None, update: Any, spaces: tuple[Space[Any], Space[Any]] | None) -> Agent:
    """Create an agent (`agent` is None) or update it, and call `set_spaces` on a new agent."""
    updated = as_agent(update) if agent is None else apply_agent_update(agent, update)
    # After a new environment the agent arrives again: where agents are not copied, as the same object.
    if (updated is not agent or updated is update) and spaces is not None:
        give_spaces(updated, *spaces)
    return updated


def is_parameters(update: Any) -> bool:
    """Return whether an agent update (not None) consists of parameters: a tuple, dict or array of any library."""
    if isinstance(update, type) or is_agent(update) or callable(update):
        return False
    return isinstance(update, tuple | dict | np.ndarray) or hasattr(update, "__array__")


def _policy_updates(update: Any, traits: Mapping[str, AgentTraits]) -> PolicyUpdates:
    """Pickle policy updates by name; None changes nothing."""
    names = ", ".join(map(repr, traits))
    if not isinstance(update, Mapping):
        raise UsageError(
            f"with several policies, agent_update must be a dict by policy name ({names}), not a {_kind(update)}"
        )
    if unknown := [name for name in update if name not in traits]:
        raise UsageError(
            f"agent_update names the policies {', '.join(map(repr, unknown))}, but the policies are {names}"
        )
    updates, new = PolicyUpdates(), {}
    for name, each in update.items():
        if each is None:
            continue
        try:
            kind, resolved = resolved_update(each, traits[name])
        except UsageError as error:
            raise UsageError(f"{error} (agent_update[{name!r}])") from None
        if kind == "agent":
            agent = as_agent(resolved)
            new[name], resolved = traits_of(agent), agent
        pickled = dumps(resolved, f"the update of policy {name!r}").owned()
        # The mark distinguishes an agent sent again after parameters from the agent that received them.
        updates[name] = (pickled, None, os.urandom(8)) if kind == "agent" else (None, pickled, None)
    updates.traits = new
    return updates


def _converter_of(agent: Agent) -> Converter | None:
    get_converter = getattr(agent, "get_param_converter", None)
    if not callable(get_converter):
        return None
    converter = get_converter()
    if not callable(converter):
        raise UsageError(
            f"get_param_converter of the agent ({name_of(agent)}) should return a function, but returned {converter!r}"
        )
    return converter  # type: ignore[no-any-return]


def _checked(made: Any, traits: AgentTraits) -> Any:
    if not is_parameters(made):
        raise UsageError(
            f"the function from get_param_converter of the agent ({traits.name}) should return a tuple, a dict or an "
            f"array, or NotImplemented, but returned a {_kind(made)}"
        )
    if not traits.takes_parameters:
        raise UsageError(f"the agent ({traits.name}) has get_param_converter, but no set_param_values")
    return made


def _refused(update: Any, traits: AgentTraits) -> UsageError:
    message = f"agent_update is a {_kind(update)}, neither parameters (a tuple, dict or array) nor an agent: "
    if isinstance(update, type):
        message = f"agent_update is the class {update.__qualname__} itself: pass an instance of it"
    elif not callable(update) and (line := adapter_line(update)) is not None:
        message += f"pass {line}"
    elif not callable(update):
        message += "an object with get_action(observation) -> (action, agent_info), or a plain function"
    else:
        message += f"it is a callable without get_action, which the agent ({traits.name}) does not take; pass "
        if not hasattr(update, "state_dict"):
            message += "a function that calls it, if it chooses actions itself"
        elif traits.takes_parameters:
            message += "its parameters, such as {name: value.numpy(force=True) for name, value in module.state_dict()"
            message += ".items()}, or an agent, such as TorchAgent(module, env.action_space)"
        else:
            message += "an agent, such as TorchAgent(module, env.action_space)"
    return UsageError(message)


def name_of(agent: Any) -> str:
    """Return an agent's name for errors: its class, or a function's name."""
    named = agent.function if isinstance(agent, CallableAgent) else agent
    return str(getattr(named, "__qualname__", type(named).__qualname__))


def _class_name(obj: Any) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def _kind(obj: Any) -> str:
    return type(obj).__qualname__
