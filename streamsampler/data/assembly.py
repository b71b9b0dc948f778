"""Assemble a batch from segments of the workers' reports; early, where that pays.

Rows are copied as soon as their place in the batch is known: while workers run, not while they wait. So the engine's
memory is free for the next reports, and the batch is in memory once, not twice. Large rows are copied report by report,
while they are in the processor's cache; small ones in groups of megabytes, since each copy has its own cost. A batch
smaller than one group is joined when it is complete.

So are infos as long as each key is in each step, with values of one dtype and shape. Others stay as they arrived, in
memory of their own: what their columns become is decided over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.data import trees
from streamsampler.data.agent_rows import AgentRows
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.copying import Allocate, empty
from streamsampler.data.info_columns import InfoColumn, InfoColumns, check_names, merge, no_infos
from streamsampler.data.infos import infos_of
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array, Tree
from streamsampler.scheduling.result import Segment

# ----------------------------------------------------------------------
# Grow trees by rows, whose number is not known beforehand, without copying what is there.


_LARGE_ROW_BYTES = 4096
_MOST_AHEAD = 128
"""How many times as much memory as the first group takes may be asked for; what is not written to takes none."""


def is_large(leaf: Array) -> bool:
    """Return whether an array's rows are copied one report after the other, into memory that is used again."""
    return not leaf.dtype.hasobject and math.prod(leaf.shape[1:]) * leaf.itemsize >= _LARGE_ROW_BYTES


def copied(array: Array) -> Array:
    """Return a copy of an array, and of its objects: arrays among those may lie in memory that is used again."""
    return cast(Array, trees.owned(array)) if array.dtype == object else array.copy()


class GrowingRows:
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
        if (columns := _columns(parts, self._like)) is None:
            return False
        # Each by itself: those of large and of small rows begin with different lengths.
        self._buffers = [
            self._longer(buffer, start, stop) if stop > len(buffer) else buffer for buffer in self._buffers
        ]
        for buffer, column in zip(self._buffers, columns, strict=True):
            own = tuple(map(copied, column)) if buffer.dtype == object else column
            np.concatenate(own, out=buffer[start:stop])
        return True

    def _first(self, leaf: Array, stop: int, expected: int) -> Array:
        if is_large(leaf):
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


def _columns(parts: Sequence[Tree], like: Tree) -> Iterable[Sequence[Array]] | None:
    """Return the arrays of each leaf, of all trees; None if a tree is of another form than `like`."""
    if isinstance(like, np.ndarray):
        # No function for each tree: with thousands of workers, a group of reports has thousands of them.
        shape, dtype = like.shape[1:], like.dtype
        alike = [it for it in parts if isinstance(it, np.ndarray) and it.shape[1:] == shape and it.dtype == dtype]
        return [alike] if len(alike) == len(parts) else None
    form = _form(like)
    return None if any(_form(part) != form for part in parts) else zip(*map(_leaves, parts), strict=True)


def _form(tree: Tree) -> Any:
    return [(path, leaf.shape[1:], leaf.dtype) for path, leaf in trees.leaves(tree)]


# ----------------------------------------------------------------------


_GROUP_BYTES = 4_000_000
_PER_TIMESTEP = "observations", "actions", "rewards", "env_infos", "agent_infos"
_INFOS = "env_infos", "agent_infos", "episode_infos"
_ROWS = "observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths"


@dataclass(slots=True)
class Delivery:
    """What one report brought to the sampler; a `Segment` is a part of it.

    Attributes:
        worker: The worker that ran the trajectories.
        rollouts: The trajectories; arrays in memory that belongs to the engine.
        release: Gives that memory back.
        n_bytes: How many bytes the observations have.
        spaces: The observation and the action space of the worker's environment.
        fingerprint: The bits of the worker's fingerprint; empty where they are not known.
    """

    worker: int
    rollouts: Rollouts
    release: Callable[[], None]
    n_bytes: int = 0
    spaces: Any = None
    fingerprint: str = ""

    def share_no_infos(self) -> None:
        """Share the objects which say that there are no infos with all other deliveries.

        A large batch consists of thousands of deliveries: the garbage collector looks at all of their objects.
        """
        rollouts = self.rollouts
        if not rollouts.env_infos.columns:
            rollouts.env_infos = no_infos(rollouts.env_infos.length)
        if not rollouts.agent_infos.columns:
            rollouts.agent_infos = no_infos(rollouts.agent_infos.length)
        if not rollouts.episode_infos.columns:
            rollouts.episode_infos = no_infos(rollouts.episode_infos.length)

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
    origins: Sequence[Origins] = (),
    fragments: Mapping[str, Array] = MappingProxyType({}),
    every: Origins | None = None,
    agents: AgentRows | None = None,
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
        joined: What `EarlyRows.fields` returns: fields of the batch, by name, of trajectories before the segments'.
        origins: Those of these trajectories.
        fragments: The batch's field, but `cut`; empty for whole trajectories.
        every: The origins of all trajectories, where segments do not tell; None where they do.
        agents: The batch's field.

    Returns:
        A batch that shares no arrays with the rollouts. It does not depend on how the trajectories were spread over
        them.

    Raises:
        DataError: Infos with a key `_x` in one trajectory and a key `x` in another, or fields that do not fit.
    """
    parts = _parts_of(segments)

    def of_space(name: str, space: AnySpace) -> Tree:
        if name in joined:
            assert not segments
            return cast(Tree, joined[name])
        return trees.owned(trees.concatenate(_rows_of(parts, name))) if parts else empty(space)

    def numbers(name: str, dtype: type[np.generic]) -> Any:
        if name in joined:
            return joined[name]
        return np.concatenate([np.empty(0, dtype), *cast(list[Array], _rows_of(parts, name))])

    def infos(name: str) -> Any:
        columns, kept = joined.get(name, (InfoColumns(0, {}), []))
        check_names(columns.columns, name)
        others = [*kept, *_infos_of(parts, name)]
        if others and (columns.columns or any(part.columns for part, _, _ in others)):
            columns = merge([(columns, 0, columns.length), *others], name)
        return trees.owned(cast(Tree, infos_of(columns)))

    every = every or Origins.join([*origins, Origins.of(segments)])
    terminated, truncated = numbers("terminated", np.bool_), numbers("truncated", np.bool_)
    if fragments:
        fragments = {**fragments, "cut": ~(terminated | truncated)}
    return TrajectoryBatch(
        observation_space=observation_space,
        action_space=action_space,
        observations=of_space("observations", observation_space),
        last_observations=of_space("last_observations", observation_space),
        actions=of_space("actions", action_space),
        rewards=numbers("rewards", np.float64),
        terminated=terminated,
        truncated=truncated,
        lengths=numbers("lengths", np.int64),
        **{name: infos(name) for name in _INFOS},
        indices=every.indices,
        seeds=tuple(seeds_of(every.indices)),
        agent_versions=np.full(len(every.indices), agent_version, dtype=np.int64),
        seed=seed,
        fragments=dict(fragments),
        stats=stats,
        worker_numbers=every.worker_numbers,
        fingerprints=every.fingerprints,
        agents=agents,
    )


class Origins(NamedTuple):
    """Which trajectories segments have, and which workers ran them: all that a batch needs besides their rows.

    A batch keeps few of these instead of each segment. Where segments are many, the garbage collector would look at all
    of them again and again.

    Attributes:
        indices: (n,) int64.
        worker_numbers: (n,) int64.
        fingerprints: The bits of the workers' fingerprints, where they are known.
    """

    indices: NDArray[np.int64]
    worker_numbers: NDArray[np.int64]
    fingerprints: frozenset[str]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Origins:
        """Return the origins of all trajectories of segments."""
        sizes = [segment.stop - segment.start for segment in segments]
        workers = np.array([segment.delivery.worker for segment in segments], dtype=np.int64)
        fingerprints = frozenset(segment.delivery.fingerprint for segment in segments) - {""}
        return cls(indices_of(segments), np.repeat(workers, sizes), fingerprints)

    @classmethod
    def join(cls, origins: Sequence[Origins]) -> Origins:
        """Return some origins, at least one, as one, in their order."""
        indices, workers, fingerprints = zip(*origins, strict=True)
        return cls(np.concatenate(indices), np.concatenate(workers), frozenset().union(*fingerprints))


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


def _infos_of(parts: Sequence[_Part], name: str) -> list[tuple[InfoColumns, int, int]]:
    """Return the infos of each of these parts, as `merge` takes them."""
    read = attrgetter(name)
    return [(read(it.rollouts), (span := it.rows(name)).start, span.stop) for it in parts]


def info_pieces(segments: Sequence[Segment], name: str) -> list[tuple[InfoColumns, int, int]]:
    """Return the infos of a name, such as `env_infos`, of each segment, as `merge` takes them."""
    return _infos_of(_parts_of(segments), name)


def _alike_infos(parts: Sequence[_Part], name: str) -> list[Any] | None:
    """Return infos of these parts as trees; None unless each key is in each step, with values of one kind."""
    infos: list[InfoColumns] = list(map(attrgetter(f"rollouts.{name}"), parts))
    if not any(map(attrgetter("columns"), infos)):
        return [{}]
    if any(column.raw or column.steps is not None for it in infos for column in it.columns.values()):
        return None
    rows = [it.rows(name) for it in parts]
    return [
        {key: it.columns[key].values[span] for key in sorted(it.columns)} for it, span in zip(infos, rows, strict=True)
    ]


# --- Early


def _group_bytes(rollouts: Rollouts) -> int | None:
    """How many bytes are copied at once; None if nothing is copied early."""
    if rollouts.policies:
        return None
    leaves = [leaf for tree in (rollouts.observations, rollouts.actions) for _, leaf in trees.leaves(tree)]
    if any(is_large(leaf) for _, leaf in trees.leaves(rollouts.observations)):
        return 0
    return None if any(leaf.dtype.hasobject for leaf in leaves) else _GROUP_BYTES


def _copied(infos: InfoColumns) -> InfoColumns:
    if not infos.columns:
        return infos
    columns = {
        key: InfoColumn(None if it.steps is None else it.steps.copy(), copied(it.values), it.raw)
        for key, it in infos.columns.items()
    }
    return InfoColumns(infos.length, columns)


class EarlyRows:
    """The rows of a batch that were copied before it is complete, and the origins of its trajectories.

    A segment whose rows were copied is not needed any more.

    Args:
        allocate: Makes an uninitialised array for leaves with large rows.
    """

    def __init__(self, allocate: Allocate) -> None:
        self._rows = {name: GrowingRows(allocate) for name in (*_ROWS, *_INFOS)}
        # Infos, by name, of which no more rows are joined because they are not alike: how many segments and rows were
        # joined before, and those since.
        self._unlike: dict[str, tuple[int, int]] = {}
        self._kept: dict[str, list[tuple[InfoColumns, int, int]]] = {name: [] for name in _INFOS}
        self._origins: list[Origins] = []
        self._possible = True
        self._group_bytes: int | None = None  # known with the first rollouts
        self._n_counted = 0
        self._bytes = 0  # of the segments that were counted since the last copy
        # One assignment for all, so that an interrupt leaves them in agreement: what it cut short is written again.
        self._taken = 0, 0, 0, 0

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
        for infos in (rollouts.env_infos, rollouts.agent_infos, rollouts.episode_infos):
            if infos.columns:
                others += sum(column.values.nbytes for column in infos.columns.values())
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
        before, n_timesteps, n_trajectories, n_origins = self._taken
        parts = _parts_of(segments)
        end = n_timesteps + sum([part.timesteps.stop - part.timesteps.start for part in parts])
        stop = n_trajectories + sum([segment.stop - segment.start for segment in segments])
        for name, rows in self._rows.items() if segments else ():
            place = (n_timesteps, end, expected[0]) if name in _PER_TIMESTEP else (n_trajectories, stop, expected[1])
            if name not in self._unlike:
                trees_of_parts = _alike_infos(parts, name) if name in _INFOS else _rows_of(parts, name)
                if trees_of_parts is not None and rows.write(trees_of_parts, *place):
                    continue
                if name not in _INFOS:
                    self._possible = False
                    return False
                self._unlike[name] = before, place[0]
            copies = [(_copied(infos), first, last) for infos, first, last in _infos_of(parts, name)]
            self._kept[name][before - self._unlike[name][0] :] = copies
        self._origins[n_origins:] = [Origins.of(segments)]
        self._taken = before + len(segments), end, stop, n_origins + 1
        self._bytes = 0
        return True

    @property
    def origins(self) -> Sequence[Origins]:
        """The origins of all trajectories whose rows were copied."""
        return self._origins[: self._taken[-1]]

    def fields(self) -> dict[str, Any]:
        """Return what was copied, by name; nothing if nothing was. Infos: their columns, and those to be merged."""
        _, n_timesteps, n_trajectories, _ = self._taken
        fields: dict[str, Any] = {}
        for name, rows in self._rows.items() if self._possible and n_trajectories else ():
            n_rows = n_timesteps if name in _PER_TIMESTEP else n_trajectories
            _, n_rows = self._unlike.get(name, (0, n_rows))
            tree: Any = rows.tree(n_rows) if n_rows else {}
            if name in _INFOS:
                columns = {key: InfoColumn(None, values) for key, values in tree.items()}
                tree = InfoColumns(n_rows, columns), self._kept[name]
            fields[name] = tree
        return fields
