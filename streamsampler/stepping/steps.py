"""What a manager of environments hands out: the results of one request of each of some environments."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.infos import Infos, take_infos
from streamsampler.data.trees import take

__all__ = ["Steps"]


@dataclass(frozen=True, eq=False)
class Steps:
    """The results of K environments, each of the last request to it: a step, or a reset.

    In a row that is the result of a reset, `timesteps` is 0, no reward was got, and `actions` and
    `previous_observations` mean nothing.

    Attributes:
        env_ids: (K,) int64, the environments; none is there twice.
        observations: Leaves of (K, ...): what to act on next. With autoreset "same_step", where an episode has ended,
            the first observation of the next episode.
        rewards: (K,) float64.
        terminated: (K,) bool.
        truncated: (K,) bool.
        infos: Under Gymnasium's vector convention: `key` of (K, ...), and a boolean mask `_key` where a key is not
            there in all rows.
        last_observations: Leaves of (K, ...): what the actions led to. Where an episode has ended its true last
            observation, elsewhere the same as `observations`.
        episodes: (K,) int64, the number of the episode that each row belongs to, from 0 in each environment.
        timesteps: (K,) int64, the number of the timestep in its episode, from 1; 0 for a reset.
        actions: Leaves of (K, ...): the actions that were sent.
        previous_observations: Leaves of (K, ...): the observations that the actions were chosen for.
        failed: (K,) bool, whether the episode ended because its environment failed; it is truncated as well.
    """

    env_ids: NDArray[np.int64]
    observations: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Infos
    last_observations: Any
    episodes: NDArray[np.int64]
    timesteps: NDArray[np.int64]
    actions: Any
    previous_observations: Any
    failed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.env_ids)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """(K,) bool: whether the row is the last one of its episode."""
        return self.terminated | self.truncated

    def select(self, index: Any) -> Steps:
        """Return the rows that an array of booleans or integers, or a slice, selects."""
        chosen: dict[str, Any] = {
            field.name: take_infos(self.infos, index)
            if field.name == "infos"
            else take(getattr(self, field.name), index)
            for field in fields(self)
        }
        return Steps(**chosen)

    def by_env(self) -> dict[int, Steps]:
        """Return the rows by environment: `Steps` of one row each."""
        return {int(env_id): self.select(slice(row, row + 1)) for row, env_id in enumerate(self.env_ids)}
