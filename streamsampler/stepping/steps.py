"""What a manager of environments hands out: the results of one request of each of some environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.info_columns import merge
from streamsampler.data.infos import InfoRecorder, Infos, infos_of
from streamsampler.data.trees import take


def joined_infos(info_by_row: Mapping[int, dict[str, Any]], n_rows: int) -> Infos:
    """Return infos of single rows as arrays; see `Steps.infos`."""
    if not info_by_row:
        return {}
    recorder = InfoRecorder("infos")
    for row in sorted(info_by_row):
        recorder.record(row, info_by_row[row])
    columns = infos_of(merge([(recorder.finish(n_rows), 0, n_rows)], "infos"))
    return _with_masks(columns, info_by_row, n_rows)


def _with_masks(columns: Infos, by_row: Mapping[int, Mapping[str, Any]], n_rows: int) -> Infos:
    """Return infos with a mask for each key, also for a key that all rows have, and for one of dicts."""
    infos: Infos = {}
    for key in dict.fromkeys(key for info in by_row.values() for key in info):
        having = {row: info[key] for row, info in by_row.items() if key in info}
        values = columns.get(key, {})  # an empty dict leaves no columns
        infos[key] = values if isinstance(values, np.ndarray) else _with_masks(values, having, n_rows)
        mask = infos[f"_{key}"] = np.zeros(n_rows, np.bool_)
        mask[list(having)] = True
    return infos


@dataclass(frozen=True, eq=False)
class Steps:
    """The results of K environments, each of the last request to it: a step, or a reset.

    Observations are leaves of (K, ...), and so are actions: objects where values of a space are no arrays of one size,
    as those of Text, Sequence, Graph, OneOf and custom spaces. Where environments have spaces of other shapes, dtypes
    or structures, they are not stacked: (K,) objects, each of its environment's space.

    In a row that is the result of a reset, `timesteps` is 0, no reward was got, and `actions` and
    `previous_observations` mean nothing.

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

    def select(self, index: Any) -> Steps:
        """Return the rows that an array of booleans or integers, or a slice, selects."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "info_by_row"}
        return Steps(info_by_row=self._selected_infos(index), **{name: take(it, index) for name, it in arrays.items()})

    def _selected_infos(self, index: Any) -> dict[int, dict[str, Any]]:
        if not self.info_by_row:
            return {}
        rows = np.arange(len(self))[index].tolist()
        return {new: self.info_by_row[old] for new, old in enumerate(rows) if old in self.info_by_row}

    def by_env(self) -> dict[int, Steps]:
        """Return the rows by environment: `Steps` of one row each."""
        return {int(env_id): self.select(slice(row, row + 1)) for row, env_id in enumerate(self.env_ids)}
