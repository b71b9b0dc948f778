"""Derive the seeds of a manager's episodes, so that each is a function of its environment and number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamsampler.core.errors import UsageError, positive
from streamsampler.core.seeding import TrajectorySeeds


class EpisodeSeeds:
    """The seeds of episodes. As in samplers, episode k of environment e has the index e + k * n_envs."""

    def __init__(self, seed: int, n_envs: int) -> None:
        self._n_envs = n_envs
        common = TrajectorySeeds(seed, 0)
        # For each environment: its seeds, the index of its next episode, and the stride to the following ones.
        self._streams: list[tuple[Sequence[int] | TrajectorySeeds, int, int]] = [
            (common, env_id, n_envs) for env_id in range(n_envs)
        ]

    def next(self, env_id: int) -> int:
        seeds, index, stride = self._streams[env_id]
        self._streams[env_id] = seeds, index + stride, stride
        return seeds[index]

    def restart(self, env_ids: Sequence[int], seed: Any, *, every_episode: bool = False) -> dict[int, int]:
        """Restart the seeds from a reset's `seed`; return those of the next episodes.

        From an integer, seeds are derived. A list, or a dict by environment, has the seeds of the next episodes; later
        ones get seeds derived from these; environments missing in the dict keep theirs. With `every_episode`, the seed
        stays the same.
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
                raise UsageError(f"seed has seeds of environments {unknown}, which this call does not reset")
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
        """Give environments seeds of their own, or change none if any is invalid."""
        checked = {e: positive(f"the seed of environment {e}", seed, least=0) for e, seed in seeds.items()}
        for env_id, seed in checked.items():
            if seed >= 1 << 63:
                raise UsageError(f"the seed of environment {env_id} must be less than 2**63, got {seed}")
        for env_id, seed in checked.items():
            self._streams[env_id] = TrajectorySeeds(seed, 1), 0, 1
        return checked
