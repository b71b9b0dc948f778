"""Assemble a batch from segments of the workers' reports; early, where that pays.

Rows are copied as soon as their place in the batch is known: while workers run, not while they wait. So the engine's
memory is free for the next reports, and the batch is in memory once, not twice. Large rows are copied report by report,
while they are in the processor's cache; small ones in groups of megabytes, since each copy has its own cost. A batch
smaller than one group is joined when it is complete.

Infos stay as they arrived, in memory of their own: what their columns become is decided over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.copying import empty
from streamsampler.data.info_columns import InfoColumn, InfoColumns, merge
from streamsampler.data.infos import infos_of
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array, Tree
from streamsampler.scheduling.result import Segment

__all__ = ["Delivery", "EarlyRows", "assemble", "indices_of", "infos_alone"]

_LARGE_ROW_BYTES = 4096
_GROUP_BYTES = 4_000_000
_MOST_AHEAD = 128
"""How many times as much memory as the first group takes may be asked for; what is not written to takes none."""

_PER_TIMESTEP = "observations", "actions", "rewards", "env_infos", "agent_infos"
_COPIED_EARLY = "observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths"

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]


@dataclass(slots=True)
class Delivery:
    """What one report brought to the sampler; a `Segment` is a part of it.

    Attributes:
        worker: The worker that ran the trajectories.
        rollouts: The trajectories; arrays in memory that belongs to the engine.
        release: Gives that memory back.
        n_bytes: How many bytes the observations have.
        spaces: The observation and the action space of the worker's environment.
    """

    worker: int
    rollouts: Rollouts
    release: Callable[[], None]
    n_bytes: int = 0
    spaces: Any = None

    def ends_with(self, segment: Segment) -> bool:
        """Whether `segment` is the last one of this delivery."""
        return segment.stop == self.rollouts.n_trajectories


def indices_of(segments: Sequence[Segment]) -> NDArray[np.int64]:
    """Return the indices of all trajectories.

    As an array: lists of a million Python integers would take more memory than a million short trajectories do.
    """
    runs: list[range] = []
    for _, _, _, own in segments:
        if runs and own.step == runs[-1].step == 1 and own.start == runs[-1].stop:
            runs[-1] = range(runs[-1].start, own.stop)
        else:
            runs.append(own)
    arrays = [np.arange(own.start, own.stop, own.step, dtype=np.int64) for own in runs]
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, np.int64), *arrays])


def assemble(
    segments: Sequence[Segment],
    *,
    observation_space: AnySpace,
    action_space: AnySpace,
    seeds_of: Callable[[NDArray[np.int64]], Sequence[int]],
    agent_version: int,
    seed: int | None,
    stats: Any = None,
    joined: Mapping[str, Any] = MappingProxyType({}),
) -> TrajectoryBatch[Any, Any]:
    """Make a batch of segments, in their order.

    Args:
        segments: Segments of deliveries.
        observation_space: The environment's.
        action_space: The environment's.
        seeds_of: Returns the seeds of trajectories, by their indices.
        agent_version: The version of all trajectories.
        seed: The sampler's.
        stats: Accounts of the call.
        joined: Fields of the batch that are joined already, by name: the rollouts' own are not looked at. All that have
            rows but infos, or none.

    Returns:
        A batch that shares no arrays with the rollouts. It does not depend on how the trajectories were spread over
        them.

    Raises:
        DataError: Infos with a key `_x` in one trajectory and a key `x` in another, or fields that do not fit.
    """
    parts = _parts_of(segments)

    def of_space(name: str, space: AnySpace) -> Tree:
        if name in joined:
            return cast(Tree, joined[name])
        return trees.owned(trees.concatenate(_rows_of(parts, name))) if parts else empty(space)

    def numbers(name: str, dtype: type[np.generic]) -> Any:
        if name in joined:
            return joined[name]
        return np.concatenate([np.empty(0, dtype), *cast(list[Array], _rows_of(parts, name))])

    def infos(name: str) -> Any:
        spans = [part.rows(name) for part in parts]
        columns = [(getattr(it.rollouts, name), span.start, span.stop) for it, span in zip(parts, spans, strict=True)]
        return trees.owned(cast(Tree, infos_of(merge(columns, name))))

    sizes = [segment.stop - segment.start for segment in segments]
    indices = indices_of(segments)
    return TrajectoryBatch(
        observation_space=observation_space,
        action_space=action_space,
        observations=of_space("observations", observation_space),
        last_observations=of_space("last_observations", observation_space),
        actions=of_space("actions", action_space),
        rewards=numbers("rewards", np.float64),
        terminated=numbers("terminated", np.bool_),
        truncated=numbers("truncated", np.bool_),
        env_infos=infos("env_infos"),
        agent_infos=infos("agent_infos"),
        episode_infos=infos("episode_infos"),
        lengths=numbers("lengths", np.int64),
        indices=indices,
        seeds=tuple(seeds_of(indices)),
        agent_versions=np.full(len(indices), agent_version, dtype=np.int64),
        seed=seed,
        stats=stats,
        worker_numbers=np.repeat(np.array([segment.delivery.worker for segment in segments], dtype=np.int64), sizes),
    )


class _Part(NamedTuple):
    """The rows of one segment.

    Attributes:
        rollouts: The report's.
        trajectories: Which of its trajectories.
        timesteps: Which of its timesteps.
        whole: Whether these are all.
    """

    rollouts: Rollouts
    trajectories: slice
    timesteps: slice
    whole: bool

    def rows(self, name: str) -> slice:
        """Return which rows of a field of the rollouts."""
        return self.timesteps if name in _PER_TIMESTEP else self.trajectories


def _parts_of(segments: Sequence[Segment]) -> list[_Part]:
    bounds: dict[int, list[int]] = {}
    parts = []
    for delivery, start, stop, _ in segments:
        rollouts: Rollouts = delivery.rollouts
        whole = start == 0 and stop == rollouts.n_trajectories
        if whole:  # no lists of numbers as long as a batch
            timesteps = slice(0, rollouts.env_infos.length)
        else:
            if id(delivery) not in bounds:
                bounds[id(delivery)] = [0, *np.cumsum(rollouts.lengths).tolist()]
            timesteps = slice(bounds[id(delivery)][start], bounds[id(delivery)][stop])
        parts.append(_Part(rollouts, slice(start, stop), timesteps, whole))
    return parts


def _rows_of(parts: Sequence[_Part], name: str) -> list[Tree]:
    """Return the rows of one field, of each of these parts."""
    read = attrgetter(name)
    return [read(it.rollouts) if it.whole else trees.take(read(it.rollouts), it.rows(name)) for it in parts]


# --- Early


def _row_bytes(leaf: Array) -> int:
    return math.prod(leaf.shape[1:]) * leaf.itemsize


def _is_large(leaf: Array) -> bool:
    return not leaf.dtype.hasobject and _row_bytes(leaf) >= _LARGE_ROW_BYTES


def _group_bytes(rollouts: Rollouts) -> int | None:
    """How many bytes are copied at once; None if nothing is copied early."""
    leaves = [leaf for tree in (rollouts.observations, rollouts.actions) for _, leaf in trees.leaves(tree)]
    if any(_is_large(leaf) for _, leaf in trees.leaves(rollouts.observations)):
        return 0
    return None if any(leaf.dtype.hasobject for leaf in leaves) else _GROUP_BYTES


_NO_REWARDS, _NO_FLAGS = np.empty(0), np.empty(0, np.bool_)


def infos_alone(rollouts: Rollouts) -> Rollouts:
    """Copy the infos, lengths and anomalies alone, so that the engine's memory can be given back."""
    return Rollouts(
        (), (), (), _NO_REWARDS, _NO_FLAGS, _NO_FLAGS, rollouts.lengths.copy(), _copied(rollouts.env_infos),
        _copied(rollouts.agent_infos), _copied(rollouts.episode_infos), rollouts.anomalies,
    )  # fmt: skip


def _copied(infos: InfoColumns) -> InfoColumns:
    return InfoColumns(infos.length, {key: _copied_column(column) for key, column in infos.columns.items()})


def _copied_column(column: InfoColumn) -> InfoColumn:
    steps = None if column.steps is None else column.steps.copy()
    return InfoColumn(steps, trees.map_tree(_own, column.values), column.raw)


def _own(array: Array) -> Array:
    return cast(Array, trees.owned(array)) if array.dtype == object else array.copy()


class _GrowingRows:
    """A tree that grows by rows.

    Args:
        allocate: Makes an uninitialised array for leaves with large rows.
    """

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._buffers: list[Array] = []
        self._like: Tree | None = None

    def write(self, parts: Sequence[Tree], start: int, stop: int, expected: int) -> bool:
        """Write rows after the first `start` ones.

        Args:
            parts: Trees with the rows, in order.
            start: How many rows there are before them.
            stop: How many rows there are with them.
            expected: How many rows there will probably be in all.

        Returns:
            False if they are of another form than those before; then nothing was written.
        """
        if self._like is None:
            self._buffers = [self._first(leaf, stop, expected) for leaf in _leaves(parts[0])]
            # No view: it would keep alive a mapping that its arena has outgrown.
            self._like = trees.map_tree(lambda leaf: np.empty((0, *leaf.shape[1:]), leaf.dtype), parts[0])
        form = _form(self._like)
        if any(_form(part) != form for part in parts):
            return False
        # Each by itself: those of large and of small rows begin with different lengths.
        self._buffers = [
            self._longer(buffer, start, stop) if stop > len(buffer) else buffer for buffer in self._buffers
        ]
        columns = zip(*map(_leaves, parts), strict=True)
        for buffer, column in zip(self._buffers, columns, strict=True):
            # Arrays among objects may lie in memory that is used again.
            own = tuple(map(_own, column)) if buffer.dtype == object else column
            np.concatenate(own, out=buffer[start:stop])
        return True

    def _first(self, leaf: Array, stop: int, expected: int) -> Array:
        if _is_large(leaf):
            return self._allocate((max(expected, stop), *leaf.shape[1:]), leaf.dtype)
        return np.empty((max(min(expected, _MOST_AHEAD * stop), stop), *leaf.shape[1:]), leaf.dtype)

    def _longer(self, buffer: Array, n_used: int, stop: int) -> Array:
        if buffer.flags.owndata:
            # The system moves the pages, not the bytes; and nothing looks into them yet.
            buffer.resize((stop, *buffer.shape[1:]), refcheck=False)
            return buffer
        longer = self._allocate((max(stop, 2 * len(buffer)), *buffer.shape[1:]), buffer.dtype)
        longer[:n_used] = buffer[:n_used]
        return longer

    def tree(self, n_rows: int) -> Tree:
        """Return the first `n_rows` rows, which are all; what they did not need is given back."""
        assert self._like is not None
        for buffer in self._buffers:
            if buffer.flags.owndata and len(buffer) > n_rows:
                buffer.resize((n_rows, *buffer.shape[1:]), refcheck=False)
        buffers = iter(self._buffers)

        def rows(_: Array) -> Array:
            buffer = next(buffers)
            return buffer if len(buffer) == n_rows else buffer[:n_rows]

        return trees.map_tree(rows, self._like)


def _leaves(tree: Tree) -> list[Array]:
    return [tree] if isinstance(tree, np.ndarray) else [leaf for _, leaf in trees.leaves(tree)]


def _form(tree: Tree) -> Any:
    if isinstance(tree, np.ndarray):
        return tree.shape[1:], tree.dtype
    return [(path, leaf.shape[1:], leaf.dtype) for path, leaf in trees.leaves(tree)]


class EarlyRows:
    """The rows of a batch that were copied before it is complete.

    Args:
        allocate: Makes an uninitialised array for leaves with large rows.
    """

    def __init__(self, allocate: Allocate) -> None:
        self._rows = {name: _GrowingRows(allocate) for name in _COPIED_EARLY}
        self._possible = True
        self._group_bytes: int | None = None  # known with the first rollouts
        self._n_counted = 0
        self._bytes = 0  # of the segments that were counted since the last copy
        # One assignment for all, so that an interrupt leaves them in agreement: what it cut short is written again.
        self._taken = 0, 0, 0

    @property
    def n_taken(self) -> int:
        """How many segments of the batch were copied."""
        return self._taken[0]

    @property
    def n_counted(self) -> int:
        """How many segments of the batch were counted."""
        return max(self._n_counted, self._taken[0])

    def count(self, segment: Segment) -> None:
        """Count the batch's next segment."""
        self._n_counted = self.n_counted + 1
        delivery: Delivery = segment.delivery
        rollouts, n = delivery.rollouts, delivery.rollouts.n_trajectories
        others = 26 * n + 16 * rollouts.n_timesteps  # ends, actions and rewards, about
        self._bytes += (delivery.n_bytes + others) * (segment.stop - segment.start) // n
        if self._possible and self._group_bytes is None:
            self._group_bytes = _group_bytes(rollouts)
            self._possible = self._group_bytes is not None

    @property
    def due(self) -> bool:
        """Whether what was counted is to be copied now."""
        return self._possible and self._group_bytes is not None and self._bytes >= self._group_bytes

    def take(self, segments: Sequence[Segment], expected: tuple[int, int]) -> bool:
        """Copy the rows of the batch's next segments.

        Args:
            segments: The segments.
            expected: How many timesteps and trajectories the batch will probably have.

        Returns:
            Whether they were copied. Once they were not, nothing is any more: two spaces in one batch are an error when
            it is complete.
        """
        before, n_timesteps, n_trajectories = self._taken
        parts = _parts_of(segments)
        end = n_timesteps + sum(part.timesteps.stop - part.timesteps.start for part in parts)
        stop = n_trajectories + sum(segment.stop - segment.start for segment in segments)
        for name, rows in self._rows.items() if segments else ():
            place = (n_timesteps, end, expected[0]) if name in _PER_TIMESTEP else (n_trajectories, stop, expected[1])
            if not rows.write(_rows_of(parts, name), *place):
                self._possible = False
                return False
        self._taken = before + len(segments), end, stop
        self._bytes = 0
        return True

    def fields(self) -> dict[str, Any]:
        """Return what was copied, by the names of a batch's fields; nothing if nothing was."""
        _, n_timesteps, n_trajectories = self._taken
        if not self._possible or not n_trajectories:
            return {}
        return {
            name: rows.tree(n_timesteps if name in _PER_TIMESTEP else n_trajectories)
            for name, rows in self._rows.items()
        }
