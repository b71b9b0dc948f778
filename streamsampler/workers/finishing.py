"""What is done in a worker's loop for the filters of a sampler, whatever the kind of worker."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from streamsampler.filters.agents import FilteredAgent, FilterParameters
from streamsampler.filters.base import Filters
from streamsampler.workers.base import Outcome, Worker

__all__ = ["Finishing", "with_filters"]


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

    def update(self, worker: Worker, kind: str, update: Any) -> None:
        """Put filters, an agent or its parameters in force; after all of a version's updates comes `renew`."""
        if kind == "filters":
            self.filters = update
            return
        if kind == "agent" and self.filters is not None:
            update = with_filters(update, self.filters, worker.spaces[0])
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
        """Add to rollouts what the sampler's filters need of them."""
        if self.filters and outcome.rollouts is not None:
            outcome.rollouts.summaries = self.filters.summaries(outcome.rollouts)
