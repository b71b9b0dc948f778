"""Choose the agent of each task, and check that it fits the task's spaces before any worker starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from typing import Any

from gymnasium import Space, spaces

from streamsampler.agents.base import is_agent, is_module
from streamsampler.agents.policies import PolicyOf
from streamsampler.core.errors import UsageError
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.evaluation.agents import evaluated_agent, has_predict, refuse_several_agents
from streamsampler.evaluation.opening import Spaces, spaces_of
from streamsampler.evaluation.suites.suite_arguments import with_task

_OF_TASK = {"task", "task_name", "name"}
"""What the parameter of a function is called that takes the name of a task."""
_OF_OBSERVATION = {"observation", "obs", "o", "observations"}
"""What the parameter of a function is called that takes an observation."""


class TaskAgents:
    """The agent of each task.

    Args:
        agent: One for all tasks, a function of a task's name, or a dict by the names of the tasks.
        envs: The environments by name.
        env_kwargs: See `streamsampler.evaluate`.
        deterministic: See `streamsampler.evaluate`.
        vec_normalize: See `streamsampler.evaluate`.
        policy_of: See `streamsampler.Sampler`.

    Raises:
        UsageError: It is unclear which task has which agent, or an agent does not fit the spaces of a task.
    """

    def __init__(
        self, agent: Any, envs: Mapping[str, Any], env_kwargs: Mapping[str, Any] | None, *,
        deterministic: bool | None = None, vec_normalize: Any = None, policy_of: PolicyOf | None = None,
    ) -> None:  # fmt: skip
        self._envs, self._env_kwargs = envs, env_kwargs
        self._spaces: dict[str, Spaces] = {}
        if agent is None:
            raise UsageError("evaluate takes an agent, and for a suite no sampler: give the agent")
        refuse_several_agents(agent)
        if isinstance(agent, Mapping):
            given = self._of_dict(agent)
        elif _takes_task(agent, next(iter(envs))):
            given = {name: agent(name) for name in envs}
        else:
            given = dict.fromkeys(envs, agent)
        if missing := next((name for name, each in given.items() if each is None), None):
            raise UsageError(f"the function of the task's name returned None for {missing!r}, and no agent")
        made: dict[int, Any] = {}  # by the identity of the agent that was given: a file is read once
        self._agents: dict[str, Any] = {}
        for name, each in given.items():
            if id(each) not in made or is_module(each):

                def action_space(name: str = name) -> Space[Any]:
                    return self.spaces(name)[1]

                made[id(each)] = with_task(
                    name, evaluated_agent, each, deterministic, vec_normalize, action_space, policy_of
                )
            self._agents[name] = made[id(each)]
        self._check_fit()

    def __getitem__(self, name: str) -> Any:
        return self._agents[name]

    def spaces(self, name: str) -> Spaces:
        """Return the spaces of a task, whose environment is made for this once."""
        if name not in self._spaces:
            try:
                self._spaces[name] = spaces_of(self._envs[name], self._env_kwargs)
            except UsageError:
                raise
            except Exception as error:
                raise UsageError(
                    f"the environment of the task {name!r} cannot be made: {type(error).__name__}: {error}"
                ) from error
        return self._spaces[name]

    def _of_dict(self, agents: Mapping[Any, Any]) -> dict[str, Any]:
        """Return the agents of a dict: by the names of tasks, or policies of several agents in each task."""
        names = list(self._envs)
        several = [name for name in names if isinstance(self.spaces(name)[0], SpacesOfAgents)]
        if set(agents) == set(names):
            if several:
                raise UsageError(
                    f"agent is a dict by the names of the tasks, and the task {several[0]!r} has several agents: the "
                    "dict could be of policies as well. Give a function of the task's name, lambda task: agents[task]"
                )
            return {name: agents[name] for name in names}
        if len(several) == len(names):
            return dict.fromkeys(names, agents)
        missing, unknown = [it for it in names if it not in agents], [str(it) for it in agents if it not in names]
        differences = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(unknown)}"] * bool(unknown)
        raise UsageError(
            f"agent is a dict that {' and '.join(differences)}; its keys must be the names of the tasks, "
            f"{', '.join(names)}"
        )

    def _check_fit(self) -> None:
        """Check that agents which have spaces of their own have those of their tasks.

        Raises:
            UsageError: Some have others; names all of these tasks.
        """
        misfits: dict[str, str] = {}
        for name, agent in self._agents.items():
            for kind, (attribute, its) in enumerate(_own_spaces(agent)):
                for player, found in _of_players(self.spaces(name)[kind]).items():
                    if its is not None and not fits(its, found):
                        of = f"{name!r}, of {player!r}," if player else f"{name!r}"
                        misfits.setdefault(name, f"the {attribute} of {of} is {found}, and the agent's is {its}")
        if misfits:
            fitting = [name for name in self._agents if name not in misfits]
            some = f"; it fits {', '.join(fitting)}" if fitting else ""
            more = "" if len(misfits) == 1 else f"; nor does it fit {', '.join([*misfits][1:])}"
            raise UsageError(
                f"the agent does not fit each task: {next(iter(misfits.values()))}{more}{some}. Give a function of the "
                "task's name that returns an agent for each, or leave these tasks out"
            )


def _own_spaces(agent: Any) -> list[tuple[str, Space[Any] | None]]:
    """Return the spaces that an agent, or the model in it, was made for; None for unknown ones."""
    names = ("observation_space", "action_space")
    if isinstance(agent, Mapping):
        return []
    holders = [agent, getattr(agent, "model", None), getattr(agent, "policy", None)]
    return [(name, next(filter(_is_space, (getattr(it, name, None) for it in holders)), None)) for name in names]


def _of_players(space: Space[Any]) -> Mapping[str, Space[Any]]:
    """Return the space of each agent of an environment; by an empty name where it has one agent."""
    return space.spaces if isinstance(space, SpacesOfAgents) else {"": space}


def _is_space(value: Any) -> bool:
    return isinstance(value, Space)


def fits(own: Space[Any], found: Space[Any]) -> bool:
    """Return whether an agent that was made for one space can act in another: kind, shape and number are equal.

    Bounds may differ, as they do between tasks of one robot.
    """
    if isinstance(own, spaces.Dict):
        return isinstance(found, spaces.Dict) and own.keys() == found.keys() and all(
            fits(own[key], found[key]) for key in own
        )  # fmt: skip
    if isinstance(own, spaces.Tuple):
        return isinstance(found, spaces.Tuple) and len(own) == len(found) and all(map(fits, own, found))
    if isinstance(own, spaces.Discrete):
        return isinstance(found, spaces.Discrete) and own.n == found.n and own.start == found.start
    if isinstance(own, spaces.MultiDiscrete):
        return isinstance(found, spaces.MultiDiscrete) and own.nvec.tolist() == found.nvec.tolist()
    if own.shape is None or found.shape is None:
        return type(own) is type(found)
    # Models take images with their channels first or last.
    return type(own) is type(found) and sorted(own.shape) == sorted(found.shape)


def _takes_task(agent: Any, first: str) -> bool:
    """Return whether a callable takes the name of a task, and returns the task's agent.

    The name of its parameter says so. Where that says nothing, the callable is asked for the first task's agent: a
    function of observations fails, or returns an action.

    Raises:
        UsageError: It may be both.
    """
    if not inspect.isroutine(agent) and not isinstance(agent, partial):
        return False
    if any(callable(getattr(agent, name, None)) for name in ("get_action", "get_actions", "predict")):
        return False
    if (parameter := _only_parameter(agent)) is None:
        return False
    if parameter.name in _OF_TASK or parameter.annotation in (str, "str"):
        return True
    if parameter.name in _OF_OBSERVATION or parameter.annotation is not parameter.empty:
        return False
    returned = _returned(agent, first)
    if isinstance(returned, str | PathLike):
        raise UsageError(
            f"agent is a function that returns {returned!r} for the name of a task, and may be one of observations as "
            "well: call its parameter task, or observation"
        )
    return is_agent(returned) or has_predict(returned) or is_module(returned) or _are_agents(returned)


def _are_agents(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(is_agent(it) or has_predict(it) for it in value.values())


def _returned(function: Callable[[Any], Any], name: str) -> Any:
    """Return the value of a function for a task's name; None where it raises."""
    try:
        return function(name)
    except Exception:
        return None


def _only_parameter(function: Callable[..., Any]) -> inspect.Parameter | None:
    """Return the parameter of a function that takes one argument; None of others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    required = [it for it in parameters if it.default is it.empty and it.kind not in (it.VAR_KEYWORD, it.KEYWORD_ONLY)]
    return required[0] if len(required) == 1 else None
