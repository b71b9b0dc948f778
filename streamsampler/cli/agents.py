"""Load the agents that users name: objects of modules, models of Stable-Baselines3, and policies by name."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import gymnasium
from gymnasium.spaces import Space

from streamsampler.agents import base
from streamsampler.agents.policies import SHARED, Policies
from streamsampler.agents.random import RandomAgent
from streamsampler.cli.environments import Spaces
from streamsampler.cli.modules import dotted_name, import_named
from streamsampler.cli.streams import failure
from streamsampler.cli.values import by_key
from streamsampler.core.errors import UnknownAgentError, UsageError
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.evaluation.agents import evaluated_agent, has_predict

_NO_STATISTICS = "none"
_POLICY = re.compile(r"[\w-]+=.+", re.DOTALL)


def load_agent(name: str, observation_space: Space[Any], action_space: Space[Any]) -> Any:
    """Load the agent of `--agent`.

    Modules are searched in the current directory last, which becomes the last entry of ``sys.path``.

    Args:
        name: ``random``, or ``package.module:object``: an agent, a plain callable ``observation -> action``, or a
            factory, which is a class, or a function of the observation space and the action space. A factory with
            parameters of these names receives those it has; a factory without parameters receives nothing. The object,
            or a factory's result, may also be a policy: an object with `predict`, or a torch module.
        observation_space: The environment's observation space.
        action_space: The environment's action space.

    Returns:
        The agent, or the policy.

    Raises:
        UnknownAgentError: No such object exists, or it is no agent, or the factory fails.
    """
    if name in base.NAMED_AGENTS:
        return RandomAgent(action_space)
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path) or dotted_name(module_name) is not None:
        raise UnknownAgentError(_malformed(name))
    obj = _attribute(import_named(module_name, f"agent {name!r}", UnknownAgentError), path, name)
    methods = [getattr(obj, method, None) for method in ("get_action", "get_actions")]
    if not isinstance(obj, type) and any(map(callable, methods)):
        return base.as_agent(obj)
    if _is_policy(obj):
        return obj
    if not callable(obj):
        raise UnknownAgentError(
            f"{name!r} is no agent, but of type {type(obj).__qualname__}. An agent is {base.WHAT_AN_AGENT_IS}"
        )
    call = _factory_call(obj, {"observation_space": observation_space, "action_space": action_space}, name)
    return base.CallableAgent(obj) if call is None else _made(call, name)


_WEIGHTS = "a file of weights is no agent: name a function that makes the agent with them, such as 'my_agents:trained'"
_FILES = {
    ".pt": _WEIGHTS,
    ".pth": _WEIGHTS,
    ".pkl": "give the statistics of a VecNormalize to --vec-normalize, with --agent model.zip",
    ".npz": "it holds trajectories",
    ".json": "it holds an evaluation",
}
"""Contents of files that are no agents, by suffix."""


def _malformed(name: str) -> str:
    message = f"unknown agent {name!r}: an agent is 'random' or 'package.module:object'"
    if Path(f"{name}.zip").is_file():
        return f"{message}, or 'model.zip'. Did you mean '{name}.zip'?"
    if (what := _FILES.get(Path(name).suffix)) is not None:
        return f"{message}, or 'model.zip'; {what}"
    near = difflib.get_close_matches(name.lower(), base.NAMED_AGENTS, n=1)
    if near:
        return f"{message}. Did you mean {near[0]!r}?"
    module_name, _, attribute = name.partition(":")
    if (dotted := dotted_name(module_name)) is not None:
        return f"{message}. Give the module's name, not its file's: '{dotted}:{attribute or 'object'}'"
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
    """Return a function that calls a factory, or None for a plain callable ``observation -> action``."""
    is_class = isinstance(obj, type)
    signature = base.signature_of(obj)
    if signature is None:
        return (lambda: obj(*spaces.values())) if is_class else None
    named = {key: space for key, space in spaces.items() if base.takes_keyword(signature, key)}
    if named:
        return lambda: obj(**named)
    if _required(signature) < 2 and not is_class and base.binds(signature, None):
        return None
    if base.binds(signature, *spaces.values()):
        return lambda: obj(*spaces.values())
    if base.binds(signature):
        return obj
    raise UnknownAgentError(
        f"{name!r} takes {signature}, but an agent's factory takes (observation_space, action_space), and a plain "
        "callable one observation"
    )


def _required(signature: inspect.Signature) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in signature.parameters.values())


def _is_policy(obj: Any) -> bool:
    return not isinstance(obj, type) and (has_predict(obj) or base.is_module(obj))


def _made(call: Callable[[], Any], name: str) -> Any:
    try:
        made = call()
    except Exception as error:
        raise UnknownAgentError(f"the agent factory {name!r} raised {type(error).__name__}: {error}") from error
    if _is_policy(made):
        return made
    with contextlib.suppress(UsageError):
        return base.as_agent(made)
    raise UnknownAgentError(
        f"the agent factory {name!r} returned {made!r}, no agent. An agent is {base.WHAT_AN_AGENT_IS}"
    )


def is_model_file(agent: str) -> bool:
    """Return whether `--agent` names a file instead of a module's object."""
    return agent.endswith(".zip")


def statistics_of(names: Iterable[str], given: Sequence[str]) -> list[str | None]:
    """Return the value of `--vec-normalize` for each agent: a single value for all models, or one per model in order.

    Raises:
        UsageError: No agent is a model, or the numbers of models and values differ.
    """
    are_models = [*map(is_model_file, names)]
    n_models = sum(are_models)
    if given and not n_models:
        raise UsageError("--vec-normalize is for a model of Stable-Baselines3: give --agent model.zip, too")
    if len(given) > 1 and len(given) != n_models:
        raise UsageError(
            f"--vec-normalize is given {len(given)} times for {n_models} models: give it once for all models, or once "
            f"per model in their order; 'none' for a model trained without statistics"
        )
    left = iter([*given] * (n_models if len(given) == 1 else 1))
    return [next(left, None) if is_model else None for is_model in are_models]


def load_each(
    names: Collection[str], statistics: Sequence[str], spaces: Iterable[Spaces], deterministic: bool | None,
    *, predicting: bool = False,
) -> list[Any]:  # fmt: skip
    """Load agents by name.

    Args:
        names: Names for `load_agent`, or files of Stable-Baselines3.
        statistics: See `statistics_of`.
        spaces: The observation space and the action space of each.
        deterministic: Whether to act without drawing; None for the default.
        predicting: The default for policies with `predict`.

    Raises:
        UsageError: No such agent exists, or it is for other spaces.
        click.ClickException: Loading fails.
    """
    agents = []
    for name, each, its_spaces in zip(names, statistics_of(names, statistics), spaces, strict=False):
        if is_model_file(name):
            agents.append(_model(name, each, its_spaces, predicting if deterministic is None else deterministic))
            continue
        agent = load_agent(name, *its_spaces)
        draws_not = predicting if deterministic is None and has_predict(agent) else deterministic
        agents.append(evaluated_agent(agent, draws_not, None, lambda: its_spaces[1]))  # noqa: B023 (called at once)
    return agents


def load_agents(options: Mapping[str, Any], spaces: Spaces, *, predicting: bool = False) -> Any:
    """Return the agent of `--agent`, or a dict of agents if it names policies.

    Args:
        options: The options; see `take_policies`.
        spaces: The environment's spaces; for several agents, those of each.
        predicting: See `load_each`.
    """
    policies, policy_of = options.get("policies"), options.get("policy_of")
    if not isinstance(spaces[0], SpacesOfAgents):
        if policies is not None:
            raise UsageError(
                "--agent POLICY=NAME is for environments of several agents, but this environment has a single agent"
            )
        return load_policies(options, {SHARED: spaces}, predicting=predicting)
    known = Policies(dict.fromkeys(policies or (SHARED,), base.NAMED_AGENTS[0]), policy_of)
    of_policies: dict[str, Spaces] = {}
    for agent_id in spaces[0].spaces:
        of_policies.setdefault(known.name_for(agent_id, 0), (spaces[0][agent_id], spaces[1][agent_id]))  # type: ignore[index]
    if idle := [policy for policy in policies or () if policy not in of_policies]:
        raise UsageError(f"--agent {idle[0]}=…: it plays no agent; the agents are {', '.join(spaces[0].spaces)}")
    return load_policies(options, of_policies, predicting=predicting)


def load_policies(options: Mapping[str, Any], spaces: Mapping[str, Spaces], *, predicting: bool = False) -> Any:
    """Load agents as `load_agents` does, with the known spaces of each policy; a single policy is "shared"."""
    names = options.get("policies") or {SHARED: options["agent"]}
    statistics = () if options["vec_normalize"] is None else (options["vec_normalize"],)
    of_names = [spaces[policy] for policy in names]
    agents = load_each(names.values(), statistics, of_names, options["deterministic"], predicting=predicting)
    return dict(zip(names, agents, strict=True)) if options.get("policies") else agents[0]


def _model(name: str, statistics: str | None, spaces: Spaces, deterministic: bool) -> Any:
    from streamsampler.agents.sb3 import SB3Agent

    if not Path(name).is_file():
        raise UnknownAgentError(f"unknown agent {name!r}: no such file")
    if statistics not in (None, _NO_STATISTICS) and not Path(statistics).is_file():
        raise UsageError(f"--vec-normalize: no such file: {statistics!r}")
    try:
        found = False if statistics == _NO_STATISTICS else statistics
        agent = SB3Agent.load(name, deterministic=deterministic, vec_normalize=found)
    except UsageError:
        raise
    except Exception as error:
        said = f": {error}" if isinstance(error, ImportError) else f" cannot be loaded: {type(error).__name__}: {error}"
        raise failure(f"--agent {name}{said}") from None
    for what, here in zip(("observation", "action"), spaces, strict=True):
        if not _fit(there := getattr(agent.policy, f"{what}_space", None), here):
            raise UsageError(f"--agent {name} was trained with {what}s in {there}, and the environment's are in {here}")
    return agent


def _fit(there: Any, here: gymnasium.Space[Any]) -> bool:
    """Return whether a policy accepts values of a space; images may have either order of axes."""
    if isinstance(there, gymnasium.spaces.Dict) and isinstance(here, gymnasium.spaces.Dict):
        return there.keys() == here.keys() and all(_fit(there[key], here[key]) for key in there)
    if isinstance(there, gymnasium.spaces.Box) and isinstance(here, gymnasium.spaces.Box):
        return sorted(there.shape) == sorted(here.shape)
    return there is None or there == here


def take_policies(options: dict[str, Any], env_id: str = "") -> str:
    """Move the agents and policies of the arguments into the options `agent`, `policies` and `policy_of`.

    Args:
        options: All options of a command; changed.
        env_id: The requested environment.

    Returns:
        The environment's id.

    Raises:
        click.BadParameter: Several agents have no names, or a name has a wrong form.
    """
    given: tuple[str, ...] = options["agent"]
    pairs = [None if Path(text).is_file() else _POLICY.fullmatch(text) for text in given]
    options["policies"] = None
    if len(given) > 1 or any(pairs):
        if None in pairs:
            raise click.BadParameter(
                f"{given[pairs.index(None)]!r} has no policy's name: with several agents, give each as POLICY=NAME",
                param_hint="--agent",
            )
        options["policies"] = by_key(given, "POLICY=NAME", "--agent")
    options["agent"] = ", ".join(given) or None
    options["policy_of"] = by_key(options["policy_of"], "AGENT=POLICY", "--policy-of") or None
    if not options.pop("aec", False) or env_id.rpartition(":")[2] == "env":
        return env_id
    if not re.fullmatch(r"[\w.]+(:parallel_env)?", env_id):
        raise click.BadParameter(
            f"{env_id} is no module of PettingZoo, such as pettingzoo.classic.chess_v6", param_hint="--aec"
        )
    return f"{env_id.removesuffix(':parallel_env')}:env"
