"""Agents by name: `random`, or `package.module:object`."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymnasium.spaces import Space

from streamsampler.agents.base import (
    NAMED_AGENTS,
    WHAT_AN_AGENT_IS,
    CallableAgent,
    as_agent,
    binds,
    is_module,
    signature_of,
    takes_keyword,
)
from streamsampler.agents.random import RandomAgent
from streamsampler.cli.current_directory import dotted_name, import_named
from streamsampler.errors import UnknownAgentError, UsageError
from streamsampler.evaluation.agents import has_predict


def load_agent(name: str, observation_space: Space[Any], action_space: Space[Any]) -> Any:
    """Load the agent that `--agent` names.

    Modules are also looked for in the current directory, after all others; it is the last entry of ``sys.path`` from
    then on.

    Args:
        name: ``random``, or ``package.module:object``, where the object is an agent, a plain callable
            ``observation -> action``, or a factory: a class, or a function of two arguments, the observation space and
            the action space. A factory with parameters of these names gets those it has; a factory that takes no
            arguments gets none. The object, or what a factory makes, may be a policy as well: an object with `predict`,
            or a torch module.
        observation_space: The environment's observation space.
        action_space: The environment's action space.

    Returns:
        The agent, or the policy.

    Raises:
        UnknownAgentError: If there is none of that name, or what the name stands for is no agent, or the factory fails.
    """
    if name in NAMED_AGENTS:
        return RandomAgent(action_space)
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path) or dotted_name(module_name) is not None:
        raise UnknownAgentError(_malformed(name))
    obj = _attribute(import_named(module_name, f"agent {name!r}", UnknownAgentError), path, name)
    if not isinstance(obj, type) and callable(getattr(obj, "get_action", None)):
        return as_agent(obj)
    if _is_policy(obj):
        return obj
    if not callable(obj):
        raise UnknownAgentError(
            f"{name!r} is no agent, but of type {type(obj).__qualname__}. An agent is {WHAT_AN_AGENT_IS}"
        )
    call = _factory_call(obj, {"observation_space": observation_space, "action_space": action_space}, name)
    return CallableAgent(obj) if call is None else _made(call, name)


_WEIGHTS = "weights are no agent: name a function that makes the agent with them, such as 'my_agents:trained'"
_FILES = {
    ".pt": _WEIGHTS,
    ".pth": _WEIGHTS,
    ".pkl": "the statistics of a VecNormalize go to --vec-normalize, with --agent model.zip",
    ".npz": "it holds trajectories",
    ".json": "it holds an evaluation",
}
"""What files hold that are no agents, by their endings."""


def _malformed(name: str) -> str:
    message = f"unknown agent {name!r}: an agent is 'random' or 'package.module:object'"
    if Path(f"{name}.zip").is_file():
        return f"{message}, or 'model.zip'. Did you mean '{name}.zip'?"
    if (what := _FILES.get(Path(name).suffix)) is not None:
        return f"{message}, or 'model.zip'; {what}"
    near = difflib.get_close_matches(name.lower(), NAMED_AGENTS, n=1)
    if near:
        return f"{message}. Did you mean {near[0]!r}?"
    module_name, _, attribute = name.partition(":")
    if (dotted := dotted_name(module_name)) is not None:
        return f"{message}. A module goes by its name, not its file's: '{dotted}:{attribute or 'object'}'"
    module_name, _, attribute = name.rpartition(".")
    if module_name and attribute and ":" not in name:
        return f"{message}. Did you mean '{module_name}:{attribute}'?"
    return message


def _attribute(module: Any, path: str, name: str) -> Any:
    obj = module
    for part in path.split("."):
        try:
            obj = getattr(obj, part)
        except AttributeError:
            owner = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or type(obj).__qualname__
            near = difflib.get_close_matches(part, [other for other in dir(obj) if not other.startswith("_")], n=1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise UnknownAgentError(f"unknown agent {name!r}: {owner} has no attribute {part!r}{hint}") from None
    return obj


def _factory_call(obj: Callable[..., Any], spaces: dict[str, Space[Any]], name: str) -> Callable[[], Any] | None:
    """How to call a factory, or None if the object is itself a plain callable ``observation -> action``."""
    is_class = isinstance(obj, type)
    signature = signature_of(obj)
    if signature is None:
        return (lambda: obj(*spaces.values())) if is_class else None
    named = {key: space for key, space in spaces.items() if takes_keyword(signature, key)}
    if named:
        return lambda: obj(**named)
    if _required(signature) < 2 and not is_class and binds(signature, None):
        return None
    if binds(signature, *spaces.values()):
        return lambda: obj(*spaces.values())
    if binds(signature):
        return obj
    raise UnknownAgentError(
        f"{name!r} takes {signature}, but an agent's factory takes (observation_space, action_space), and a plain "
        "callable one observation"
    )


def _required(signature: inspect.Signature) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in signature.parameters.values())


def _is_policy(obj: Any) -> bool:
    """Whether an object is one that adapters make agents of."""
    return not isinstance(obj, type) and (has_predict(obj) or is_module(obj))


def _made(call: Callable[[], Any], name: str) -> Any:
    try:
        made = call()
    except Exception as error:
        raise UnknownAgentError(f"the agent factory {name!r} raised {type(error).__name__}: {error}") from error
    if _is_policy(made):
        return made
    with contextlib.suppress(UsageError):
        return as_agent(made)
    raise UnknownAgentError(f"the agent factory {name!r} returned {made!r}, no agent. An agent is {WHAT_AN_AGENT_IS}")
