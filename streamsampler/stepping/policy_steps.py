"""Split a manager's results by the caller's policies: observations to act on, and ends of agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.masks import Mask, MaskFinder
from streamsampler.core.errors import ActionError, ObservationError
from streamsampler.data.infos import Infos
from streamsampler.data.spaces import row_spec, same_spaces
from streamsampler.data.trees import Tree
from streamsampler.stepping.joint_env import NO_ENDS, Ends, Turn
from streamsampler.stepping.row_infos import joined_infos
from streamsampler.workers.several.policies import differing_spaces
from streamsampler.workers.vec.columns import Columns, leaves_of, nested
from streamsampler.workers.vec.rows import singles_of


class AgentStep(NamedTuple):
    """An agent's part of a result."""

    agent_id: str
    policy: PolicySpaces
    observation: Any  # for its next action, or its last one
    reward: float = 0.0  # of its last action; 0 before the first
    ends: Ends = NO_ENDS
    info: Any = None


class EnvStep(NamedTuple):
    """An environment's result, by agent."""

    acting: Sequence[AgentStep]  # agents to act next, in their order
    ended: Sequence[AgentStep]  # agents ended since the last result
    turn: Turn  # of the last action, or of the reset
    next_start: Turn | None = None  # of a reset in the same step


class PolicySteps:
    """The results of environments for a policy's K agents that act next.

    Attributes:
        rows: (K,) int64: the row of each agent's environment in the `Steps`.
        env_ids: (K,) int64: the environments.
        agent_ids: (K,) str: the agents.
        observations: Leaves of (K, ...): the observations to act on; in `ended`, last observations.
        rewards: (K,) float64: the reward of each agent's last action; 0 before its first.
        terminated: (K,) bool; False for acting agents.
        truncated: (K,) bool; False for acting agents.
        info_by_row: The non-empty infos, by the agent's position among the K.
        ended: The same for ended agents of the policy, which send no action; in `ended` it is None.
    """

    def __init__(
        self, policy: PolicySpaces, steps: Sequence[tuple[int, AgentStep]], env_ids: NDArray[np.int64],
        ended: PolicySteps | None,
    ) -> None:  # fmt: skip
        each = [it for _, it in steps]
        self._policy, self.ended = policy, ended
        self.rows = np.array([row for row, _ in steps], np.int64)
        self.env_ids = env_ids[self.rows]
        self.agent_ids = np.array([it.agent_id for it in each], np.str_)
        self._shown = [it.observation for it in each]
        self.rewards = np.array([it.reward for it in each], np.float64)
        self.terminated, self.truncated = (np.array([it.ends[i] for it in each], np.bool_) for i in (0, 1))
        self.info_by_row = {row: it.info for row, it in enumerate(each) if it.info}

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def observations(self) -> Any:
        """Leaves of (K, ...): the observations to act on; in `ended`, last observations."""
        return self._policy.stacked_observations(self._shown)

    @cached_property
    def infos(self) -> Infos:
        """The infos as arrays, with masks, as in `Steps`."""
        return joined_infos(self.info_by_row, len(self))

    @cached_property
    def action_masks(self) -> NDArray[np.bool_] | None:
        """(K, n) bool: the allowed actions, all if no mask is given; None if the space has no masks."""
        return self._policy.masks([(it, self.info_by_row.get(row)) for row, it in enumerate(self._shown)])


class JointSteps:
    """The results of the agents of K environments."""

    def __init__(self, envs: Sequence[EnvStep], known: Mapping[str, PolicySpaces]) -> None:
        self.envs, self._known = envs, known
        self.policies = tuple(sorted({it.policy.name for env in envs for it in (*env.acting, *env.ended)}))

    def select(self, index: Any) -> JointSteps:
        return JointSteps([self.envs[row] for row in np.arange(len(self.envs))[index].tolist()], self._known)

    def of_policy(self, name: str, env_ids: NDArray[np.int64]) -> PolicySteps:
        """Return a policy's results, given the environment of each row; raise KeyError if it is unknown."""
        if name not in self._known:
            raise KeyError(f"there is no policy {name!r} here; the policies are {listed(self._known)}")
        policy, rows = self._known[name], list(enumerate(self.envs))
        acting = [(row, it) for row, env in rows for it in env.acting if it.policy is policy]
        ended = [(row, it) for row, env in rows for it in env.ended if it.policy is policy]
        return PolicySteps(policy, acting, env_ids, PolicySteps(policy, ended, env_ids, None))


class PolicySpaces:
    """A policy of the caller, with its agents' spaces."""

    def __init__(self, name: str, agent_id: str, spaces: tuple[Any, Any], warn: Callable[[str, str], Any]) -> None:
        self.name, self._first, self._spaces = name, agent_id, spaces
        self._observations = Columns(spaces[0], 1, f"observation of policy {name!r}", ObservationError)
        self._actions = Columns(spaces[1], 1, f"action of policy {name!r}", ActionError)
        self._find_mask = MaskFinder(None, spaces[1], warn)

    def join(self, agent_id: str, spaces: tuple[Any, Any]) -> None:
        if not same_spaces(self._spaces, spaces):
            raise differing_spaces(self.name, {self._first: self._spaces, agent_id: spaces})

    def stacked_observations(self, observations: Sequence[Any]) -> Tree:
        return _stacked(self._observations, self._spaces[0], observations)

    def stacked_actions(self, actions: Sequence[Any]) -> Tree:
        return _stacked(self._actions, self._spaces[1], actions)

    def actions(self, batch: Any, n: int) -> list[Any]:
        """Split a batch; raise ActionError if it has not n actions of the space."""
        if n == 0 and _is_empty(batch):
            return []
        return singles_of(self._spaces[1], nested(self._spaces[1], iter(self._actions.checked(batch, n))))

    def masks(self, shown: Sequence[tuple[Any, Any]]) -> NDArray[np.bool_] | None:
        """Return the masks of actions; None if the space has none."""
        if (size := self._find_mask.size) is None:
            return None
        found: list[Mask | None] = [self._find_mask(observation, info) for observation, info in shown]
        return np.array(found, np.bool_).reshape(len(found), size)


def _stacked(columns: Columns, space: Space[Any], values: Sequence[Any]) -> Tree:
    if not values:
        empty = [np.empty((0, *shape), dtype) for shape, dtype in (row_spec(leaf) for _, leaf in leaves_of(space, ""))]
        return nested(space, iter(empty))
    return nested(space, iter(columns.checked(list(values), len(values))))


def _is_empty(batch: Any) -> bool:
    if isinstance(batch, Mapping):
        return all(map(_is_empty, batch.values()))
    if isinstance(batch, tuple) and batch:
        return all(map(_is_empty, batch))
    return hasattr(batch, "__len__") and len(batch) == 0


def listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names))
