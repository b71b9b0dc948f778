"""The results returned by a manager of environments."""

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
    """The results of K environments, each of its last request: a step, or a reset.

    Observations and actions are leaves of (K, ...): arrays of objects for Text, Sequence, Graph, OneOf and custom
    spaces. If spaces differ in shapes, dtypes or structures, they are not stacked: (K,) objects, each of its
    environment's space.

    In the row of a reset, `timesteps` and the reward are 0, and `actions` and `previous_observations` have no meaning.

    For several agents, observations and actions are (K,) dicts by agent, rewards are sums over agents, and the ends are
    those of the whole episode. `steps["policy name"]` has the results of a policy's agents.

    Attributes:
        env_ids: (K,) int64, the environments, each once.
        observations: Leaves of (K, ...): the observations to act on next. With autoreset "same_step", after an
            episode's end the first of the next episode.
        rewards: (K,) float64.
        terminated: (K,) bool.
        truncated: (K,) bool.
        info_by_row: The non-empty infos, as the environments returned them, by row; see `infos`.
        last_observations: Leaves of (K, ...): at an episode's end its true last observation, elsewhere `observations`.
        episodes: (K,) int64, the number of each row's episode, from 0 in each environment.
        timesteps: (K,) int64, the number of the timestep in its episode, from 1; 0 for a reset.
        actions: Leaves of (K, ...): the sent actions.
        previous_observations: Leaves of (K, ...): the observations before the actions.
        failed: (K,) bool, whether the episode ended because its environment failed; it is truncated as well.
        seeds: (K,) int64, the seed of each row's episode.
        result_numbers: (K,) int64, how many results of the environment came before, since the launch.
        joint: The results by agent, for several agents; else None.
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
        """(K,) bool: whether the row is the last of its episode."""
        return self.terminated | self.truncated

    @cached_property
    def infos(self) -> Infos:
        """The infos in the form of Gymnasium's vector environments: `key` of (K, ...), and its mask `_key` of (K,).

        A row without the key is False in the mask, and 0, False or None in the array. Nested dicts have masks, too.

        Raises:
            DataError: They are no dicts with strings as keys.
        """
        return joined_infos(self.info_by_row, len(self))

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the policies whose agents act next or have ended in these rows.

        Raises:
            UsageError: The environments have a single agent.
        """
        return self._of_agents.policies

    def __getitem__(self, policy: str) -> PolicySteps:
        """Return these rows' results for a policy's agents.

        Raises:
            UsageError: The environments have a single agent.
            KeyError: The policy is unknown.
        """
        return self._of_agents.of_policy(policy, self.env_ids)

    @property
    def _of_agents(self) -> JointSteps:
        if self.joint is None:
            raise UsageError(
                "these environments have a single agent, and no policies: use steps.observations, steps.rewards and so "
                "on, and steps.select(rows) to select rows"
            )
        return self.joint

    def select(self, index: Any) -> Steps:
        """Return the rows selected by an array of booleans or integers, or by a slice."""
        arrays: dict[str, Any] = {it.name: getattr(self, it.name) for it in fields(self) if it.name not in _NO_ARRAYS}
        joint = None if self.joint is None else self.joint.select(index)
        selected = {name: take(it, index) for name, it in arrays.items()}
        rows = np.arange(len(self))[index].tolist() if self.info_by_row else ()
        infos = {new: self.info_by_row[old] for new, old in enumerate(rows) if old in self.info_by_row}
        return Steps(info_by_row=infos, joint=joint, **selected)

    def by_env(self) -> dict[int, Steps]:
        """Return the rows by environment: `Steps` of a single row each."""
        return {int(env_id): self.select(slice(row, row + 1)) for row, env_id in enumerate(self.env_ids)}
