"""Handle batches of values of a space: one row for each environment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.core.errors import DataError
from streamsampler.data.info_columns import (
    InfoColumn,
    InfoColumns,
    KeyPath,
    Owners,
    check_names,
    column_of,
    is_typed,
    name_of,
)
from streamsampler.data.infos import InfoRecorder, info_value, places_of
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array, snapshot


def row_of(tree: Any, row: int) -> Any:
    """Return one value of a batch."""
    if isinstance(tree, dict):
        return {key: row_of(child, row) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row_of(child, row) for child in tree)
    return tree[row]


def padded(space: AnySpace, batch: Any, sources: list[int]) -> Any:
    """Return a batch of n values of a space in which each row has the value of another one, or of itself.

    What is no such batch comes back as it is.
    """
    if batch.__class__ is np.ndarray:
        return batch[sources] if batch.shape[:1] == (len(sources),) else batch
    if isinstance(space, gym_spaces.Dict) and isinstance(batch, Mapping) and batch.keys() == space.spaces.keys():
        return {key: padded(child, batch[key], sources) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple) and isinstance(batch, tuple):
        if len(batch) != len(space.spaces):
            return batch
        return tuple(padded(child, part, sources) for child, part in zip(space.spaces, batch, strict=True))
    if isinstance(batch, list | tuple) and len(batch) == len(sources):
        return [batch[row] for row in sources]
    return batch


def singles_of(space: AnySpace, batch: Any) -> list[Any]:
    """Return the single values of a batch that was recorded, which environments may keep or change."""
    if batch.__class__ is np.ndarray:
        # Integers stay NumPy's, as the space itself draws them: Gymnasium checks those faster than Python's.
        if batch.ndim == 1 and not batch.dtype.hasobject:
            return list(batch)
        return list(map(snapshot, batch)) if batch.dtype.hasobject else list(batch.copy())
    if isinstance(space, gym_spaces.Dict) and isinstance(batch, Mapping):
        parts = zip(*(singles_of(child, batch[key]) for key, child in space.spaces.items()), strict=True)
        return [dict(zip(space.spaces, part, strict=True)) for part in parts]
    if isinstance(space, gym_spaces.Tuple) and isinstance(batch, tuple):
        parts = zip(*(singles_of(child, part) for child, part in zip(space.spaces, batch, strict=True)), strict=True)
        return list(parts)
    return list(map(snapshot, batch)) if isinstance(batch, list | tuple) else list(np.array(batch))


# ----------------------------------------------------------------------
# Collect infos that come in batches, under Gymnasium's vector convention, and select from columns.


AgentT = TypeVar("AgentT")


def info_of_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of one row of a batch's infos; see `BatchInfos.record`."""
    found = {}
    for key, value in infos.items():
        mask = _mask(infos.get(f"_{key}"))
        if _is_mask(key, value, infos) or not (mask is None or mask[row]):
            continue
        found[key] = info_of_row(value, row) if isinstance(value, Mapping) else value[row]
    return found


class _Piece(NamedTuple):
    steps: NDArray[np.int64]
    values: Array | list[Any]


class BatchInfos:
    """Collects dicts of arrays, one dict for several steps; copies what is in them.

    Args:
        path: What the infos are called in errors, such as `agent_infos`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pieces: dict[KeyPath, list[_Piece]] = {}

    def record(self, steps: NDArray[np.int64], infos: Mapping[str, Any], rows: Array | None = None) -> None:
        """Record the infos of some steps.

        Args:
            steps: (n,) the steps' numbers.
            infos: Arrays of (n, ...), or lists of n values; with `key` there may be `_key`, a boolean mask of (n,)
                that says in which rows it is there. Dicts nest.
            rows: Which rows of the arrays are those steps'; None for all of them.

        Raises:
            DataError: A key that is no string, or a value that has not one row for each step; says both.
        """
        if not isinstance(infos, Mapping):
            raise DataError(f"{self._path}: the infos of a batch must be a dict, got {type(infos).__name__}")
        self._record((), steps, infos, rows, None)

    def _record(
        self, prefix: KeyPath, steps: NDArray[np.int64], infos: Mapping[str, Any], rows: Array | None,
        outer: Array | None,
    ) -> None:  # fmt: skip
        """Record infos, of which `outer` is the mask of the dict itself."""
        for key, value in infos.items():
            if not isinstance(key, str):
                raise DataError(
                    f"{name_of(self._path, (*prefix, key))}: the keys of infos are strings, and this is {key!r}"
                )
            path = (*prefix, key)
            mask = _mask(infos.get(f"_{key}"))
            if outer is not None:
                mask = outer if mask is None else mask & outer
            if isinstance(value, Mapping):
                self._record(path, steps, value, rows, mask)
            elif not _is_mask(key, value, infos):
                self._append(path, steps, value, mask, rows)

    def _append(
        self, path: KeyPath, steps: NDArray[np.int64], value: Any, mask: Array | None, rows: Array | None
    ) -> None:
        values = value if isinstance(value, np.ndarray | list | tuple) else np.asarray(info_value(value))
        if isinstance(values, np.ndarray):
            if rows is not None and values.ndim:
                values = values[rows]
        elif rows is not None:
            values = [values[row] for row in rows]
        if mask is not None and rows is not None:
            mask = mask[rows]
        n_values = values.shape[:1] if isinstance(values, np.ndarray) else (len(values),)
        if n_values != steps.shape or (mask is not None and mask.shape != steps.shape):
            shape = values.shape if isinstance(values, np.ndarray) else n_values
            raise DataError(
                f"{name_of(self._path, path)} has the shape {shape}, and should have one row for each of {len(steps)} "
                "environments"
            )
        if mask is not None and not mask.all():
            present = np.flatnonzero(mask)
            steps = steps[present]
            values = values[present] if isinstance(values, np.ndarray) else [values[row] for row in present]
        if len(steps):
            self._pieces.setdefault(path, []).append(_Piece(steps, _copied(values)))

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()

    def forget_before(self, step: int) -> None:
        """Forget what was recorded before a step, which has the number 0 then."""
        for path, pieces in self._pieces.items():
            first = next((place for place, piece in enumerate(pieces) if piece.steps[-1] >= step), len(pieces))
            self._pieces[path] = [_Piece(piece.steps - step, piece.values) for piece in pieces[first:]]

    def select(self, numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        """Return the infos of some steps; see `data.infos.InfoRecorder.select`."""
        found = {path: _column(pieces, numbers) for path, pieces in self._pieces.items() if pieces}
        columns = {path: column for path, column in found.items() if len(column.values)}
        check_names(columns, self._path, owners)
        return InfoColumns(len(numbers), columns)


def _mask(value: Any) -> Array | None:
    return value if isinstance(value, np.ndarray) and value.dtype == np.bool_ else None


def _is_mask(key: str, value: Any, infos: Mapping[str, Any]) -> bool:
    return key[:1] == "_" and key[1:] in infos and _mask(value) is not None


def _copied(values: Any) -> Array | list[Any]:
    if isinstance(values, np.ndarray) and is_typed(values.dtype):
        return values.copy()
    return [info_value(value) for value in values]


def _column(pieces: list[_Piece], numbers: NDArray[np.int64]) -> InfoColumn:
    steps = np.concatenate([piece.steps for piece in pieces])
    order = np.arange(0) if bool((steps[1:] > steps[:-1]).all()) else np.argsort(steps, kind="stable")
    places, present = places_of(steps[order] if len(order) else steps, numbers)
    places = order[places] if len(order) else places
    arrays = [piece.values for piece in pieces if isinstance(piece.values, np.ndarray)]
    if len(arrays) == len(pieces) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        return InfoColumn(present, np.concatenate(arrays)[places])
    singles = [value for piece in pieces for value in piece.values]
    return column_of(present, [singles[place] for place in places.tolist()])


class InfosInAnyOrder(InfoRecorder):
    """Collects infos that come in no order, several for one step maybe; keeps the dicts themselves, unchecked."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._infos: dict[int, list[dict[str, Any]]] = {}

    def record(self, step: int, info: dict[str, Any]) -> None:
        """Record an info."""
        self._infos.setdefault(step, []).append(info)

    def select(self, numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        """Return the infos of some steps; see `InfoRecorder.select`."""
        recorder = InfoRecorder(self._path)
        for position, number in enumerate(numbers.tolist()):
            for info in self._infos.get(number, ()):
                recorder.record(position, info)
        return recorder.finish(len(numbers), owners)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget what was recorded of other steps."""
        self._infos = {number: infos for number, infos in self._infos.items() if number in numbers}

    def forget_before(self, step: int) -> None:
        """Forget what was recorded before a step, which has the number 0 then."""
        self._infos = {number - step: infos for number, infos in self._infos.items() if number >= step}

    def clear(self) -> None:
        """Forget everything."""
        self._infos.clear()


def noting(agent: AgentT, note: Callable[..., None]) -> AgentT:
    """Return a `BatchedAgent` that does what `agent` does, and calls `note(timestep, info[, row])` with its infos."""
    return cast(AgentT, _Noting(agent, note))


class _Noting:
    def __init__(self, agent: Any, note: Callable[..., None]) -> None:
        self._agent, self._note, self._timestep = agent, note, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def choose(
        self, observations: Any, live: Sequence[int], worker: Any, record_info: Callable[[int, Any], None],
        masks: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
        timestep, self._timestep = self._timestep, self._timestep + 1

        def record(row: int, info: Any) -> None:
            self._note(timestep, info, row)
            record_info(row, info)

        actions, infos = self._agent.choose(observations, live, worker, record, masks)
        self._note(timestep, infos)
        return actions, infos
