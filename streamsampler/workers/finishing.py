"""What is done in a worker's loop for the filters of a sampler, whatever the kind of worker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from streamsampler.data.info_columns import InfoColumn, InfoColumns
from streamsampler.data.recorder import Rollouts
from streamsampler.filters.agents import FilteredAgent, FilterParameters
from streamsampler.filters.base import Filters
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.vec.rows import row_of

__all__ = ["Finishing", "with_filters"]

VALUE, LAST_VALUE = ("value",), ("last_value",)


def with_filters(agent: Any, filters: Filters, space: Any) -> Any:
    """Return an agent that sees filtered observations: the same where it did so before.

    Args:
        agent: The agent.
        filters: The filters; if there is none of observations, the agent is returned.
        space: The observation space.
    """
    if filters.observation is None:
        return agent
    if not isinstance(agent, FilteredAgent):
        return FilteredAgent(agent, filters.observation, space)
    agent.set_param_values(FilterParameters(filters.observation, space))
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
        if given is not None and "agent" not in kinds and ("env" in kinds or "filters" in kinds):
            worker.update_agent(FilterParameters(given, worker.spaces[0]))

    def finish(self, outcome: Outcome) -> None:
        """Add to rollouts what the sampler's filters need of them, and the values of last observations."""
        rollouts = outcome.rollouts
        if rollouts is None:
            return
        if self.filters:
            rollouts.summaries = self.filters.summaries(rollouts)
        if VALUE in rollouts.agent_infos.columns and hasattr(self._agent, "get_value"):
            _add_last_values(rollouts, self._agent.get_value)


def _add_last_values(rollouts: Rollouts, get_value: Callable[[Any], Any]) -> None:
    """Add what an agent's `get_value` gives for what would follow each trajectory that did not terminate.

    One by one: in the last bits, values of a batch may depend on its size, and so on the tickets.
    """
    going_on = np.flatnonzero(~rollouts.terminated)
    infos = rollouts.episode_infos
    if not len(going_on) or LAST_VALUE in infos.columns:
        return
    values = np.array([float(get_value(row_of(rollouts.last_observations, row))) for row in going_on.tolist()])
    steps = None if len(going_on) == len(rollouts.terminated) else going_on
    rollouts.episode_infos = InfoColumns(infos.length, {**infos.columns, LAST_VALUE: InfoColumn(steps, values)})
