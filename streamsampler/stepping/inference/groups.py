"""Which rows the agent is asked for together: all of them, or one half while environments of the other half step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.errors import UsageError, positive

__all__ = ["RowGroups", "checked_groups"]


def checked_groups(worker_args: Mapping[str, Any], n_envs: int) -> int:
    """Return into how many groups the rows are parted.

    Args:
        worker_args: The sampler's; `groups` may be among them.
        n_envs: How many rows there are.

    Raises:
        UsageError: It is no number from 1 to `n_envs`.
    """
    n_groups = positive("groups", worker_args.get("groups", 1))
    if n_groups > n_envs:
        raise UsageError(f"groups is {n_groups}, but there are only {n_envs} environments")
    return n_groups


class RowGroups:
    """Parts rows into groups, and says of which groups the agent is to be asked.

    Rows of one process lie next to each other: so every group has some rows of each process, as far as there are.

    Args:
        n_rows: How many rows there are.
        n_groups: How many groups.
    """

    def __init__(self, n_rows: int, n_groups: int) -> None:
        self.n_groups = n_groups
        self._group_of = np.arange(n_rows) % n_groups
        self._last = n_groups - 1  # the group that was returned last

    def whole(self, live: NDArray[np.bool_], ready: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows of a group all of whose live rows are ready; groups in turn. No row if there is none.

        Args:
            live: The rows that run a trajectory.
            ready: Those that wait for an action.
        """
        n_live, n_ready = self._count(live), self._count(ready)
        return self._next(ready, (n_ready == n_live) & (n_ready > 0))

    def half(self, live: NDArray[np.bool_], ready: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the same of a group of which half of the live rows are ready."""
        n_live, n_ready = self._count(live), self._count(ready)
        return self._next(ready, (2 * n_ready >= n_live) & (n_ready > 0))

    def note(self, asked: NDArray[np.bool_]) -> None:
        """Note which rows the agent is asked for: the next group comes after theirs."""
        self._last = int(self._group_of[asked.argmax()])

    def _count(self, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(self._group_of[rows], minlength=self.n_groups)

    def _next(self, ready: NDArray[np.bool_], possible: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows that are ready of the possible group that comes first after the last one."""
        in_turn = (self._last + 1 + np.arange(self.n_groups)) % self.n_groups
        group = next((each for each in in_turn if possible[each]), -1)
        found: NDArray[np.bool_] = ready & (self._group_of == group)
        return found
