"""Record the current episode of each environment, to restore it. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.digests import digest
from streamsampler.data.trees import map_tree, map_trees
from streamsampler.stepping.parameter_sets import ParameterSets
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.rows import Rows
from streamsampler.workers.restoring import NotRestoredError
from streamsampler.workers.vec.rows import row_of

_FIRST_CAPACITY = 64
_TOGETHER = 64
"""So many results are stored together, which takes a tenth of the time of storing each."""


class Histories:
    """The seed, actions and rewards of each environment's current episode.

    Row t of an array holds timestep t of each episode, from 1; row 0 receives values beyond `limit`.
    """

    def __init__(self, rows: Rows, n_envs: int, limit: int, with_digests: bool, parameters: ParameterSets) -> None:
        self.limit = limit
        self.seeds = [0] * n_envs
        self.set_numbers = [0] * n_envs  # the parameter set of each environment's episode
        self._parameters = parameters
        self._rows = rows
        self._capacity = 0
        self._actions: Any = map_tree(lambda leaf: np.zeros((0, *leaf.shape), leaf.dtype), rows.actions)
        self._rewards = np.zeros((0, n_envs))
        self._digests = np.zeros((0, n_envs), np.uint32) if with_digests else None
        self._recent: list[tuple[NDArray[np.int64], NDArray[np.int64], Any, NDArray[np.float64]]] = []
        self._rounds: list[tuple[Any, NDArray[np.float64]]] = []
        self._grow(min(limit, _FIRST_CAPACITY) + 1)

    def _grow(self, capacity: int) -> None:
        def grown(rows: Any) -> Any:
            longer = np.zeros((capacity, *rows.shape[1:]), rows.dtype)
            longer[: len(rows)] = rows
            return longer

        self._actions = map_tree(grown, self._actions)
        self._rewards = grown(self._rewards)
        self._digests = None if self._digests is None else grown(self._digests)
        self._capacity = capacity

    def _places(self, timesteps: NDArray[np.int64]) -> NDArray[np.int64]:
        most = int(timesteps.max())
        if most > self.limit:
            timesteps = np.where(timesteps > self.limit, 0, timesteps)
            most = int(timesteps.max())
        if most >= self._capacity:
            self._grow(min(2 * most, self.limit) + 1)
        return timesteps

    def record(
        self, ids: NDArray[np.int64], timesteps: NDArray[np.int64], actions: Any, rewards: NDArray[np.float64],
        observations: Any,
    ) -> None:  # fmt: skip
        """Record results the caller has received: of K environments, leaves of (K, ...); timestep 0 is a reset's.

        All but `timesteps` is copied: the caller may change it.
        """
        self._recent.append((ids, timesteps, map_tree(np.copy, actions), rewards.copy()))
        if len(self._recent) == _TOGETHER:
            self._settle()
        if self._digests is not None:
            self._settle()
            for row, (env_id, timestep) in enumerate(zip(ids.tolist(), timesteps.tolist(), strict=True)):
                if timestep <= self.limit:
                    self._digests[timestep, env_id] = digest(row_of(observations, row))

    def keep_round(self, actions: Any, rewards: NDArray[np.float64]) -> None:
        """Record the results of all environments until `settle_rounds`."""
        kept = actions.copy() if actions.__class__ is np.ndarray else map_tree(np.copy, actions)
        self._rounds.append((kept, rewards.copy()))

    def settle_rounds(self, timesteps: NDArray[np.int64]) -> None:
        """Store the rounds, given the timesteps after the last of them."""
        self._settle()  # older results first
        rounds, self._rounds = self._rounds, []
        if rounds:
            all_actions, all_rewards = zip(*rounds, strict=True)
            before = np.arange(len(rounds) - 1, -1, -1)[:, None]
            # Timesteps of an episode ended meanwhile go to row 0.
            index = self._places(np.maximum(timesteps - before, 0)), np.arange(len(timesteps))
            self._rewards[index] = np.stack(all_rewards)
            map_trees(lambda kept, *each: kept.__setitem__(index, np.stack(each)), self._actions, *all_actions)

    def _settle(self) -> None:
        if not self._recent:
            return
        recent, self._recent = self._recent, []
        all_ids, all_timesteps, all_actions, all_rewards = zip(*recent, strict=True)
        ids, timesteps = np.concatenate(all_ids), np.concatenate(all_timesteps)
        if len(ids):
            index = self._places(timesteps), ids
            self._rewards[index] = np.concatenate(all_rewards)
            map_trees(lambda kept, *each: kept.__setitem__(index, np.concatenate(each)), self._actions, *all_actions)

    def start_episode(self, env_id: int) -> None:
        self.seeds[env_id] = int(self._rows.seeds[env_id])
        self.set_numbers[env_id] = int(self._rows.parameters[env_id])

    def order(self, env_id: int, n: int, slot: int, remake: bool, *, arrived: bool = False) -> RestoreOrder:
        """Return the order to restore an environment after n timesteps; raise NotRestoredError beyond `limit`.

        A last result that has `arrived`, but was not received, has no digest.
        """
        if n > self.limit:
            raise NotRestoredError(
                f"its episode has {n:,} timesteps, but restore_limit is {self.limit:,}: pass a larger one"
            )
        self._settle()
        actions = map_tree(lambda leaf: leaf[1 : n + 1, env_id].copy(), self._actions)
        rewards = self._rewards[1 : n + 1, env_id].copy()
        digests = None if self._digests is None else self._digests[: n + 1 - arrived, env_id].copy()
        parameters = self._parameters.numbered(self.set_numbers[env_id])
        return RestoreOrder(
            env_id, remake, self.seeds[env_id], actions=actions, n_timesteps=n, rewards=rewards, slot=slot,
            digests=digests, parameters=parameters, carried=self._rows.observation_values.carried(slot, env_id),
        )  # fmt: skip

    def order_of_result(self, env_id: int, n: int, remake: bool) -> RestoreOrder:
        """Return the order for an arrived n-th timestep, before the caller receives it."""
        if n <= self.limit:
            self._settle()
            self._places(np.array([n]))
            self._rewards[n, env_id] = self._rows.rewards[env_id]
            map_trees(lambda kept, row: kept[n].__setitem__(env_id, row[env_id]), self._actions, self._rows.actions)
        return self.order(env_id, n, int(self._rows.slots[env_id]), remake, arrived=True)

    def order_of_reset(self, env_id: int, remake: bool) -> RestoreOrder:
        """Return the order for an arrived reset, before the caller receives it."""
        order = self.order(env_id, 0, int(self._rows.slots[env_id]), remake, arrived=True)
        parameters = self._parameters.numbered(int(self._rows.parameters[env_id]))
        return replace(order, seed=int(self._rows.seeds[env_id]), parameters=parameters)
