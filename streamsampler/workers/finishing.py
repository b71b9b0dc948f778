"""Apply a sampler's filters to a worker's agent and rollouts, and load or save an agent's memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import perf_counter
from typing import Any

import numpy as np

from streamsampler.agents.base import mask_argument, reset_agent_function, row_keywords, signature_of, takes_keyword
from streamsampler.agents.filters import FilteredAgent, FilterParameters, Filters
from streamsampler.core.errors import DataError
from streamsampler.core.times import Times
from streamsampler.data.info_columns import with_last_values
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.vec.rows import row_of


def timed(rebuild: Callable[[], None]) -> Times:
    began = perf_counter()
    rebuild()
    return Times(perf_counter() - began)


def shares(seconds: float, reset: float, agent: float, step: float) -> Times:
    """Distribute the unmeasured time over agent and steps in proportion."""
    timed = agent + step
    if not timed:
        return Times(seconds)
    share = (seconds - reset) / timed
    return Times(reset, share * agent, share * step)


UNKNOWN = "its agent may have memory, but lacks get_state or set_state: implement both"


def is_recurrent(agent: Any) -> bool:
    return bool({"slots", "starts"} & row_keywords(agent.get_actions))


def is_restorable(agent: Any, *, by_rows: bool = False) -> bool:
    """Return whether another copy of an agent can resume in the middle of an episode.

    It can with both `get_state` and `set_state`. With only one of them, or with a reset, it may have memory and cannot.
    """
    gives, takes = (callable(getattr(agent, name, None)) for name in ("get_state", "set_state"))
    if gives or takes:
        return gives and takes
    return reset_agent_function(agent) is None and not (by_rows and is_recurrent(agent))


def memory_of(agent: Any) -> Any:
    """Return a restorable agent's memory, or None."""
    return agent.get_state() if callable(getattr(agent, "get_state", None)) else None


def give_memory(agent: Any, memory: Any) -> None:
    if callable(getattr(agent, "set_state", None)):
        agent.set_state(memory)


VALUE = ("value",)


class _Filtering(FilteredAgent):
    """Filters observations on a sampler's behalf; a user's own `FilteredAgent` is an ordinary agent."""

    def sharing_parameters(self) -> FilteredAgent | None:
        return self._sharing()


def with_filters(agent: Any, filters: Filters, space: Any) -> Any:
    if filters.observation is None or isinstance(space, SpacesOfAgents):  # `renew` applies filters to several agents
        return agent
    return with_filter(agent, filters.observation, space)


def with_filter(agent: Any, given: Any, space: Any) -> Any:
    if not isinstance(agent, _Filtering):
        return _Filtering(agent, given, space)
    agent.set_param_values(FilterParameters(given, space))
    return agent


class AgentFilters:
    """Applies filters to the agent and adds statistics to rollouts.

    Order of updates: environment, `filters`, agent. Filters reach the agent in the same way as parameters, and so each
    copy made by a worker.

    Attributes:
        filters: The filters in force, or None.
    """

    def __init__(self) -> None:
        self.filters: Filters | None = None
        self._agent: Any = None

    def update(self, worker: Worker, kind: str, update: Any) -> None:
        """Apply an update; call `renew` after the last of a version."""
        if kind == "filters":
            self.filters = update
            return
        if kind == "agent":
            if self.filters is not None:
                update = with_filters(update, self.filters, worker.spaces[0])
            self._agent = update
        worker.update_agent(update)

    def renew(self, worker: Worker, kinds: Collection[str]) -> None:
        """Update the agent with the new filter or the new environment's space."""
        given = None if self.filters is None else self.filters.observation
        if given is None or not kinds:
            return
        space = worker.spaces[0]
        if isinstance(space, SpacesOfAgents) or ("agent" not in kinds and ("env" in kinds or "filters" in kinds)):
            worker.update_agent(FilterParameters(given, space))

    def finish(self, outcome: Outcome) -> None:
        """Add filter statistics and last values to rollouts."""
        rollouts = outcome.rollouts
        if rollouts is None:
            return
        if self.filters:
            rollouts.summaries = self.filters.summaries(rollouts)
        if VALUE in rollouts.agent_infos.columns and hasattr(self._agent, "get_value") and not _remembers(self._agent):
            _add_last_values(rollouts, self._agent.get_value)


def record_last_value(recorder: RolloutRecorder, agent: Any, observation: Any) -> None:
    get_value = getattr(agent, "get_value", None)
    if get_value is not None:
        recorder.record_last_value(value_of(get_value, observation))


def value_by_row(agent: Any) -> Callable[..., Any] | None:
    """Return an agent's `get_value` if it has the parameter `slot`, the row with the memory to use."""
    get_value = getattr(agent, "get_value", None)
    signature = signature_of(get_value) if callable(get_value) else None
    return get_value if signature is not None and takes_keyword(signature, "slot") else None


def value_of(get_value: Callable[[Any], Any], observation: Any) -> float:
    """Return an agent's value of an observation, or raise if it is not a single number."""
    value = get_value(observation)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        what = f"the shape {tuple(value.shape)}" if hasattr(value, "shape") else f"{value!r:.60}"
        raise DataError(
            f"get_value(observation) must return a single number, the value of the observation, but returned {what}"
        ) from None


def _remembers(agent: Any) -> bool:
    """Whether an agent may remember a trajectory: then only its copy at the end can compute the value."""
    reset = getattr(agent, "reset", None)
    if getattr(agent, "get_actions", None) is None:
        return reset_agent_function(agent) is not None
    return is_recurrent(agent) or (reset is not None and mask_argument(reset) is not None)


def _add_last_values(rollouts: Rollouts, get_value: Callable[[Any], Any]) -> None:
    """Add the values of last observations for trajectories which did not terminate.

    Each in its own call: the last bits of a batch's values may depend on its size, and thus on the tickets.
    """
    going_on = np.flatnonzero(~rollouts.terminated).tolist()
    if going_on and not rollouts.has_last_values:
        values = [value_of(get_value, row_of(rollouts.last_observations, row)) for row in going_on]
        rollouts.episode_infos = with_last_values(rollouts.episode_infos, going_on, values)
