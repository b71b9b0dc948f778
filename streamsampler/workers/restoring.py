"""Restore an episode after a loss: apply its actions again, and compare what the environment says."""

from __future__ import annotations

import copy
import zlib
from typing import Any

import numpy as np

from streamsampler.data import trees
from streamsampler.data.fragments import EpisodeState
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.data.trees import Array
from streamsampler.protocol.messages import Phase
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.vec.rows import singles_of

__all__ = ["Digests", "NotRestoredError", "apply_actions"]

_BYTES_A_TIMESTEP = 2048
"""Of larger observations only every so many are in a digest, so that it costs a few microseconds a timestep at most."""


class NotRestoredError(Exception):
    """An episode came out differently when its actions were applied again."""


class Digests:
    """The digests of an episode's observations and rewards, which grow with it, in whatever pieces they come."""

    def __init__(self) -> None:
        self._n = 0
        self._sums: list[int] = []

    def add(self, rollouts: Rollouts, timesteps: slice) -> None:
        """Take in the episode's next timesteps."""
        rows = [leaf for _, leaf in trees.leaves(rollouts.observations)]
        sums = self._sums or [0] * (len(rows) + 1)
        self._sums = [
            self._sum(leaf, timesteps, so_far) for leaf, so_far in zip([rollouts.rewards, *rows], sums, strict=True)
        ]
        self._n += timesteps.stop - timesteps.start

    def _sum(self, leaf: Array, timesteps: slice, so_far: int) -> int:
        apart = 1 + leaf[:1].nbytes // _BYTES_A_TIMESTEP
        rows = leaf[timesteps.start + -self._n % apart : timesteps.stop : apart]
        if rows.dtype.hasobject:
            for row in rows:
                so_far = zlib.crc32(repr(row).encode(), so_far)
            return so_far
        return zlib.crc32(np.ascontiguousarray(rows), so_far)  # type: ignore[arg-type]

    def values(self) -> tuple[int, ...]:
        """Return the digests so far."""
        return tuple(self._sums)


def apply_actions(
    env: Any, seed: int, actions: Any, state: EpisodeState, row: WorkerRow, spaces: Any
) -> tuple[Any, Digests, int]:
    """Reset an environment, and apply an episode's actions.

    Args:
        env: The environment.
        seed: The episode's seed; the global generators are seeded with it already.
        actions: Tree of (n, *A).
        state: Where the episode stands.
        row: The worker's row of the board, where progress shows.
        spaces: Observation and action space.

    Returns:
        What the last action led to; the digests of what came before; and the number of timesteps.

    Raises:
        NotRestoredError: What the environment says is not what it said before.
    """
    recorder = RolloutRecorder(*spaces)
    observation, info = env.reset(seed=seed)
    recorder.begin(info)
    row.set_phase(Phase.STEP)
    for action in singles_of(spaces[1], actions):
        recorder.record_observation(observation)
        recorder.record_action(action)
        observation, reward, terminated, truncated, _ = env.step(copy.copy(action))
        recorder.record_reward(reward)
        row.words[row.timesteps_word] = len(recorder.float_rewards)
        if terminated or truncated:
            break
    n = len(recorder.float_rewards)
    recorder.end(observation, False, False)
    digests = Digests()
    digests.add(recorder.finish(), slice(0, n))
    if n != state.length or digests.values() != state.digests:
        raise NotRestoredError("the same actions did not lead to the same observations and rewards")
    return observation, digests, n
