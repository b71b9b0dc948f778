"""What a manager of environments hands out: the results of one request of each of some environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError
from streamsampler.data.infos import Infos
from streamsampler.data.trees import take
from streamsampler.stepping.policy_steps import JointSteps, PolicySteps
from streamsampler.stepping.row_infos import joined_infos

_NO_ARRAYS = "info_by_row", "joint"


@dataclass(frozen=True, eq=False)
class Steps:
    """The results of K environments, each of the last request to it: a step, or a reset.

    Observations are leaves of (K, ...), and so are actions: objects where values of a space are no arrays of one size,
    as those of Text, Sequence, Graph, OneOf and custom spaces. Where environments have spaces of other shapes, dtypes
    or structures, they are not stacked: (K,) objects, each of its environment's space.

    In a row that is the result of a reset, `timesteps` is 0, no reward was got, and `actions` and
    `previous_observations` mean nothing.

    Where environments have several agents, observations and actions are (K,) dicts by agent, rewards are those of all
    agents together, and the ends are those of the whole episode. `steps["policy name"]` has what concerns the agents
    that one policy plays.

    Attributes:
        env_ids: (K,) int64, the environments; none is there twice.
        observations: Leaves of (K, ...): what to act on next. With autoreset "same_step", where an episode has ended,
            the first observation of the next episode.
        rewards: (K,) float64.
        terminated: (K,) bool.
        truncated: (K,) bool.
        info_by_row: The infos that are not empty, as the environments returned them, by row; see `infos`.
        last_observations: Leaves of (K, ...): what the actions led to. Where an episode has ended its true last
            observation, elsewhere the same as `observations`.
        episodes: (K,) int64, the number of the episode that each row belongs to, from 0 in each environment.
        timesteps: (K,) int64, the number of the timestep in its episode, from 1; 0 for a reset.
        actions: Leaves of (K, ...): the actions that were sent.
        previous_observations: Leaves of (K, ...): the observations that the actions were chosen for.
        failed: (K,) bool, whether the episode ended because its environment failed; it is truncated as well.
        seeds: (K,) int64, what the episode was reset with.
        result_numbers: (K,) int64, how many results of the environment came before, since the launch.
        joint: What each agent is shown, where environments have several; else None.
    """

    env_ids: NDArray[np.int64]
    observations: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    info_by_row: Mapping[int, dict[str, Any]]
    last_observations: Any
    episodes: NDArray[np.int64]
    timesteps: NDArray[np.int64]
    actions: Any
    previous_observations: Any
    failed: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    result_numbers: NDArray[np.int64]
    joint: JointSteps | None = None

    def __len__(self) -> int:
        return len(self.env_ids)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """(K,) bool: whether the row is the last one of its episode."""
        return self.terminated | self.truncated

    @cached_property
    def infos(self) -> Infos:
        """The infos as Gymnasium's vector environments have them: `key` of (K, ...), and its mask `_key` of (K,).

        A row that lacks the key is False in the mask, and 0, False or None in the array. Nested dicts have masks, too.

        Raises:
            DataError: They are no dicts with strings as keys.
        """
        return joined_infos(self.info_by_row, len(self))

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the policies of which an agent is to act or has ended in these rows.

        Raises:
            UsageError: The environments have one agent.
        """
        return self._of_agents.policies

    def __getitem__(self, policy: str) -> PolicySteps:
        """Return what these rows have of the agents that a policy plays.

        Raises:
            UsageError: The environments have one agent.
            KeyError: There is no such policy.
        """
        return self._of_agents.of_policy(policy, self.env_ids)

    @property
    def _of_agents(self) -> JointSteps:
        if self.joint is None:
            raise UsageError(
                "these environments have one agent: steps.observations, steps.rewards and so on are what it gets; "
                "steps.select(rows) selects rows, and policies are of environments of several agents"
            )
        return self.joint

    def select(self, index: Any) -> Steps:
        """Return the rows that an array of booleans or integers, or a slice, selects."""
        arrays: dict[str, Any] = {it.name: getattr(self, it.name) for it in fields(self) if it.name not in _NO_ARRAYS}
        joint = None if self.joint is None else self.joint.select(index)
        selected = {name: take(it, index) for name, it in arrays.items()}
        rows = np.arange(len(self))[index].tolist() if self.info_by_row else ()
        infos = {new: self.info_by_row[old] for new, old in enumerate(rows) if old in self.info_by_row}
        return Steps(info_by_row=infos, joint=joint, **selected)

    def by_env(self) -> dict[int, Steps]:
        """Return the rows by environment: `Steps` of one row each."""
        return {int(env_id): self.select(slice(row, row + 1)) for row, env_id in enumerate(self.env_ids)}
