"""Agents that see filtered observations."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.agents.base import as_agent
from streamsampler.filters.base import Filter, check_filter

__all__ = ["FilterParameters", "FilteredAgent"]

_HIDDEN = ("get_param_converter",)  # updates are parameters before they come here


class FilterParameters(dict[str, Any]):
    """What `FilteredAgent.set_param_values` takes for a new filter; like other parameters, it reaches all copies."""

    def __init__(self, filter: Filter, space: Any = None) -> None:  # noqa: A002 - what it is
        super().__init__(filter=filter, space=space)


class FilteredAgent:
    """Shows an agent observations as a filter changes them, with the statistics that the filter has.

    Workers use it where a sampler has an `observation_filter`. By itself it is for what has no such argument:
    `compare`, a loop of one's own, a file: ``FilteredAgent(agent, sampler.filters.observation)``. All that the agent
    has besides, such as `reset` and `set_param_values`, is the agent's.

    Args:
        agent: An agent, in any form that samplers take.
        filter: The filter; it is not changed.
        space: The observation space, whose dtypes observations get before they are filtered, as in batches; None
            leaves them as they are.

    Raises:
        UsageError: No agent, or no filter, or one with statistics of another space.
    """

    def __init__(self, agent: Any, filter: Filter, space: Any = None) -> None:  # noqa: A002 - what it is
        check_filter(filter, "filter")
        self.agent = as_agent(agent)
        self._set(filter, space)

    def _set(self, given: Filter, space: Any) -> None:
        check_space = getattr(given, "check_space", None)
        if check_space is not None and space is not None:
            check_space(space)
        self.filter = given
        self._space = space
        self._apply = given.apply
        self._get_action = self.agent.get_action
        box = isinstance(space, gym_spaces.Box)
        self._dtype = space.dtype if box else None
        self._shape = space.shape if box else None
        faster = getattr(given, "on_arrays_of", None)
        self._faster = None if faster is None else faster(space)
        self._nested = space is not None and not box

    def __getstate__(self) -> dict[str, Any]:
        return {"agent": self.agent, "filter": self.filter, "space": self._space}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.agent = state["agent"]
        self._set(state["filter"], state["space"])

    def __repr__(self) -> str:
        return f"FilteredAgent({self.agent!r}, {self.filter!r})"

    def __getattr__(self, name: str) -> Any:
        # Not while the agent is being unpickled; and no private names, which copying and pickling look for.
        if name.startswith("_") or name in _HIDDEN or "agent" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        found = getattr(self.agent, name)
        return self._filtering(found, _ON_OBSERVATIONS[name]) if name in _ON_OBSERVATIONS else found

    def _filtering(self, method: Any, by: str) -> Any:
        @functools.wraps(method)  # callers look at the signature
        def filtered(observations: Any, *args: Any, **kwargs: Any) -> Any:
            return method(getattr(self, by)(observations), *args, **kwargs)

        return filtered

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose an action on the filtered observation."""
        if (
            (faster := self._faster) is not None
            and observation.__class__ is np.ndarray
            and observation.dtype is self._dtype
            and observation.shape == self._shape
        ):
            return self._get_action(faster(observation))
        return self._get_action(self._seen(observation))

    def _seen(self, observation: Any) -> Any:
        if self._dtype is not None:
            observation = np.asarray(observation, self._dtype)
        elif self._nested:
            observation = _as_of(self._space, observation)
        return self._apply(observation)

    def set_param_values(self, values: Any) -> None:
        """Take a new filter, or hand the agent new parameters."""
        if isinstance(values, FilterParameters):
            self._set(values["filter"], values["space"])
        else:
            self.agent.set_param_values(values)  # type: ignore[attr-defined]


_ON_OBSERVATIONS = {"get_actions": "_apply", "get_value": "_seen"}


def _as_of(space: Any, observation: Any) -> Any:
    """Return an observation with the dtypes of its space."""
    if isinstance(space, gym_spaces.Dict):
        return {key: _as_of(child, observation[key]) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(map(_as_of, space.spaces, observation))
    return np.asarray(observation, space.dtype) if isinstance(space, gym_spaces.Box) else observation
