"""Taking trajectories into a batch while the rest of it is still being collected.

Small arrays are joined when the batch is complete. Observations of many bytes are copied as soon as it is known where
they belong: while the workers go on, instead of while they wait; and so the memory they came in is free for the next
ones, and is small enough to stay in the processor's cache.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import trees
from .recording import Rollouts, Run, timesteps_of
from .trees import Array, Tree

__all__ = ["EarlyObservations", "without_observations"]

_LARGE_ROW_BYTES = 4096

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]


def _has_large_rows(tree: Tree) -> bool:
    """Whether a row of one of the leaves is worth copying early."""
    return any(
        not leaf.dtype.hasobject and math.prod(leaf.shape[1:]) * leaf.itemsize >= _LARGE_ROW_BYTES
        for _, leaf in trees.leaves(tree)
    )


def without_observations(rollouts: Rollouts) -> Rollouts:
    """Copy everything but the observations, so that the memory it came in can be given back."""
    return copy.deepcopy(replace(rollouts, observations=()))


class _GrowingRows:
    """A tree that grows by rows.

    Args:
        allocate: Makes an uninitialised array.
    """

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._buffers: list[Array] = []
        self._like: Tree = ()

    def write(self, tree: Tree, start: int, expected: int) -> bool:
        """Write rows behind the first `start` ones.

        Args:
            tree: The rows.
            start: How many rows there are before them.
            expected: How many rows there will be in all, as far as one can tell.

        Returns:
            False if they are of another form than those before; then nothing was written.
        """
        arrays = [leaf for _, leaf in trees.leaves(tree)]
        stop = start + len(arrays[0])
        if not self._buffers:
            self._like = trees.take(tree, slice(0, 0))
            n_rows = max(expected, stop)
            self._buffers = [self._allocate((n_rows, *array.shape[1:]), array.dtype) for array in arrays]
        elif _form(tree) != _form(self._like):
            return False
        if stop > len(self._buffers[0]):
            self._buffers = [self._longer(buffer, start, max(stop, 2 * len(buffer))) for buffer in self._buffers]
        for array, buffer in zip(arrays, self._buffers, strict=True):
            buffer[start:stop] = array
        return True

    def _longer(self, buffer: Array, n_used: int, n_rows: int) -> Array:
        longer = self._allocate((n_rows, *buffer.shape[1:]), buffer.dtype)
        longer[:n_used] = buffer[:n_used]
        return longer

    def tree(self, n_rows: int) -> Tree:
        """The first `n_rows` rows, as a tree of views."""
        buffers = iter(self._buffers)
        return trees.map_tree(lambda _: next(buffers)[:n_rows], self._like)


def _form(tree: Tree) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    return [(path, leaf.shape[1:], leaf.dtype) for path, leaf in trees.leaves(tree)]


class EarlyObservations:
    """The observations of a batch, copied run by run as long as their rows are large.

    Args:
        allocate: Makes an uninitialised array.
    """

    def __init__(self, allocate: Allocate) -> None:
        self._rows: _GrowingRows | None = _GrowingRows(allocate)
        # One assignment for both, so that an interrupt leaves them in agreement: what it cut short is written again.
        self._taken = 0, 0

    @property
    def n_runs(self) -> int:
        """How many runs were taken in."""
        return self._taken[0]

    def take(self, run: Run, expected: int) -> bool:
        """Copy the observations of the batch's next run.

        Args:
            run: The run.
            expected: How many timesteps the batch will have in all, as far as one can tell.

        Returns:
            Whether they were copied. Once they were not, they never are: then they are joined in the end.
        """
        n_runs, n_timesteps = self._taken
        observations = trees.take(run[0].observations, timesteps_of([run])[0]) if self._rows is not None else ()
        if self._rows is None or not _has_large_rows(observations):
            self._rows = None
            return False
        if not self._rows.write(observations, n_timesteps, expected):
            self._rows = None  # two spaces in one batch: an error when it is complete
            return False
        _, leaf = next(trees.leaves(observations))
        self._taken = n_runs + 1, n_timesteps + len(leaf)
        return True

    def skip(self) -> None:
        """Take note of a run of which nothing is left."""
        self._taken = self._taken[0] + 1, self._taken[1]

    def tree(self) -> Tree | None:
        """All observations so far; None if they were not copied."""
        return self._rows.tree(self._taken[1]) if self._rows is not None and self._taken[1] else None
