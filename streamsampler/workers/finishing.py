"""What is done in a worker's loop for the filters of a sampler, whatever the kind of worker."""

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

# ----------------------------------------------------------------------
# Divide the time of rollouts among their parts.


def timed(rebuild: Callable[[], None]) -> Times:
    """Replace agent and environment, and count the time as a reset's."""
    began = perf_counter()
    rebuild()
    return Times(perf_counter() - began)


def shares(seconds: float, reset: float, agent: float, step: float) -> Times:
    """Divide the time that was not measured between agent and steps, in proportion; or count it as resets'."""
    timed = agent + step
    if not timed:
        return Times(seconds)
    share = (seconds - reset) / timed
    return Times(reset, share * agent, share * step)


# ----------------------------------------------------------------------
# What an agent remembers in the middle of an episode, for another copy of the agent that is to go on with it.


UNKNOWN = "its agent may remember something, and has no get_state and set_state: it needs both"


def is_recurrent(agent: Any) -> bool:
    """Return whether an agent's `get_actions` is told which rows begin, or which rows it sees: so it may keep some."""
    return bool({"slots", "starts"} & row_keywords(agent.get_actions))


def is_restorable(agent: Any, *, by_rows: bool = False) -> bool:
    """Return whether another copy of an agent can go on in the middle of an episode.

    An agent that can say what it remembers, and take it, can. One that can do only one of the two may remember
    something, and so may one that is told when episodes begin.

    Args:
        agent: The agent.
        by_rows: Whether the agent is asked by `get_actions`.
    """
    gives, takes = (callable(getattr(agent, name, None)) for name in ("get_state", "set_state"))
    if gives or takes:
        return gives and takes
    return reset_agent_function(agent) is None and not (by_rows and is_recurrent(agent))


def memory_of(agent: Any) -> Any:
    """Return what a restorable agent remembers, for `give_memory`; None for an agent that remembers nothing."""
    return agent.get_state() if callable(getattr(agent, "get_state", None)) else None


def give_memory(agent: Any, memory: Any) -> None:
    """Let a restorable agent go on where the same agent was when `memory_of` returned `memory`."""
    if callable(getattr(agent, "set_state", None)):
        agent.set_state(memory)


# ----------------------------------------------------------------------


VALUE = ("value",)


class _Filtering(FilteredAgent):
    """An agent that a worker shows filtered observations; a user's own `FilteredAgent` is an agent like others."""

    def sharing_parameters(self) -> FilteredAgent | None:
        return self._sharing()


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


def value_by_row(agent: Any) -> Callable[..., Any] | None:
    """Return an agent's `get_value`, if it takes the row whose memory it sees an observation with as `slot`."""
    get_value = getattr(agent, "get_value", None)
    signature = signature_of(get_value) if callable(get_value) else None
    return get_value if signature is not None and takes_keyword(signature, "slot") else None


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
