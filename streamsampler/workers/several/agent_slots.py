"""The slot of an agent in the current trajectory: its policy, its last results, and its recorder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streamsampler.agents.masks import Mask, MaskFinder
from streamsampler.workers.finishing import value_by_row, value_of
from streamsampler.workers.vec.batch_infos import info_of_row


class OwnInfo(dict[str, Any]):
    """The info of a single agent, for policies with infos of all rows together."""


class AgentSlot:
    """An agent of an environment in the current trajectory, with its policy and recorder.

    Attributes:
        agent_id: The agent.
        number: Its number among all possible agents.
        policy: Its `PolicyInPlay`.
        table: The `EnvAgents` of its environment.
        row: Its row in the policy's batches.
        get_action: Of its copy of the policy; None if the policy is asked for several agents together.
        action: The policy's last action.
        info: The policy's last info; of all rows for a policy asked across environments.
        last_info: The environment's last info after an action.
        early_info: The environment's info before the first action, until the policy is asked.
        recorder: Its recorder; None before it acts.
        record_observation: Of its recorder.
        record_action: Of its recorder.
        keep_reward: Appends a float to its recorder's rewards.
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
        return self.table.shown[self.agent_id]

    def own_info(self) -> Any:
        info = self.info
        if info.__class__ is OwnInfo:
            return dict(info)
        return info_of_row(info, self.row) if self.policy.crosses and info else info

    def record_in(self, recorder: Any) -> None:
        self.recorder = recorder
        self.record_observation, self.record_action = recorder.record_observation, recorder.record_action
        self.keep_reward = recorder.float_rewards.append

    def mask_of(self, find: MaskFinder) -> Mask | None:
        return self._found_mask(find, self.observation)

    def _found_mask(self, find: MaskFinder, observation: Any) -> Mask | None:
        info, self.early_info = self.last_info if self.early_info is None else self.early_info, None
        return find(observation, info)

    def masked(self, find: MaskFinder, get_action: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return a function from an observation to an action; it passes the mask to `get_action`."""
        return lambda observation: get_action(observation, action_mask=self._found_mask(find, observation))

    def recorded_value(self) -> float | None:
        """Return the value in the policy's last info, if its agent has `get_value`."""
        info = self.own_info()
        if info.__class__ is not dict or "value" not in info or not hasattr(self.policy.agent_of(self), "get_value"):
            return None
        return value_of(lambda _: info["value"], None)

    def value_of(self, observation: Any) -> float | None:
        info = self.own_info()
        if info.__class__ is not dict or "value" not in info:
            return None
        agent = self.policy.agent_of(self)
        get_value = getattr(agent, "get_value", None)
        if self.policy.together and (by_row := value_by_row(agent)) is not None:
            get_value = partial(by_row, slot=self.row)
        return None if get_value is None else value_of(get_value, observation)
