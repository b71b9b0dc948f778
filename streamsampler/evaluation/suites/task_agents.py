"""Choose the agent of each task, and check its spaces before any worker starts."""

from __future__ import annotations

import copy
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
"""Parameter names of functions of a task's name."""
_OF_OBSERVATION = {"observation", "obs", "ob", "o", "observations"}
"""Parameter names of functions of an observation."""


class TaskAgents:
    """The agent of each task.

    Raises:
        UsageError: The agent of a task is ambiguous, or does not fit the task's spaces.
    """

    def __init__(
        self, agent: Any, envs: Mapping[str, Any], env_kwargs: Mapping[str, Any] | None, *,
        deterministic: bool | None = None, vec_normalize: Any = None, policy_of: PolicyOf | None = None,
    ) -> None:  # fmt: skip
        self._envs, self._env_kwargs = envs, env_kwargs
        self._spaces: dict[str, Spaces] = {}
        if agent is None:
            raise UsageError("a suite needs an agent: give the agent instead of a sampler")
        refuse_several_agents(agent)
        if isinstance(agent, Mapping):
            given = self._of_dict(agent)
        elif _takes_task(agent, first := next(iter(envs)), lambda: _sample(self.spaces(first)[0])):
            given = {name: _agent_of(agent, name) for name in envs}
        else:
            given = dict.fromkeys(envs, agent)
        made: dict[int, Any] = {}  # by the identity of the given agent: a file is read once
        self._agents: dict[str, Any] = {}
        for name, each in given.items():
            if id(each) not in made or is_module(each):

                def action_space(name: str = name) -> Space[Any]:
                    return self.spaces(name)[1]

                made[id(each)] = _loaded(name, each, deterministic, vec_normalize, action_space, policy_of)
            self._agents[name] = made[id(each)]
        self._check_fit()

    def __getitem__(self, name: str) -> Any:
        return self._agents[name]

    def spaces(self, name: str) -> Spaces:
        """Return the spaces of a task from an environment made for this purpose."""
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
        """Return the agents of a dict: by tasks, or policies of several agents in each task."""
        names = list(self._envs)
        several = [name for name in names if isinstance(self.spaces(name)[0], SpacesOfAgents)]
        if set(agents) == set(names):
            if several:
                raise UsageError(
                    f"agent is a dict by the names of the tasks, and the task {several[0]!r} has several agents: the "
                    "dict could have policies as well. Give a function of the task's name, lambda task: agents[task]"
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
        """Check agents' own spaces, if they have any, against those of their tasks.

        Raises:
            UsageError: Spaces differ; names all of these tasks.
        """
        misfits: dict[str, str] = {}
        for name, agent in self._agents.items():
            for kind, (attribute, its) in enumerate(_own_spaces(agent)):
                for player, found in _of_players(self.spaces(name)[kind]).items():
                    if its is not None and not fits(its, found):
                        of = f"{name!r}, of {player!r}," if player else f"{name!r}"
                        misfits.setdefault(name, f"the {attribute} of {of} is {found}, but the agent's is {its}")
        if misfits:
            fitting = [name for name in self._agents if name not in misfits]
            some = f"; it fits {', '.join(fitting)}" if fitting else ""
            more = "" if len(misfits) == 1 else f"; nor does it fit {', '.join([*misfits][1:])}"
            raise UsageError(
                f"the agent does not fit each task: {next(iter(misfits.values()))}{more}{some}. Give a function of the "
                "task's name that returns an agent for each, or leave these tasks out"
            )


def _own_spaces(agent: Any) -> list[tuple[str, Space[Any] | None]]:
    """Return the spaces of an agent, or of the model in it; None if unknown."""
    names = ("observation_space", "action_space")
    if isinstance(agent, Mapping):
        return []
    holders = [agent, getattr(agent, "model", None), getattr(agent, "policy", None)]
    return [(name, next(filter(_is_space, (getattr(it, name, None) for it in holders)), None)) for name in names]


def _of_players(space: Space[Any]) -> Mapping[str, Space[Any]]:
    """Return the space of each agent of an environment; under an empty name for a single agent."""
    return space.spaces if isinstance(space, SpacesOfAgents) else {"": space}


def _is_space(value: Any) -> bool:
    return isinstance(value, Space)


def fits(own: Space[Any], found: Space[Any]) -> bool:
    """Return whether an agent for one space can act in another: kind, shape and number are equal.

    Bounds may differ, as between tasks of the same robot.
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


def _takes_task(agent: Any, first: str, observation: Callable[[], Any]) -> bool:
    """Return whether a callable is a function from a task's name to the task's agent.

    The name or the annotation of its parameter decides. Otherwise a function is called with the first task's name: if
    it returns an agent, it takes names. If it raises, it takes observations, and is called with one.

    Raises:
        UsageError: The callable may be either, or is neither.
    """
    if (decided := _is_declared(agent)) is not None:
        return decided
    try:
        returned = agent(first)
    except Exception as error:
        _check_takes_observations(
            agent, observation, f"raised {_shown(error)} for the name of the task {first!r}", error
        )
        return False
    if returned is None:
        raise UsageError(f"agent is a function that returned None for the name of the task {first!r}; {_CALL_IT}")
    if isinstance(returned, str | PathLike):
        raise UsageError(
            f"agent is a function that returns {returned!r} for the name of a task, and may take observations as "
            f"well: {_CALL_IT}"
        )
    return is_agent(returned) or has_predict(returned) or is_module(returned) or _are_agents(returned)


def _is_declared(agent: Any) -> bool | None:
    """Return whether a callable's parameter declares names of tasks; None if a function declares nothing."""
    if not callable(agent) or is_module(agent):
        return False
    if any(callable(getattr(agent, name, None)) for name in ("get_action", "get_actions", "predict")):
        return False
    if (parameter := _only_parameter(agent)) is None:
        return False
    if parameter.name in _OF_TASK or parameter.annotation in (str, "str"):
        return True
    is_function = inspect.isroutine(agent) or isinstance(agent, partial)
    is_other = parameter.name in _OF_OBSERVATION or parameter.annotation is not parameter.empty
    return None if is_function and not is_other else False


_CALL_IT = "call its parameter task, or observation"


def _check_takes_observations(
    function: Callable[[Any], Any], observation: Callable[[], Any], of_name: str, cause: Exception
) -> None:
    """Check that a function which raises for a task's name takes observations.

    Raises:
        UsageError: It raises for both.
    """
    try:
        sample = observation()
    except Exception:  # the task itself fails later, or its space has no samples
        return
    try:
        function(sample)
    except Exception as error:
        raise UsageError(
            f"agent is a function that {of_name}, and {_shown(error)} for an observation of it, so its argument is "
            f"ambiguous: {_CALL_IT}"
        ) from cause


def _sample(space: Space[Any]) -> Any:
    """Return an observation, and leave the generator of the environment's space unchanged."""
    space = copy.deepcopy(space)
    space.seed(0)
    if isinstance(space, SpacesOfAgents):
        space = next(iter(space.spaces.values()))
    return space.sample()


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _agent_of(function: Callable[[str], Any], name: str) -> Any:
    """Return the agent of a task.

    Raises:
        UsageError: The function raises, or returns None; names the task.
    """
    try:
        agent = function(name)
    except Exception as error:
        raise UsageError(f"the function of the task's name raised {_shown(error)} for the task {name!r}") from error
    if agent is None:
        raise UsageError(f"the function of the task's name returned None for {name!r}, and no agent")
    return agent


def _loaded(name: str, agent: Any, *args: Any) -> Any:
    """Return a task's agent as samplers take it; see `evaluated_agent`.

    Raises:
        UsageError: It is no agent, or its file cannot be read; names the task.
        ImportError: A library is missing.
    """
    try:
        return with_task(name, evaluated_agent, agent, *args)
    except UsageError:
        raise
    except ImportError as error:
        error.add_note(f"the agent of the task {name!r} needs it")
        raise
    except Exception as error:
        raise UsageError(f"task {name!r}: the agent cannot be loaded: {_shown(error)}") from error


def _are_agents(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(is_agent(it) or has_predict(it) for it in value.values())


def _only_parameter(function: Callable[..., Any]) -> inspect.Parameter | None:
    """Return the parameter of a function of one argument, otherwise None."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    required = [it for it in parameters if it.default is it.empty and it.kind not in (it.VAR_KEYWORD, it.KEYWORD_ONLY)]
    return required[0] if len(required) == 1 else None
