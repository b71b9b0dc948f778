"""Agents from files: models that Stable-Baselines3 saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from streamsampler.agents.base import NAMED_AGENTS
from streamsampler.agents.policies import SHARED, Policies
from streamsampler.cli.agent_names import load_agent
from streamsampler.cli.environments import Spaces
from streamsampler.cli.errors import failure
from streamsampler.cli.options import is_model_file
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.errors import UnknownAgentError, UsageError
from streamsampler.evaluation.agents import evaluated_agent, has_predict

_NO_STATISTICS = "none"


def load_any_agent(
    name: str, vec_normalize: str | None, spaces: Spaces, deterministic: bool | None, *, predicting: bool = False
) -> Any:
    """Return the agent that `--agent` names.

    Args:
        name: A name as `load_agent` takes it, or a file of Stable-Baselines3.
        vec_normalize: The file with the statistics of the model's `VecNormalize`, or "none"; None if it is not said.
        spaces: The environment's observation space and action space.
        deterministic: Whether to act without drawing; None for the default.
        predicting: The default of what has `predict`.

    Raises:
        UsageError: There is no such agent, or it is for other spaces.
        click.ClickException: It cannot be loaded.
    """
    if not is_model_file(name):
        agent = load_agent(name, *spaces)
        if deterministic is None and has_predict(agent):
            deterministic = predicting
        return evaluated_agent(agent, deterministic, None, lambda: spaces[1])
    path = Path(name)
    if not path.is_file():
        raise UnknownAgentError(f"unknown agent {name!r}: there is no such file")
    if vec_normalize not in (None, _NO_STATISTICS) and not Path(vec_normalize).is_file():
        raise UsageError(f"--vec-normalize: there is no file {vec_normalize!r}")
    agent = _load_model(path, vec_normalize, predicting if deterministic is None else deterministic)
    for what, there, here in zip(("observations", "actions"), _spaces_of(agent), spaces, strict=True):
        if not _fit(there, here):
            raise UsageError(f"--agent {name} was trained with {what} in {there}, and the environment's are in {here}")
    return agent


def load_agents(
    name: str, policies: Mapping[str, str] | None, policy_of: Mapping[str, str] | None, vec_normalize: str | None,
    spaces: Spaces, deterministic: bool | None, *, predicting: bool = False,
) -> Any:  # fmt: skip
    """Return the agent that `--agent` names; or, where it names policies, a dict of agents.

    Args:
        name: See `load_any_agent`, as for all arguments that are not named here.
        policies: The names of agents by policy; None for one agent.
        policy_of: What `--policy-of` says.
        vec_normalize: See `load_any_agent`.
        spaces: See `load_any_agent`; those of several agents have the spaces of each.
        deterministic: See `load_any_agent`.
        predicting: See `load_any_agent`.
    """
    if not isinstance(spaces[0], SpacesOfAgents):
        if policies is not None:
            raise UsageError("--agent POLICY=NAME is for environments of several agents, and this one has one")
        return load_any_agent(name, vec_normalize, spaces, deterministic, predicting=predicting)
    known = Policies(dict.fromkeys(policies or (SHARED,), NAMED_AGENTS[0]), policy_of)
    of_policies: dict[str, Spaces] = {}
    for agent_id in spaces[0].spaces:
        of_policies.setdefault(known.name_for(agent_id, 0), (spaces[0][agent_id], spaces[1][agent_id]))  # type: ignore[index]
    if idle := [policy for policy in policies or () if policy not in of_policies]:
        raise UsageError(f"--agent {idle[0]}=…: no agent is played by it; there are {', '.join(spaces[0].spaces)}")
    agents = {
        policy: load_any_agent(each, vec_normalize, of_policies[policy], deterministic, predicting=predicting)
        for policy, each in (policies or {SHARED: name}).items()
    }
    return agents if policies is not None else agents[SHARED]


def _load_model(path: Path, vec_normalize: str | None, deterministic: bool) -> Any:
    from streamsampler.adapters.sb3 import SB3Agent

    try:
        statistics = False if vec_normalize == _NO_STATISTICS else vec_normalize
        return SB3Agent.load(path, deterministic=deterministic, vec_normalize=statistics)
    except UsageError:
        raise
    except ImportError as error:
        raise failure(f"--agent {path}: {error}") from None
    except Exception as error:
        raise failure(f"--agent {path} cannot be loaded: {type(error).__name__}: {error}") from None


def _spaces_of(agent: Any) -> tuple[Any, Any]:
    return getattr(agent.policy, "observation_space", None), getattr(agent.policy, "action_space", None)


def _fit(there: Any, here: gymnasium.Space[Any]) -> bool:
    """Whether a policy may be asked about values of a space; of images it takes either order of axes."""
    if isinstance(there, gymnasium.spaces.Dict) and isinstance(here, gymnasium.spaces.Dict):
        return there.keys() == here.keys() and all(_fit(there[key], here[key]) for key in there)
    if isinstance(there, gymnasium.spaces.Box) and isinstance(here, gymnasium.spaces.Box):
        return sorted(there.shape) == sorted(here.shape)
    return there is None or there == here
