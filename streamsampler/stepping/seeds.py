"""Give each episode of each environment its seed, whatever the order in which environments are stepped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamsampler.errors import UsageError, positive
from streamsampler.seeding import TrajectorySeeds

__all__ = ["EpisodeSeeds"]


class EpisodeSeeds:
    """The seeds of episodes: episode k of environment e has the seed of index e + k * n_envs, as in the samplers.

    Args:
        seed: The manager's seed.
        n_envs: How many environments there are.
    """

    def __init__(self, seed: int, n_envs: int) -> None:
        self._n_envs = n_envs
        common = TrajectorySeeds(seed, 0)
        # For each environment: its seeds, the index of its next episode, and the distance to the one after that.
        self._streams: list[tuple[Sequence[int] | TrajectorySeeds, int, int]] = [
            (common, env_id, n_envs) for env_id in range(n_envs)
        ]

    def next(self, env_id: int) -> int:
        """Return the seed of the next episode of an environment, and go on to the one after it."""
        seeds, index, stride = self._streams[env_id]
        self._streams[env_id] = seeds, index + stride, stride
        return seeds[index]

    def restart(self, env_ids: Sequence[int], seed: Any, *, every_episode: bool = False) -> dict[int, int]:
        """Begin the seeds of some environments again, from what a reset was given.

        Args:
            env_ids: The environments.
            seed: An integer, from which environment e gets derived ones; a list with a seed for the next episode of
                each of `env_ids`; or a dict of such by environment. Later episodes get seeds derived from it and their
                number.
            every_episode: Whether later episodes get the same seed as the next one.

        Returns:
            The seeds of the next episodes, by environment; those that the dict lacks are left alone.

        Raises:
            UsageError: It is none of these, or of another length, or names an environment that is not reset.
        """
        seeds = self._restarted(env_ids, seed)
        if every_episode:
            for env_id, of_all in seeds.items():
                self._streams[env_id] = (of_all,), 0, 0
        return seeds

    def _restarted(self, env_ids: Sequence[int], seed: Any) -> dict[int, int]:
        if isinstance(seed, Mapping):
            unknown = [env_id for env_id in seed if env_id not in env_ids]
            if unknown:
                raise UsageError(f"seed has seeds for environments {unknown}, which are not among those to be reset")
            return self._own(seed)
        if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str | bytes):
            if len(seed) != len(env_ids):
                raise UsageError(f"seed has {len(seed)} items, but {len(env_ids)} environments are to be reset")
            return self._own(dict(zip(env_ids, seed, strict=True)))
        common = TrajectorySeeds(positive("seed", seed, least=0), 0)
        for env_id in env_ids:
            self._streams[env_id] = common, env_id, self._n_envs
        return {env_id: self.next(env_id) for env_id in env_ids}

    def _own(self, seeds: Mapping[int, Any]) -> dict[int, int]:
        """Let environments go on from seeds of their own; none does if one of the seeds is wrong."""
        checked = {e: positive(f"the seed of environment {e}", seed, least=0) for e, seed in seeds.items()}
        for env_id, seed in checked.items():
            if seed >= 1 << 63:
                raise UsageError(f"the seed of environment {env_id} must be less than 2**63, got {seed}")
        for env_id, seed in checked.items():
            self._streams[env_id] = TrajectorySeeds(seed, 1), 0, 1
        return checked
