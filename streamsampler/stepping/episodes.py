"""What the parent knows of the episodes of environments, and making `Steps` of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.info_columns import merge
from streamsampler.data.infos import InfoRecorder, Infos, infos_of
from streamsampler.data.trees import map_tree
from streamsampler.stepping.options import ManagerOptions
from streamsampler.stepping.rows import Rows
from streamsampler.stepping.seeds import EpisodeSeeds
from streamsampler.stepping.states import EnvEvent, EnvState
from streamsampler.stepping.steps import Steps

__all__ = ["Episodes"]


class Episodes:
    """The episode of each environment: its number, its timesteps, and the seed of the next one.

    Args:
        rows: The rows of the environments.
        options: The manager's arguments.
        seed: The manager's seed.
    """

    def __init__(self, rows: Rows, options: ManagerOptions, seed: int) -> None:
        n_envs = options.n_envs
        self._rows = rows
        self._options = options
        self._seeds = EpisodeSeeds(seed, n_envs)
        self._numbers = np.full(n_envs, -1, np.int64)
        self._timesteps = np.zeros(n_envs, np.int64)
        self._n_ended = np.zeros(n_envs, np.int64)  # since the caller's last reset
        self._is_over = np.ones(n_envs, np.bool_)  # the next result begins an episode
        self._failed: set[int] = set()  # their open step ended because of a failure
        self._lost: set[int] = set()  # their episode is lost, and its caller does not know yet
        self._infos: dict[int, dict[str, Any]] = {}
        for env_id in range(n_envs):
            rows.seeds[env_id] = self._seeds.next(env_id)

    def restart(self, env_ids: Sequence[int], seed: Any) -> dict[int, int]:
        """Begin the seeds of environments again; see `EpisodeSeeds.restart`."""
        return self._seeds.restart(env_ids, seed)

    def set_next_seeds(self, seeds: Mapping[int, int]) -> None:
        """Set the seeds of the next resets."""
        for env_id, seed in seeds.items():
            self._rows.seeds[env_id] = seed

    def forget_limits(self, env_ids: list[int]) -> None:
        """Let environments that their caller resets run `max_episodes` episodes again."""
        self._n_ended[env_ids] = 0
        self._lost.difference_update(env_ids)
        self._failed.difference_update(env_ids)
        for env_id in env_ids:
            self._infos.pop(env_id, None)

    def observation(self, env_id: int) -> Any:
        """Return a copy of the last observation of an environment."""
        slot = int(self._rows.slots[env_id])
        return map_tree(lambda leaf: leaf[slot, env_id].copy(), self._rows.observations)

    def keep_infos(self, infos: Mapping[int, dict[str, Any]]) -> None:
        """Keep the infos of results until they are handed out."""
        self._infos.update(infos)

    # ------------------------------------------------------------------ failures

    def lose(self, env_ids: Sequence[int]) -> None:
        """Record that episodes are lost: the next step of each is to end it."""
        self._lost.update(env_ids)

    def take_lost(self, env_ids: Sequence[int]) -> list[int]:
        """Return those of some environments whose episodes are lost, and forget that."""
        if not self._lost:
            return []
        lost = [env_id for env_id in env_ids if env_id in self._lost and not self._is_over[env_id]]
        self._lost.difference_update(env_ids)
        return lost

    def fail(self, env_ids: Sequence[int]) -> None:
        """Record that the open steps of environments end their episodes, because they failed."""
        self._failed.update(env_ids)

    # ------------------------------------------------------------------ results

    def hand_out(self, env_ids: list[int], states: Sequence[EnvState]) -> tuple[Steps, list[EnvEvent]]:
        """Return the results of environments, and what becomes of each environment by it."""
        rows, ids = self._rows, np.array(env_ids, np.int64)
        failed = self._take_failed(env_ids)
        resets = self._is_over[ids]
        if self._needs_look(env_ids, states):
            resets |= np.fromiter((states[env_id] is EnvState.RESETTING for env_id in env_ids), np.bool_, len(ids))
        terminated, truncated, rewards = rows.terminated[ids], rows.truncated[ids], rows.rewards[ids]
        if failed.any():
            terminated[failed], truncated[failed], rewards[failed] = False, True, 0.0
        self._count(ids, resets)
        slots = rows.slots[ids]
        same_step = self._options.autoreset == "same_step"
        before = 1 - slots
        if failed.any() and not same_step:
            before = np.where(failed, slots, 1 - slots)
        observations = map_tree(lambda leaf: leaf[slots, ids], rows.observations)
        previous = map_tree(lambda leaf: leaf[before, ids], rows.observations)
        abnormal = self._abnormal(env_ids)
        truncated |= abnormal
        ended = terminated | truncated
        last = self._last(ids, observations, previous, ended & ~abnormal, failed) if same_step else observations
        steps = Steps(
            ids, observations, rewards, terminated, truncated, self._taken_infos(env_ids), last, self._numbers[ids],
            self._timesteps[ids], map_tree(lambda leaf: leaf[ids], rows.actions), previous, failed | abnormal,
        )  # fmt: skip
        return steps, self._events(env_ids, states, ended, abnormal)

    def _take_failed(self, env_ids: list[int]) -> NDArray[np.bool_]:
        failed = np.zeros(len(env_ids), np.bool_)
        if self._failed:
            failed[:] = [env_id in self._failed for env_id in env_ids]
            self._failed.difference_update(env_ids)
        return failed

    @staticmethod
    def _needs_look(env_ids: list[int], states: Sequence[EnvState]) -> bool:
        return any(states[env_id] is EnvState.RESETTING for env_id in env_ids)

    def _count(self, ids: NDArray[np.int64], resets: NDArray[np.bool_]) -> None:
        self._timesteps[ids] += 1
        for env_id in ids[resets].tolist():
            self._begin(env_id)
            self._timesteps[env_id] = 0

    def _begin(self, env_id: int) -> None:
        """Begin to count an episode; its seed was that in the row."""
        self._numbers[env_id] += 1
        self._is_over[env_id] = False
        self._rows.seeds[env_id] = self._seeds.next(env_id)

    def _last(
        self,
        ids: NDArray[np.int64],
        observations: Any,
        previous: Any,
        ended: NDArray[np.bool_],
        failed: NDArray[np.bool_],
    ) -> Any:
        """Return the last observations where environments are reset in the step that ends an episode."""
        if not ended.any():
            return observations

        def join(leaf: Any, current: Any, before: Any) -> Any:
            joined = current.copy()
            joined[ended] = leaf[ids[ended]]
            joined[failed] = before[failed]
            return joined

        return _map_trees(join, self._rows.last_observations, observations, previous)

    def _events(
        self, env_ids: list[int], states: Sequence[EnvState], ended: NDArray[np.bool_], abnormal: NDArray[np.bool_]
    ) -> list[EnvEvent]:
        events = [EnvEvent.BEGAN if states[it] is EnvState.RESETTING else EnvEvent.STEPPED for it in env_ids]
        for row in np.flatnonzero(ended).tolist():
            events[row] = self._end(env_ids[row])
        for row in np.flatnonzero(abnormal).tolist():
            events[row] = EnvEvent.BROKE
        return events

    def _abnormal(self, env_ids: list[int]) -> NDArray[np.bool_]:
        """Return which of the results are those of environments that say in their infos that they failed."""
        abnormal = np.zeros(len(env_ids), np.bool_)
        if self._infos:
            is_abnormal, infos = self._options.abnormal, self._infos
            abnormal[:] = [env_id in infos and bool(is_abnormal(infos[env_id])) for env_id in env_ids]
        return abnormal

    def _end(self, env_id: int) -> EnvEvent:
        """Count an episode that ended; return what becomes of its environment."""
        self._n_ended[env_id] += 1
        limit = self._options.max_episodes
        self._is_over[env_id] = True
        if limit is not None and self._n_ended[env_id] >= limit:
            return EnvEvent.REACHED_LIMIT  # an episode that has begun in the same step begins again at the next reset
        if self._options.autoreset == "same_step":
            self._begin(env_id)
            self._timesteps[env_id] = 0
        return EnvEvent.ENDED if self._options.autoreset == "disabled" else EnvEvent.STEPPED

    def _taken_infos(self, env_ids: list[int]) -> Infos:
        if not self._infos:
            return {}
        recorder = InfoRecorder("infos")
        for row, env_id in enumerate(env_ids):
            if (info := self._infos.pop(env_id, None)) is not None:
                recorder.record(row, info)
        return infos_of(merge([(recorder.finish(len(env_ids)), 0, len(env_ids))], "infos"))


def _map_trees(function: Any, first: Any, *others: Any) -> Any:
    if isinstance(first, dict):
        return {key: _map_trees(function, child, *(other[key] for other in others)) for key, child in first.items()}
    if isinstance(first, tuple):
        return tuple(_map_trees(function, child, *(other[i] for other in others)) for i, child in enumerate(first))
    return function(first, *others)
