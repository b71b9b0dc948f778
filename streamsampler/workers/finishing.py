"""What is done in a worker's loop for the filters of a sampler, whatever the kind of worker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from streamsampler.agents.base import mask_argument, reset_agent_function
from streamsampler.data.last_values import with_last_values
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.errors import DataError
from streamsampler.filters.agents import FilteredAgent, FilterParameters
from streamsampler.filters.base import Filters
from streamsampler.workers.agent_memory import is_recurrent
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.vec.rows import row_of

__all__ = ["Finishing", "record_last_value", "value_of", "with_filter", "with_filters"]

VALUE = ("value",)


class _Filtering(FilteredAgent):
    """An agent that a worker shows filtered observations; a user's own `FilteredAgent` is an agent like others."""


def with_filters(agent: Any, filters: Filters, space: Any) -> Any:
    """Return an agent that sees filtered observations: the same where it was returned from here before.

    Args:
        agent: The agent.
        filters: The filters; if there is none of observations, the agent is returned.
        space: The observation space.

    Raises:
        UsageError: The filter has statistics of another space.
    """
    if filters.observation is None or isinstance(space, SpacesOfAgents):  # several agents': by `renew`
        return agent
    return with_filter(agent, filters.observation, space)


def with_filter(agent: Any, given: Any, space: Any) -> Any:
    """Return an agent that sees observations as a filter changes them: see `with_filters`."""
    if not isinstance(agent, _Filtering):
        return _Filtering(agent, given, space)
    agent.set_param_values(FilterParameters(given, space))
    return agent


class Finishing:
    """Lets the agent see filtered observations, and summarises what was recorded.

    A worker's environment is updated first, then `filters` is set, then the agent is updated. Filters reach the agent
    like parameters do: so they reach each copy that a worker has made.

    Attributes:
        filters: The filters in force; None for none.
    """

    def __init__(self) -> None:
        self.filters: Filters | None = None
        self._agent: Any = None

    def update(self, worker: Worker, kind: str, update: Any) -> None:
        """Put filters, an agent or its parameters in force; after all of a version's updates comes `renew`."""
        if kind == "filters":
            self.filters = update
            return
        if kind == "agent":
            if self.filters is not None:
                update = with_filters(update, self.filters, worker.spaces[0])
            self._agent = update
        worker.update_agent(update)

    def renew(self, worker: Worker, kinds: Collection[str]) -> None:
        """Give the agent that a worker has the new filter, or the new environment's space.

        Args:
            worker: The worker.
            kinds: What was updated just now: "env", "filters", "agent".
        """
        given = None if self.filters is None else self.filters.observation
        if given is None or not kinds:
            return
        space = worker.spaces[0]
        if isinstance(space, SpacesOfAgents) or ("agent" not in kinds and ("env" in kinds or "filters" in kinds)):
            worker.update_agent(FilterParameters(given, space))

    def finish(self, outcome: Outcome) -> None:
        """Add to rollouts what the sampler's filters need of them, and the values of last observations."""
        rollouts = outcome.rollouts
        if rollouts is None:
            return
        if self.filters:
            rollouts.summaries = self.filters.summaries(rollouts)
        if VALUE in rollouts.agent_infos.columns and hasattr(self._agent, "get_value") and not _remembers(self._agent):
            _add_last_values(rollouts, self._agent.get_value)


def record_last_value(recorder: RolloutRecorder, agent: Any, observation: Any) -> None:
    """Record the agent's value of the last observation of the trajectory in hand, while the agent remembers it."""
    get_value = getattr(agent, "get_value", None)
    if get_value is not None:
        recorder.record_last_value(value_of(get_value, observation))


def value_of(get_value: Callable[[Any], Any], observation: Any) -> float:
    """Return what an agent's `get_value` gives an observation.

    Raises:
        DataError: That is not one number.
    """
    value = get_value(observation)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        what = f"the shape {tuple(value.shape)}" if hasattr(value, "shape") else f"{value!r:.60}"
        raise DataError(
            f"get_value(observation) must return one number, the value of the observation, and returned {what}"
        ) from None


def _remembers(agent: Any) -> bool:
    """Whether an agent may remember a trajectory: then only the copy that ran it, at its end, can tell a value."""
    reset = getattr(agent, "reset", None)
    if getattr(agent, "get_actions", None) is None:
        return reset_agent_function(agent) is not None
    return is_recurrent(agent) or (reset is not None and mask_argument(reset) is not None)


def _add_last_values(rollouts: Rollouts, get_value: Callable[[Any], Any]) -> None:
    """Add what an agent's `get_value` gives for what would follow each trajectory that did not terminate.

    One by one: in the last bits, values of a batch may depend on its size, and so on the tickets.
    """
    going_on = np.flatnonzero(~rollouts.terminated).tolist()
    if going_on and not rollouts.has_last_values:
        values = [value_of(get_value, row_of(rollouts.last_observations, row)) for row in going_on]
        rollouts.episode_infos = with_last_values(rollouts.episode_infos, going_on, values)
