"""Assemble a batch from the workers' reports, while they arrive if it pays.

Rows are copied as soon as their place in the batch is known, while workers still run. So the engine's memory is free
for the next reports, and the batch is in memory once, not twice. Large rows are copied report by report, while they are
in the processor's cache; small rows in groups of megabytes, because each copy has a fixed cost. A batch smaller than
a group is copied when it is complete.

Infos are copied likewise if every timestep has each key, with values alike. Other infos are kept as they arrived: their
column types are decided over the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError
from streamsampler.data import trees
from streamsampler.data.agent_rows import AgentRows
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import INFOS, PER_TIMESTEP
from streamsampler.data.copying import Allocate, empty
from streamsampler.data.info_columns import InfoColumn, InfoColumns, Piece, check_names, merge
from streamsampler.data.infos import Infos, infos_of
from streamsampler.data.recorder import Rollouts
from streamsampler.data.segments import Delivery, Segment
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array, Tree

_LARGE_ROW_BYTES = 4096
_MOST_AHEAD = 128
"""The first group's memory is multiplied by at most this to reserve room; pages never written take no memory."""


def is_large(leaf: Array) -> bool:
    """Return whether an array's rows are copied report by report, into reused memory."""
    return not leaf.dtype.hasobject and math.prod(leaf.shape[1:]) * leaf.itemsize >= _LARGE_ROW_BYTES


def copied(array: Array) -> Array:
    """Copy an array together with its objects: arrays among them may lie in reused memory."""
    return cast(Array, trees.owned(array)) if array.dtype == object else array.copy()


class GrowingRows:
    """A tree of arrays that grows by rows without copying earlier rows."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._buffers: list[Array] = []
        self._form: list[Any] = []
        self._like: Tree | None = None

    def write(self, parts: Sequence[Tree], start: int, stop: int, expected: int) -> bool:
        """Write rows `start` to `stop` of about `expected`; return False, without writing, if their form differs."""
        if self._like is None and not expected and not start and len(parts) == 1 and parts[0].__class__ is np.ndarray:
            # All rows in a single array, the usual case of a small batch.
            self._form, self._buffers = trees.form(parts[0]), [copied(parts[0])]
            self._like = self._buffers[0]
            return True
        arrays = [trees.arrays(part) for part in parts]
        if self.is_new:
            if start:
                return False
            self._form = trees.form(parts[0])
            self._buffers = [self._first(leaf, stop, expected) for leaf in arrays[0]]
            # No view: it would keep an old mapping alive after its arena has grown.
            self._like = trees.map_tree(lambda leaf: np.empty((0, *leaf.shape[1:]), leaf.dtype), parts[0])
        for part in parts:
            if trees.form(part) != self._form:
                return False
        for number, column in enumerate(zip(*arrays, strict=True)):
            buffer = self._buffers[number]
            # Each leaf is checked alone: buffers of large and of small rows have different first lengths.
            if stop > len(buffer):
                buffer = self._buffers[number] = self._longer(buffer, start, stop)
            rows = list(map(copied, column)) if buffer.dtype == object else column
            np.concatenate(rows, out=buffer[start:stop])
        return True

    @property
    def is_new(self) -> bool:
        return self._like is None

    def _first(self, leaf: Array, stop: int, expected: int) -> Array:
        if is_large(leaf):
            return self._allocate((max(expected, stop), *leaf.shape[1:]), leaf.dtype)
        return np.empty((max(min(expected, _MOST_AHEAD * stop), stop), *leaf.shape[1:]), leaf.dtype)

    def _longer(self, buffer: Array, n_used: int, stop: int) -> Array:
        if buffer.flags.owndata:
            # The system moves the pages, not the bytes; no view of the buffer exists yet.
            buffer.resize((stop, *buffer.shape[1:]), refcheck=False)
            return buffer
        longer = self._allocate((max(stop, 2 * len(buffer)), *buffer.shape[1:]), buffer.dtype)
        longer[:n_used] = buffer[:n_used]
        return longer

    def tree(self, n_rows: int) -> Tree:
        """Return all `n_rows` rows and free the rest."""
        for number, buffer in enumerate(self._buffers):
            if len(buffer) > n_rows and buffer.flags.owndata:
                buffer.resize((n_rows, *buffer.shape[1:]), refcheck=False)
            elif len(buffer) > n_rows:
                self._buffers[number] = buffer[:n_rows]
        if self._like.__class__ is np.ndarray:
            return self._buffers[0]
        buffers = iter(self._buffers)
        assert self._like is not None
        return trees.map_tree(lambda _: next(buffers), self._like)


_GROUP_BYTES = 4_000_000
_NUMBERS = {"rewards": np.float64, "terminated": np.bool_, "truncated": np.bool_, "lengths": np.int64}
_ROWS = "observations", "last_observations", "actions", *_NUMBERS


class Origins(NamedTuple):
    """Indices, workers and known fingerprints of trajectories."""

    indices: NDArray[np.int64]
    worker_numbers: NDArray[np.int64]
    fingerprints: frozenset[str]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Origins:
        sizes = [segment.stop - segment.start for segment in segments]
        workers = np.array([segment.delivery.worker for segment in segments], dtype=np.int64)
        fingerprints = frozenset([segment.delivery.fingerprint for segment in segments]) - {""}
        indices = chain.from_iterable([segment.indices for segment in segments])
        return cls(np.fromiter(indices, np.int64, sum(sizes)), np.repeat(workers, sizes), fingerprints)

    @classmethod
    def join(cls, origins: Sequence[Origins]) -> Origins:
        indices, workers, fingerprints = zip(*origins, strict=True)
        return cls(np.concatenate(indices), np.concatenate(workers), frozenset().union(*fingerprints))


class _RowSpan(NamedTuple):
    """A segment's slices of a report's rollouts, and whether they are everything."""

    rollouts: Rollouts
    trajectories: slice
    timesteps: slice
    is_whole: bool


def _spans_of(segments: Sequence[Segment]) -> list[_RowSpan]:
    bounds: dict[int, list[int]] = {}
    spans = []
    for delivery, start, stop, _ in segments:
        rollouts: Rollouts = delivery.rollouts
        is_whole = start == 0 and stop == len(rollouts.lengths)
        timesteps = slice(0, len(rollouts.rewards))
        if not is_whole:
            if id(delivery) not in bounds:
                bounds[id(delivery)] = [0, *np.cumsum(rollouts.lengths).tolist()]
            timesteps = slice(bounds[id(delivery)][start], bounds[id(delivery)][stop])
        spans.append(_RowSpan(rollouts, slice(start, stop), timesteps, is_whole))
    return spans


def _trees_of(spans: Sequence[_RowSpan], name: str) -> list[Tree]:
    rows = attrgetter("timesteps" if name in PER_TIMESTEP else "trajectories")
    field = attrgetter(f"rollouts.{name}")
    return [field(span) if span.is_whole else trees.take(field(span), rows(span)) for span in spans]


def _infos_of(spans: Sequence[_RowSpan], name: str) -> list[Piece]:
    rows = attrgetter("timesteps" if name in PER_TIMESTEP else "trajectories")
    field = attrgetter(f"rollouts.{name}")
    return [(field(span), (own := rows(span)).start, own.stop) for span in spans]


def info_pieces(segments: Sequence[Segment], name: str) -> list[Piece]:
    return _infos_of(_spans_of(segments), name)


def _alike_infos(pieces: Sequence[Piece]) -> list[Any] | None:
    """Return infos as trees; None unless every timestep has each key with values alike. Without any keys: no trees."""
    if not any(infos.columns for infos, _, _ in pieces):
        return []
    if any(column.raw or column.steps is not None for infos, _, _ in pieces for column in infos.columns.values()):
        return None
    return [
        {key: infos.columns[key].values[start:stop] for key in sorted(infos.columns)} for infos, start, stop in pieces
    ]


def _group_bytes(rollouts: Rollouts) -> float:
    """Return how many bytes are copied at once; infinity if rows are copied only when the batch is complete."""
    if rollouts.policies:
        return math.inf
    observations = trees.arrays(rollouts.observations)
    if any(map(is_large, observations)):
        return 0
    has_objects = [leaf.dtype.hasobject for leaf in (*observations, *trees.arrays(rollouts.actions))]
    return math.inf if any(has_objects) else _GROUP_BYTES


def _no_rows(observation_space: AnySpace, action_space: AnySpace) -> dict[str, Tree]:
    spaces = {"observations": observation_space, "last_observations": observation_space, "actions": action_space}
    nothing: dict[str, Tree] = {name: empty(space) for name, space in spaces.items()}
    return nothing | {name: np.empty(0, dtype) for name, dtype in _NUMBERS.items()}


def _copied(infos: InfoColumns) -> InfoColumns:
    if not infos.columns:
        return infos
    columns = {
        key: InfoColumn(None if it.steps is None else it.steps.copy(), copied(it.values), it.raw)
        for key, it in infos.columns.items()
    }
    return InfoColumns(infos.length, columns)


class _Appended(NamedTuple):
    """How many segments, timesteps, trajectories and origins a batch has."""

    segments: int = 0
    timesteps: int = 0
    trajectories: int = 0
    origins: int = 0


class GrowingBatch:
    """A batch to which segments are appended in order. An appended segment may be freed."""

    def __init__(self, allocate: Allocate = np.empty) -> None:
        self._rows = {name: GrowingRows(allocate) for name in (*_ROWS, *INFOS)}
        # By field, for infos of several forms: the numbers of segments and rows joined before. Later pieces go to
        # `_kept` and are merged at the end.
        self._unlike: dict[str, tuple[int, int]] = {}
        self._kept: dict[str, list[Piece]] = {name: [] for name in INFOS}
        self._origins: list[Origins] = []
        self._fits = True
        self._group_bytes: float | None = None  # known with the first rollouts
        self._n_counted = 0
        self._bytes = 0  # of the segments counted since the last append
        # Set by a single assignment, so that an interrupt leaves the four numbers consistent: a partial append is
        # written again.
        self._appended = _Appended()

    @property
    def n_appended(self) -> int:
        return self._appended.segments

    @property
    def n_counted(self) -> int:
        return max(self._n_counted, self.n_appended)

    def count(self, segment: Segment) -> None:
        self._n_counted = self.n_counted + 1
        delivery: Delivery = segment.delivery
        rollouts, n = delivery.rollouts, delivery.rollouts.n_trajectories
        others = 26 * n + 16 * rollouts.n_timesteps  # ends, actions and rewards, about
        for infos in (rollouts.env_infos, rollouts.agent_infos, rollouts.episode_infos):
            others += sum(column.values.nbytes for column in infos.columns.values())
        self._bytes += (delivery.n_bytes + others) * (segment.stop - segment.start) // n
        if self._group_bytes is None:
            self._group_bytes = _group_bytes(rollouts)

    @property
    def due(self) -> bool:
        """Whether the counted segments are large enough to be appended now."""
        return self._group_bytes is not None and self._bytes >= self._group_bytes

    def append(self, segments: Sequence[Segment], expected: tuple[int, int] | None = None) -> None:
        """Copy the rows of the batch's next segments.

        `expected` has the probable numbers of timesteps and trajectories. It is None for the last segments: their
        memory stays valid until the batch is made.
        """
        if not segments:
            return
        before, spans = self._appended, _spans_of(segments)
        after = _Appended(
            before.segments + len(segments),
            before.timesteps + sum([span.timesteps.stop - span.timesteps.start for span in spans]),
            before.trajectories + sum([segment.stop - segment.start for segment in segments]),
            before.origins + 1,
        )
        n_timesteps, n_trajectories = expected or (0, 0)
        for name, rows in self._rows.items():
            place = (before.trajectories, after.trajectories, n_trajectories)
            if name in PER_TIMESTEP:
                place = (before.timesteps, after.timesteps, n_timesteps)
            if name in INFOS:
                self._append_infos(name, _infos_of(spans, name), place, are_last=expected is None)
            elif not rows.write(_trees_of(spans, name), *place):
                self._fits = False
        self._origins[before.origins :] = [Origins.of(segments)]
        self._appended = after
        self._bytes = 0

    def _append_infos(self, name: str, pieces: Sequence[Piece], place: tuple[int, int, int], *, are_last: bool) -> None:
        n_before = self.n_appended
        if name not in self._unlike:
            infos = _alike_infos(pieces)
            if infos is not None and (self._rows[name].write(infos, *place) if infos else self._rows[name].is_new):
                return
            self._unlike[name] = n_before, place[0]
        if not are_last:
            pieces = [(_copied(infos), start, stop) for infos, start, stop in pieces]
        self._kept[name][n_before - self._unlike[name][0] :] = pieces

    def batch(
        self,
        *,
        observation_space: AnySpace,
        action_space: AnySpace,
        seeds_of: Callable[[NDArray[np.int64]], Sequence[int]],
        agent_version: int,
        seed: int | None,
        stats: Any = None,
        fragments: Mapping[str, Array] = MappingProxyType({}),
        origins: Origins | None = None,
        agents: AgentRows | None = None,
    ) -> TrajectoryBatch[Any, Any]:
        """Return the batch of all appended segments, independent of how reports divide the trajectories.

        `fragments` is the batch's field without `cut`, empty for whole trajectories; `origins` replaces those of the
        segments. The batch shares no arrays with the rollouts.

        Raises:
            DataError: Infos have a key `_x` in one trajectory and a key `x` in another, or fields do not fit.
        """
        if not self._fits:
            raise DataError("all trajectories of a batch must have values of the same shapes and dtypes")
        origins = origins or Origins.join(self._origins[: self._appended.origins] or [Origins.of([])])
        if self.n_appended:
            rows: dict[str, Any] = {name: self._rows[name].tree(self._n_rows(name)) for name in _ROWS}
        else:
            rows = _no_rows(observation_space, action_space)
        infos: dict[str, Any] = {name: self._infos(name) for name in INFOS}
        if fragments:
            fragments = {**fragments, "cut": ~(rows["terminated"] | rows["truncated"])}
        return TrajectoryBatch(
            observation_space=observation_space,
            action_space=action_space,
            **rows,
            **infos,
            indices=origins.indices,
            seeds=tuple(seeds_of(origins.indices)),
            agent_versions=np.full(len(origins.indices), agent_version, dtype=np.int64),
            seed=seed,
            fragments=dict(fragments),
            stats=stats,
            worker_numbers=origins.worker_numbers,
            fingerprints=origins.fingerprints,
            agents=agents,
        )

    def _n_rows(self, name: str) -> int:
        return self._appended.timesteps if name in PER_TIMESTEP else self._appended.trajectories

    def _infos(self, name: str) -> Infos:
        """Merge the infos joined while segments arrived with those kept for the end."""
        _, n_rows = self._unlike.get(name, (0, self._n_rows(name)))
        tree: Any = {} if self._rows[name].is_new or not n_rows else self._rows[name].tree(n_rows)
        if not tree and name not in self._unlike:
            return {}
        columns = InfoColumns(n_rows, {key: InfoColumn(None, values) for key, values in tree.items()})
        check_names(columns.columns, name)
        if others := self._kept[name]:
            columns = merge([(columns, 0, n_rows), *others], name)
        return cast(Infos, trees.owned(cast(Tree, infos_of(columns))))


def assemble(segments: Sequence[Segment], **about: Any) -> TrajectoryBatch[Any, Any]:
    growing = GrowingBatch()
    growing.append(segments)
    return growing.batch(**about)
