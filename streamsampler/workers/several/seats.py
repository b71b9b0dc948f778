"""Seat the agents of environments: who plays each of them, in the trajectory in hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streamsampler.agents.masks import Mask, MaskFinder
from streamsampler.workers.finishing import value_by_row, value_of
from streamsampler.workers.vec.batch_infos import info_of_row


class OwnInfo(dict[str, Any]):
    """The info of an agent alone, whose policy may have infos for all rows together."""


class Seat:
    """One agent of an environment in the trajectory in hand, and what plays it.

    Args:
        agent_id: The agent.
        number: Its number among all that may take part.
        policy: What plays it, a `PlayingPolicy`.
        table: Where the agents of its environment sit, a `Table`.

    Attributes:
        agent_id: The agent.
        number: Its number among all that may take part.
        policy: What plays it.
        table: Where the agents of its environment sit.
        row: Its row in the batches of its policy, where that is asked for several together.
        get_action: That of its own copy of the policy; None where the policy is asked for several together.
        action: The policy's last action.
        info: The policy's last info; where that is asked across environments, the infos of all rows.
        last_info: What the environment said last of it, in answer to an action.
        early_info: What it said before the first one, until the agent is asked for that.
        recorder: Where its trajectory is recorded; None before it acts.
        record_observation: That of its recorder.
        record_action: That of its recorder.
        keep_reward: Appends a float to the rewards of its recorder.
    """

    __slots__ = (
        *("action", "agent_id", "early_info", "get_action", "info", "keep_reward", "last_info", "number", "policy"),
        *("record_action", "record_observation", "recorder", "row", "table"),
    )

    def __init__(self, agent_id: str, number: int, policy: Any, table: Any) -> None:
        self.agent_id, self.number, self.policy, self.table = agent_id, number, policy, table
        self.row = number
        self.get_action: Callable[[Any], Any] | None = None
        self.action: Any = None
        self.info: Any = None
        self.last_info: Any = None
        self.early_info: Any = None
        self.recorder: Any = None

    @property
    def observation(self) -> Any:
        """What it is shown."""
        return self.table.shown[self.agent_id]

    def own_info(self) -> Any:
        """Return the policy's last info for the agent."""
        info = self.info
        if info.__class__ is OwnInfo:
            return dict(info)
        return info_of_row(info, self.row) if self.policy.crosses and info else info

    def record_in(self, recorder: Any) -> None:
        """Let what the agent does be recorded."""
        self.recorder = recorder
        self.record_observation, self.record_action = recorder.record_observation, recorder.record_action
        self.keep_reward = recorder.float_rewards.append

    def mask_of(self, find: MaskFinder) -> Mask | None:
        """Return the mask of its next action; see `MaskFinder`."""
        return self._found_mask(find, self.observation)

    def _found_mask(self, find: MaskFinder, observation: Any) -> Mask | None:
        info, self.early_info = self.last_info if self.early_info is None else self.early_info, None
        return find(observation, info)

    def masked(self, find: MaskFinder, get_action: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return a function that chooses an action on an observation, by one that takes a mask, too."""
        return lambda observation: get_action(observation, action_mask=self._found_mask(find, observation))

    def value_told(self) -> float | None:
        """Return the value that its policy's last info has; None where it has none, or gives observations none."""
        info = self.own_info()
        if info.__class__ is not dict or "value" not in info or not hasattr(self.policy.agent_of(self), "get_value"):
            return None
        return value_of(lambda _: info["value"], None)

    def value_of(self, observation: Any) -> float | None:
        """Return what its policy gives an observation where its infos have values; None where it gives none."""
        info = self.own_info()
        if info.__class__ is not dict or "value" not in info:
            return None
        agent = self.policy.agent_of(self)
        get_value = getattr(agent, "get_value", None)
        if self.policy.together and (by_row := value_by_row(agent)) is not None:
            get_value = partial(by_row, slot=self.row)
        return None if get_value is None else value_of(get_value, observation)
