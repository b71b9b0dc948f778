"""Make agents from users' objects, and record the facts of agents and of their trajectories."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from streamsampler.agents.base import NAMED_AGENTS, as_agent, is_module
from streamsampler.agents.policies import Policies, PolicyOf
from streamsampler.agents.sb3 import SB3Agent
from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.words import count
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.data.trees import leaves
from streamsampler.environments.ids import find_spec, is_pettingzoo_id
from streamsampler.environments.multi_agent import OpenSpaces, SpacesOfAgents
from streamsampler.environments.updates import ExistingEnvUpdate, as_env_update, describe
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.per_worker import Agents, items_by_worker
from streamsampler.samplers.processes import LocalSampler, MultiprocessingSampler
from streamsampler.samplers.provenance import shown_name
from streamsampler.samplers.ray import RaySampler


def refuse_several_tasks(envs: Any) -> None:
    """Refuse a list of environments unless all have the same spec; `PerWorker` requests a common mean explicitly.

    Raises:
        UsageError: Their specs differ, or are unknown.
        UnknownEnvironmentError: No environment is registered under an id.
    """
    if not isinstance(envs, list) or not envs:
        return
    specs = [_spec_of(env) for env in envs]
    if None not in specs and all(spec == specs[0] for spec in specs):
        return
    names = dict.fromkeys("None" if env is None else describe(as_env_update(env)) for env in envs)
    what = f"different environments ({', '.join(names)})" if len(names) > 1 else f"{len(envs)} environments"
    why = "" if None not in specs or len(names) > 1 else ", whose specs are unknown"
    raise UsageError(
        f"env is a list of {what}{why}: each worker would have one of them, and their returns would be pooled into "
        "one mean. Evaluate each environment separately, or as a suite; if each worker should have its own "
        "environment, write PerWorker([…])"
    )


def _spec_of(env: Any) -> EnvSpec | None:
    """Return the spec of an environment as samplers take it; None without a spec."""
    if isinstance(env, str):
        return None if is_pettingzoo_id(env) else find_spec(env)
    if isinstance(env, ExistingEnvUpdate):
        env = env.env
    spec = env if isinstance(env, EnvSpec) else getattr(env, "spec", None)
    return spec if isinstance(spec, EnvSpec) else None


def refuse_several_agents(agent: Any, name: str = "agent") -> None:
    """Refuse a list of agents; `PerWorker` requests a common mean explicitly.

    Raises:
        UsageError: The agent is a list or a tuple.
    """
    if isinstance(agent, list | tuple):
        raise UsageError(
            f"{name} is a {type(agent).__name__} of {count(len(agent), 'agent')}: each worker would have one of them, "
            "and their returns would be pooled into one mean. To compare agents call compare([…], env); for several "
            'training runs see "Several training runs" in streamsampler/docs/evaluation.md; if each worker should '
            "have its own agent, write PerWorker([…])"
        )


def make_sampler(agents: Any, envs: Any, options: Mapping[str, Any]) -> Sampler[Any, Any]:
    """Make a `LocalSampler` without worker processes, a `RaySampler` for Ray, and otherwise a `MultiprocessingSampler`.

    Raises:
        SamplerError: As the sampler raises it.
        ImportError: Ray is missing.
    """
    options = dict(options)
    n_workers = options.get("n_workers")
    if n_workers == 0 and n_workers is not False:
        del options["n_workers"]
        return LocalSampler(agents, envs, **options)
    if options.get("engine") == "ray":
        del options["engine"]
        return RaySampler(agents, envs, **options)
    return MultiprocessingSampler(agents, envs, **options)


class Predicting(Protocol):
    """An object that acts by `predict`, as models of Stable-Baselines3 do."""

    @property
    def predict(self) -> Callable[..., Any]:
        """Takes an observation, and returns the action, or a tuple that begins with it."""


EvaluatedAgent: TypeAlias = Agents | Predicting | str | PathLike[str]
"""Agents to evaluate: agents as samplers take them, objects with `predict`, or the file of a model."""

_NOT_APPLICABLE = (
    "deterministic is for agents with predict and for torch modules; this {} has its own setting: leave it out, or "
    "make the agent with deterministic=…"
)


def evaluated_agent(
    agent: Any, deterministic: bool | None, vec_normalize: Any, action_space: Callable[[], Space[Any]],
    policy_of: PolicyOf | None = None,
) -> Any:  # fmt: skip
    """Return an agent as samplers take it.

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
    if hasattr(agent, "KIND") or (isinstance(agent, str | PathLike) and fspath(agent).endswith(".json")):
        raise UsageError(
            f"{agent if isinstance(agent, str | PathLike) else 'this'} is a saved evaluation, not an agent: give the "
            "evaluated agent, and resume=… to resume the file. To compare saved evaluations, load "
            "each with Evaluation.load, and call compare([…]) without an environment"
        )
    if isinstance(agent, PathLike) or (isinstance(agent, str) and agent.endswith(".zip")):
        return SB3Agent.load(fspath(agent), deterministic=deterministic is not False, vec_normalize=vec_normalize)
    if has_predict(agent):
        return SB3Agent(agent, deterministic=deterministic is not False, vec_normalize=vec_normalize)
    if vec_normalize is not None:
        raise UsageError("vec_normalize is for a model of Stable-Baselines3")
    if is_module(agent) and not callable(getattr(agent, "get_action", None)):
        from streamsampler.agents.torch import TorchAgent  # imports torch, which the module has loaded already

        return TorchAgent(agent, _space_of(action_space), deterministic=bool(deterministic))
    if deterministic is not None and getattr(agent, "deterministic", None) != deterministic:
        raise UsageError(_NOT_APPLICABLE.format(type(agent).__qualname__))
    return agent


def _space_of(action_space: Callable[[], Space[Any]], policies: Policies | None = None, name: str = "") -> Space[Any]:
    """Return the action space of an agent, or of a policy."""
    space = action_space()
    if not isinstance(space, SpacesOfAgents):
        return space
    if isinstance(space, OpenSpaces):
        raise UsageError(
            "the environment has no possible_agents, so the action space of a module is unknown: give it as a "
            "TorchAgent with its action space"
        )
    for agent_id, own in space.spaces.items():
        if policies is None or policies.name_for(agent_id, 0) == name:
            return own
    raise UsageError(
        f"policy {name!r} plays no agent, so its action space is unknown: give it as a TorchAgent with its action space"
    )


def has_predict(agent: Any) -> bool:
    """Return whether an object acts by `predict`, as models of Stable-Baselines3 do, and is no agent itself."""
    return callable(getattr(agent, "predict", None)) and not callable(getattr(agent, "get_action", None))


def agent_facts(agent: Any) -> dict[str, Any]:
    """Return the facts that identify an agent: its name, a digest of its parameters, and whether it is deterministic.

    The name is the agent's attribute `name` if it is a text; an `SB3Agent` has the name of the model's file.
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
    """Return a digest of an agent's parameters; None without parameters."""
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
    except Exception:  # unusual parameters must not prevent the evaluation
        return None
    return digest.hexdigest()


SuccessMeaning: TypeAlias = Literal["end", "once"]
"""Success of a trajectory: at its last timestep, or at any timestep."""

ReturnOf: TypeAlias = str | Sequence[str]
"""The agents for which returns count, in environments of several agents: agents, policies, or "all"."""

SUCCESS_KEYS = ("success", "is_success")
"""The keys of success flags in infos; the first one present counts."""


@dataclass(frozen=True, slots=True)
class Row:
    """The recorded facts of one trajectory.

    Attributes:
        trajectory: Its index.
        seed: Its seed.
        value: Its return: the sum of its rewards.
        length: Its timesteps.
        terminated: Whether it terminated.
        truncated: Whether it was truncated.
        success: Whether it succeeded; None without success flags.
    """

    trajectory: int
    seed: int
    value: float
    length: int
    terminated: bool
    truncated: bool
    success: bool | None

    @property
    def where(self) -> str:
        """The trajectory's index and seed, for errors."""
        return f", of trajectory {self.trajectory} (seed {self.seed})"


def check_return_of(return_of: Any) -> tuple[str, ...] | None:
    """Return the names of the agents for which returns count, in environments of several agents; None by default.

    Raises:
        UsageError: The value is neither a name nor a list of names.
    """
    names = (return_of,) if isinstance(return_of, str) else return_of
    if names is None:
        return None
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"return_of must be a name or a list of names: agents, policies, or 'all'; got {return_of!r:.60}"
        )
    return tuple(names)


def row_of(
    trajectory: TrajectoryBatch[Any, Any], meaning: SuccessMeaning, return_of: tuple[str, ...] | None = None,
    policies: Collection[str] = (),
) -> Row:  # fmt: skip
    """Return the facts of a batch of one trajectory.

    Raises:
        UsageError: A success flag is neither true nor false; or the agents for which returns count are unknown.
        DataError: None of these agents took part.
    """
    value, infos = float(trajectory.raw_returns[0]), [trajectory.env_infos]
    if isinstance(trajectory, MultiAgentBatch):
        team = _team(trajectory, return_of, policies)
        value = float(trajectory.episodes.return_of(team)[0])
        infos += [one.env_infos for each in trajectory.policies.values() for one in each if one.agent_ids[0] in team]
    elif return_of is not None:
        raise UsageError("return_of is for environments of several agents, but this environment has a single agent")
    said = [each for each in (_success(one, meaning) for one in infos) if each is not None]
    return Row(
        trajectory=int(trajectory.indices[0]),
        seed=trajectory.seeds[0],
        value=value,
        length=int(trajectory.lengths[0]),
        terminated=bool(trajectory.terminated[0]),
        truncated=bool(trajectory.truncated[0]),
        success=any(said) if said else None,
    )


def _team(trajectory: MultiAgentBatch, return_of: tuple[str, ...] | None, policies: Collection[str]) -> list[str]:
    """Return the agents for which returns count: named agents that took part, or agents of named policies."""
    playing = trajectory.policies
    rows = [it.agents for it in playing.values() if it.agents is not None]
    known = list(dict.fromkeys(agent for each in rows for agent in each.known))
    if return_of is None and len(known) > 1:
        raise UsageError(
            f"for which agents do returns count? The agents are {', '.join(known)}: pass return_of with an agent, a "
            "policy, a list of these for a team, or 'all'"
        )
    names = return_of or ("all",)
    unknown = [name for name in names if name not in {*known, *playing, *policies, "all"}]
    if unknown and not rows[0].is_open:  # otherwise it may be an agent that did not take part
        raise UsageError(
            f"return_of names {unknown[0]!r}, but the agents are {', '.join(known)}; the policies, "
            f"{', '.join(policies or playing)}"
        )
    there = trajectory.episodes.agent_ids
    of_policies = {name: each.agent_ids.tolist() for name, each in playing.items()}
    # An agent's name takes precedence over a policy's.
    team = [
        agent for name in names for agent in there
        if name in ("all", agent) or (name not in known and agent in of_policies.get(name, ()))
    ]  # fmt: skip
    if not team:
        raise DataError(
            f"none of {', f'.join(names)} took part in trajectory {trajectory.indices[0]}, so its return is unknown; "
            f"the agents there were {', '.join(there)}. Choose policy_of so that it plays in each trajectory, or name "
            "an agent in return_of that acts in each"
        )
    return list(dict.fromkeys(team))


def _success(infos: dict[str, Any], meaning: SuccessMeaning) -> bool | None:
    key = next((key for key in SUCCESS_KEYS if key in infos), None)
    if key is None:
        return None
    values, said = infos[key], infos.get(f"_{key}")
    if isinstance(values, dict) or values.ndim != 1:
        raise UsageError(f"the info {key!r} should be true or false in each timestep, but is {values!r:.60}")
    if said is None:
        said = np.ones(len(values), np.bool_)
    if meaning == "end":
        values, said = values[-1:], said[-1:]
    return any(_as_bool(value, key) for value in values[said].tolist())


def _as_bool(value: Any, key: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool | int | float):
        raise UsageError(f"the info {key!r} should be true or false, but is {value!r:.60}")
    return bool(value)


def columns_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the facts of trajectories as columns, by the attributes of an `Evaluation`.

    If any trajectory has a success flag, trajectories without flag count as failures.
    """
    known = any(row.success is not None for row in rows)
    return {
        "returns": np.array([row.value for row in rows], np.float64),
        "lengths": np.array([row.length for row in rows], np.int64),
        "terminated": np.array([row.terminated for row in rows], np.bool_),
        "truncated": np.array([row.truncated for row in rows], np.bool_),
        "successes": np.array([bool(row.success) for row in rows], np.bool_) if known else None,
        "indices": np.array([row.trajectory for row in rows], np.int64),
        "seeds": tuple(row.seed for row in rows),
    }
