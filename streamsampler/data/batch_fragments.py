"""What a batch of fragments says besides its data: which episodes go on, and where each environment's timesteps are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.data import trees
from streamsampler.data.trees import Array
from streamsampler.errors import DataError, UsageError

__all__ = ["BatchFragments"]

_GRIDS = (
    *("observations", "next_observations", "actions", "rewards", "step_types", "episode_starts"),
    *("env_infos", "agent_infos"),
)


class BatchFragments:
    """The part of a `TrajectoryBatch` that is about fragments. Whole trajectories are neither continued nor cut."""

    if TYPE_CHECKING:
        lengths: NDArray[np.int64]
        rewards: NDArray[np.float64]
        raw_returns: NDArray[np.float64]
        terminated: NDArray[np.bool_]
        truncated: NDArray[np.bool_]
        fragments: dict[str, Array]
        starts: Any

    @property
    def continued(self) -> NDArray[np.bool_]:
        """(N,) bool: which trajectories began in an earlier call: their first timestep is no episode's first."""
        return self.fragments.get("continued", np.zeros(len(self.lengths), np.bool_))

    @property
    def cut(self) -> NDArray[np.bool_]:
        """(N,) bool: which trajectories go on in the next call; bootstrap from their `last_observations`."""
        return self.fragments.get("cut", np.zeros(len(self.lengths), np.bool_))

    @property
    def env_numbers(self) -> NDArray[np.int64]:
        """(N,) int64: the environment of each trajectory; -1 for whole trajectories, which may run in any."""
        return self.fragments.get("env_numbers", np.full(len(self.lengths), -1, np.int64))

    @property
    def episode_returns(self) -> NDArray[np.float64]:
        """(E,) float64: the raw rewards of each episode that ended in this batch, added up and not discounted.

        There is one for each trajectory that was terminated or truncated, in the batch's order, with all rewards since
        the episode's reset, also those of earlier calls. Of whole trajectories they are `raw_returns`.
        """
        returns = self.raw_returns + self.fragments.get("earlier_returns", 0.0)
        return returns[self.terminated | self.truncated]

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """(E,) int64: how many timesteps each of the episodes has that `episode_returns` is of."""
        lengths = self.lengths + self.fragments.get("earlier_lengths", 0)
        return cast("NDArray[np.int64]", lengths[self.terminated | self.truncated])

    @property
    def episode_starts(self) -> NDArray[np.bool_]:
        """(T,) bool: which timesteps are the first ones of episodes."""
        starts = np.zeros(len(self.rewards), np.bool_)
        starts[self.starts[~self.continued]] = True
        return starts

    def as_grid(self, name: str) -> Any:
        """Return timesteps with one column for each environment, as a batch of fragments has them.

        Args:
            name: `observations`, `next_observations`, `actions`, `rewards`, `step_types`, `episode_starts`,
                `env_infos` or `agent_infos`.

        Returns:
            Tree of (n_timesteps, n_envs, ...), or a dict of such; views where that is possible.

        Raises:
            UsageError: There is no such field.
            DataError: The environments, in order, have not the same number of timesteps each: it is no whole batch of
                one call of `obtain_fragments`.
        """
        if name not in _GRIDS:
            raise UsageError(f"there is no grid of {name!r}, only of {', '.join(_GRIDS)}")
        numbers = self.env_numbers
        n_envs = int(numbers.max(initial=-1)) + 1
        timesteps = np.bincount(numbers[numbers >= 0], self.lengths[numbers >= 0], n_envs).astype(np.int64)
        if not n_envs or (np.diff(numbers) < 0).any() or (numbers < 0).any() or (timesteps != timesteps[0]).any():
            raise DataError(
                "a grid needs a batch as obtain_fragments returned it: the same number of timesteps of each "
                f"environment, in order; this one has {timesteps.tolist()} of environments 0 to {n_envs - 1}"
            )

        def grid(array: Array) -> Array:
            return np.swapaxes(array.reshape(n_envs, int(timesteps[0]), *array.shape[1:]), 0, 1)

        return trees.map_tree(grid, getattr(self, name))
