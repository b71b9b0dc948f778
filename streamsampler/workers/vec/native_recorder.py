"""Record all slots of a native vector environment in each step, and cut out the trajectories after their ends."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError, ObservationError
from streamsampler.data.copying import Allocate
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import AnySpace, check_rewards, short
from streamsampler.data.trees import Tree, concatenate, leaves, take
from streamsampler.workers.vec.batch_infos import BatchInfos
from streamsampler.workers.vec.columns import Columns, ColumnsRecorder
from streamsampler.workers.vec.growing_column import GrowingColumn
from streamsampler.workers.vec.rows import row_of

_FLOAT64 = np.dtype(np.float64)
_EXACT = "?bBhHiIefd"  # dtypes with numbers that a float64 holds
_FINAL = ("final_obs", "final_info")


class NativeRecorder(ColumnsRecorder):
    """Records a ticket in columns: each step has values of all slots, also those outside any trajectory.

    Steps count on over the ticket's blocks. A step has the observations before it, and its actions, rewards and infos.

    Attributes:
        env_infos: Infos of steps, by number.
        positions: The ticket position of each slot's latest trajectory.
        begun: The first step of that trajectory.
        n_ended: The number of ended trajectories.
        values: The agent's values of last observations, by position; positions may be missing.
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace, n_slots: int) -> None:
        self.env_infos, self._reset_infos = BatchInfos("env_infos"), BatchInfos("episode_infos")
        super().__init__(observation_space, action_space, n_slots, self.env_infos, self._reset_infos)
        self._scratch = Columns(observation_space, n_slots, "observation", ObservationError)
        self._rewards = GrowingColumn(n_slots, _FLOAT64)
        self._shape = (n_slots,)
        self.positions, self.begun = np.zeros(n_slots, np.int64), np.zeros(n_slots, np.int64)

    def begin_ticket(self, n: int) -> None:
        self.clear()
        self.n_ended, self.values = 0, dict[int, float]()
        # Of each trajectory, by position: its slot, its first step, the step after its last, and its flags.
        self._slots, self._first, self._after = np.zeros((3, n), np.int64)
        self._numbers = np.arange(n)
        self._terminated, self._truncated = np.zeros((2, n), np.bool_)
        self._last: list[tuple[NDArray[np.int64], Tree]] = []  # last observations outside the steps' columns

    def begin_block(self, observations: Any, silent: NDArray[np.bool_]) -> None:
        """Record the slots' first observations; those of silent slots do not matter."""
        # The row after the last step has the previous block's last observations.
        self.step = self.observations.n_steps
        _append(self.observations, observations, silent)
        self.actions.n_steps = self.step

    def begin(self, slots: NDArray[np.int64], infos: Any) -> None:
        first, step = self.n_begun, self.step
        self.n_begun = stop = first + len(slots)
        positions = self._numbers[first:stop]
        if infos:
            self._reset_infos.record(positions, infos, slots)
        self.positions[slots], self.begun[slots] = positions, step
        self._slots[first:stop], self._first[first:stop] = slots, step

    def record(self, observations: Any, rewards: Any, silent: NDArray[np.bool_], live: NDArray[np.bool_]) -> None:
        """Record the result of a step: observations of all slots but silent ones, and rewards of live slots.

        If a single slot is at fault, the error's `row` is its number.
        """
        step = self.step
        self.step = step + 1
        _append(self.observations, observations, silent)
        if rewards.__class__ is not np.ndarray or rewards.shape != self._shape or rewards.dtype.char not in _EXACT:
            rewards = column_of_slots(rewards, self.n_rows, "rewards", "biuf")
            try:
                check_rewards(rewards[live])
            except DataError as error:
                error.row = int(np.flatnonzero(live)[error.row or 0])
                raise
        self._rewards.copy(step, rewards)

    def end(
        self, slots: NDArray[np.int64], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], final: Any
    ) -> None:
        """End the trajectories of some slots with the last step.

        `final` has last observations of (n_slots, ...) if the same step also begins the next trajectories; None
        otherwise.
        """
        positions = self.positions[slots]
        self._after[positions] = self.step
        self._terminated[positions], self._truncated[positions] = terminated, truncated
        if final is not None:
            self._last.append((positions, take(self._checked_copy(final, slots), slots)))
        self.n_ended += len(slots)

    def record_resets(self, observations: Any, used: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Record the reset observations of some slots, of which `used` begin a trajectory."""
        checked = self._checked_copy(observations, used)
        for (_, whole), (_, rows) in zip(leaves(self.observations.row_batch(self.step)), leaves(checked), strict=True):
            whole[slots] = rows[slots]

    def _checked_copy(self, observations: Any, used: NDArray[np.int64]) -> Tree:
        """Return a checked copy of observations; slots other than `used` do not matter."""
        unused = np.ones(self.n_rows, dtype=np.bool_)
        unused[used] = False
        self._scratch.clear()
        _append(self._scratch, observations, unused)
        return self._scratch.row_batch(0)

    def finish(self, allocate: Allocate, most: int | None = None) -> Rollouts:
        """Return the ticket's first `most` trajectories, None for all; later ones are not checked.

        Raises:
            ActionError: An action outside its space; its attribute `position` is the trajectory's position in the
                ticket.
            DataError: A trajectory has infos with a key `_x` next to a key `x`; with the same attribute.
        """
        slots, first, after = self._slots[:most], self._first[:most], self._after[:most]

        def last_observations() -> Tree:
            if not self._last:
                return self.observations.gather(after * self.n_rows + slots)
            in_order = np.argsort(np.concatenate([positions for positions, _ in self._last]))
            return take(concatenate([last for _, last in self._last]), in_order[:most])

        return self.gathered(
            self.numbers_from(first * self.n_rows + slots, after - first), after - first, np.arange(len(first)),
            allocate=allocate, rewards=partial(self._rewards.gather, allocate=allocate),
            last_observations=last_observations, terminated=self._terminated[:most], truncated=self._truncated[:most],
            values={each: value for each, value in sorted(self.values.items()) if each < len(first)},
        )  # fmt: skip


def _append(columns: Columns, batch: Any, unused: NDArray[np.bool_]) -> None:
    """Append a batch, and accept any values in unused rows."""
    try:
        columns.append(batch)
    except DataError as error:
        holds_rows = isinstance(batch, np.ndarray) and batch.dtype == object
        if not holds_rows and (error.row is None or not unused[error.row]):
            raise
    else:
        return
    step, rows = columns.n_steps, np.flatnonzero(~unused)
    for row in rows.tolist():
        try:
            columns.put(step, row, row_of(batch, row))
        except DataError as error:
            error.row = row
            raise
    for _, leaf in leaves(columns.row_batch(step)):
        leaf[unused] = leaf[rows[:1]] if len(rows) else 0  # a sequence as a value is a single object
    columns.n_steps = step + 1


def check_infos(path: str, infos: Any) -> None:
    if not isinstance(infos, Mapping):
        raise DataError(f"{path}: the infos of a vector environment must be a dict, got {short(infos)}")


def without_final(infos: Any) -> dict[str, Any]:
    return {key: value for key, value in infos.items() if key.removeprefix("_") not in _FINAL}


def column_of_slots(values: Any, n_slots: int, name: str, kinds: str) -> NDArray[Any]:
    """Return rewards or flags as an array of (n_slots,); raise a DataError for another shape or kind."""
    column = np.asarray(values)
    if column.shape != (n_slots,) or column.dtype.kind not in kinds:
        raise DataError(f"{name} should be an array of shape {(n_slots,)}, got {column.dtype} of shape {column.shape}")
    return column


def for_env(tree: Tree) -> Any:
    if isinstance(tree, dict):
        return {key: for_env(child) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(for_env(child) for child in tree)
    return tuple(tree.tolist()) if tree.dtype.hasobject else tree.copy()
