"""Columns for formats of other libraries: which ones a source has, and their values in each batch.

What a column holds is decided once, over all batches of a source, so that it does not depend on how the trajectories
are spread over files. A column holds numbers of one dtype and shape; or text; or where values are neither, JSON as
`streamsampler.storage.npz` describes it under "Values".
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.info_columns import InfoColumn, KeyPath
from streamsampler.data.infos import Infos, columns_of
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.data.trees import Array
from streamsampler.errors import DataError, UsageError
from streamsampler.samplers.progress import Display
from streamsampler.storage import npz as storage
from streamsampler.storage.codec import encode
from streamsampler.storage.files import load_with_header
from streamsampler.storage.folder import TrajectoryFolder
from streamsampler.storage.manifest import shard_name
from streamsampler.version import __version__

Values: TypeAlias = tuple[Array, NDArray[np.bool_] | None]
"""The rows of a column, and which of them are there; None where all are."""

_NUMBERS = frozenset("biuf")
_OBJECT = np.dtype(object)


@dataclass(frozen=True)
class Column:
    """What a column holds.

    Attributes:
        kind: "numbers"; "text", or "json", whose rows are Python strings.
        dtype: The dtype of its numbers; that of objects otherwise.
        shape: The shape of a row of numbers.
        always: Whether all rows are there.
    """

    kind: Literal["numbers", "text", "json"]
    dtype: np.dtype[Any] = _OBJECT
    shape: tuple[int, ...] = ()
    always: bool = True


class InfoSurvey:
    """Finds out which columns some infos have.

    Args:
        name: What the infos are called in errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._kinds: dict[KeyPath, set[Column]] = {}
        self._largest: dict[KeyPath, int] = {}
        self._present: dict[KeyPath, int] = {}
        self._length = 0

    def add(self, infos: Infos, length: int) -> None:
        """Look at the infos of so many rows.

        Raises:
            DataError: They are no such infos.
        """
        self._length += length
        for path, column in columns_of(infos, length, self._name).columns.items():
            self._kinds.setdefault(path, set()).add(_column_of(column.values))
            self._largest[path] = max(self._largest.get(path, 0), _largest_integer(column.values))
            self._present[path] = self._present.get(path, 0) + len(column.values)

    def columns(self) -> dict[KeyPath, Column]:
        """Return the columns that hold all of them, by path."""
        found = {}
        for path, kinds in self._kinds.items():
            column = _common(kinds, self._largest[path])
            always = self._present[path] == self._length
            found[path] = Column(column.kind, column.dtype, column.shape, always)
        return found


def _column_of(values: Array) -> Column:
    if values.dtype.kind in _NUMBERS and values.dtype.itemsize <= 8:
        return Column("numbers", values.dtype.newbyteorder("="), values.shape[1:])
    is_text = values.dtype.kind == "U" and values.ndim == 1
    is_text = is_text or (values.dtype == _OBJECT and all(isinstance(value, str) for value in values))
    return Column("text" if is_text else "json")


def _largest_integer(values: Array) -> int:
    """Return the largest integer among some values, without its sign; 0 where they are no integers."""
    if values.dtype.kind not in "iu" or not values.size:
        return 0
    return max(abs(int(values.min())), abs(int(values.max())))


def _common(kinds: set[Column], largest: int) -> Column:
    """Return the column that holds what several columns do; JSON where it would change an integer."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if any(column.kind != "numbers" for column in kinds) or len({column.shape for column in kinds}) > 1:
        return Column("json")
    dtype = np.result_type(*sorted((column.dtype for column in kinds), key=lambda dtype: dtype.str))
    if dtype.kind == "f" and largest > 2 ** (np.finfo(dtype).nmant + 1):
        return Column("json")
    return Column("numbers", dtype, next(iter(kinds)).shape)


def info_values(
    infos: Infos, length: int, columns: dict[KeyPath, Column], name: str
) -> Iterator[tuple[KeyPath, Values]]:
    """Yield the rows of each column, also of those that these infos lack.

    Args:
        infos: The infos.
        length: How many rows they have.
        columns: Which columns there are.
        name: What the infos are called in errors.

    Raises:
        StorageError: A value cannot be written; names it.
    """
    found = columns_of(infos, length, name).columns
    for path, column in columns.items():
        yield path, _filled(column, found.get(path), length, f"{name}{''.join(f'[{key!r}]' for key in path)}")


def _filled(column: Column, found: InfoColumn | None, length: int, path: str) -> Values:
    if found is not None and found.steps is None:
        return leaf_values(column, found.values, path), None
    rows = np.zeros((length, *column.shape), column.dtype)
    if column.kind != "numbers":
        rows[:] = None
    mask = np.zeros(length, np.bool_)
    if found is not None and found.steps is not None:
        rows[found.steps] = leaf_values(column, found.values, path)
        mask[found.steps] = True
    return rows, mask


def leaf_column(space: AnySpace) -> Column:
    """Return the column that holds the values of a space without children."""
    shape, dtype = row_spec(space)
    if dtype.kind in _NUMBERS and dtype.itemsize <= 8:
        return Column("numbers", dtype.newbyteorder("="), shape)
    return Column("text" if isinstance(space, gym_spaces.Text) else "json")


def leaf_values(column: Column, rows: Array, path: str) -> Array:
    """Return rows as their column holds them.

    Raises:
        StorageError: A value cannot be written; names it.
    """
    if column.kind == "numbers":
        return rows.astype(column.dtype, copy=False)
    values = np.empty(len(rows), _OBJECT)
    plain = rows.ndim == 1 and rows.dtype.kind in _NUMBERS and rows.dtype.itemsize <= 8
    for i, value in enumerate(rows.tolist() if plain else rows):
        values[i] = str(value) if column.kind == "text" else json.dumps(encode(value, f"{path}[{i}]"))
    return values


def space_columns(space: AnySpace, tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], AnySpace, Any]]:
    """Yield the path, the space and the rows of each leaf; the rows are None where the tree is."""
    if isinstance(space, gym_spaces.Dict):
        for key, child in space.spaces.items():
            yield from space_columns(child, None if tree is None else tree[key], (*path, str(key)))
    elif isinstance(space, gym_spaces.Tuple):
        for position, child in enumerate(space.spaces):
            yield from space_columns(child, None if tree is None else tree[position], (*path, str(position)))
    else:
        yield path, space, tree


# ----------------------------------------------------------------------
# What is exported: the trajectories of a batch, of a file or of a folder, with one shard in memory at a time.


_log = logging.getLogger("streamsampler")
_INFOS = ("env_infos", "agent_infos", "episode_infos")


class Source:
    """Trajectories that are exported, shard by shard.

    Args:
        shards: The shards, each loaded when it is indexed; at least one.
        sizes: Trajectories and timesteps of each shard.
        facts: What is known of their origin: seed, provenance and version of the package.
        files: The shards' files; none where there is one shard, in memory.

    Attributes:
        n_trajectories: How many trajectories there are.
        n_timesteps: How many timesteps.
        observation_space: The environment's.
        action_space: The environment's.
        has_fragments: Whether trajectories may be parts of episodes.
        of_agents: Whether trajectories are of agents, of which an environment has several.
        facts: See above.
    """

    def __init__(
        self,
        shards: Sequence[TrajectoryBatch[Any, Any]],
        sizes: Sequence[tuple[int, int]],
        facts: Mapping[str, Any],
        files: Sequence[Path] = (),
    ) -> None:
        self._shards, self._sizes, self._files = shards, sizes, files
        self.n_trajectories = sum(trajectories for trajectories, _ in sizes)
        self.n_timesteps = sum(timesteps for _, timesteps in sizes)
        self.facts = facts
        first = shards[0]
        if isinstance(first, MultiAgentBatch):
            raise UsageError(
                "these are episodes of several agents: export what one policy did, batch['name'], with "
                f"batch = streamsampler.load(…); there are {', '.join(map(repr, first.policies))}"
            )
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self.of_agents = first.agents is not None
        self.has_fragments = bool(first.fragments)  # of a batch alone: a folder has whole trajectories

    def __len__(self) -> int:
        return len(self._shards)

    def shards(self, shown: Display | None = None) -> Iterator[tuple[int, TrajectoryBatch[Any, Any]]]:
        """Yield each shard, with how many trajectories come before it.

        Args:
            shown: Shows how much of the shards is done, whenever the next one is asked for.

        Raises:
            StorageError: A shard is damaged; names its file.
        """
        timesteps = trajectories = 0
        for number, (n_trajectories, n_timesteps) in enumerate(self._sizes):
            yield trajectories, self._shards[number].unfiltered()  # whose data are of the spaces
            timesteps += n_timesteps
            trajectories += n_trajectories
            if shown is not None:
                shown.update(lambda: (timesteps, trajectories), complete=False)  # noqa: B023 - it is called at once

    def survey(self) -> dict[str, dict[KeyPath, Column]]:
        """Return the columns of env_infos, agent_infos and episode_infos over all shards, and of "all_env_infos".

        The last are those of env_infos and episode_infos together: what `env.reset` and `env.step` returned.
        """
        surveys = {name: InfoSurvey(name) for name in (*_INFOS, "all_env_infos")}
        for number, (n_trajectories, n_timesteps) in enumerate(self._sizes):
            infos = self._infos(number)
            for name in _INFOS:
                length = n_trajectories if name == "episode_infos" else n_timesteps
                surveys[name].add(infos[name], length)
                if name != "agent_infos":
                    surveys["all_env_infos"].add(infos[name], length)
        return {name: survey.columns() for name, survey in surveys.items()}

    def _infos(self, number: int) -> dict[str, Any]:
        if self._files:
            return storage.read_trees(self._files[number], *_INFOS)[0]
        return {name: getattr(self._shards[number], name) for name in _INFOS}

    def seeds_fit(self) -> bool:
        """Return whether all seeds of trajectories are 64-bit integers."""
        limits = np.iinfo(np.int64)
        return all(limits.min <= seed <= limits.max for number in range(len(self)) for seed in self._seeds(number))

    def _seeds(self, number: int) -> Sequence[int]:
        if self._files:
            seeds: list[int] = storage.read(self._files[number])[1]["seeds"]
            return seeds
        return self._shards[number].seeds


Sourced = TrajectoryBatch[Any, Any] | TrajectoryFolder[Any, Any] | Source | str | os.PathLike[str]
"""What trajectories can be exported from."""


def open_source(source: Sourced) -> Source:
    """Open what is to be exported.

    Args:
        source: A batch, a folder, the path of a file or of a folder, or what this function returned.

    Raises:
        UsageError: It is something else.
        DataError: There are no trajectories.
        StorageError: The file or the folder is damaged, or is none.
        FileNotFoundError: There is no such file or folder.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, TrajectoryBatch):
        return _of_batch(source, {"seed": source.seed, "provenance": {}, "package_version": __version__})
    if isinstance(source, TrajectoryFolder):
        return _of_folder(source)
    if not isinstance(source, str | os.PathLike):
        raise UsageError(f"trajectories are exported from a batch, a folder or a path, not from {source!r:.80}")
    path = Path(source)
    if path.is_dir():
        return _of_folder(TrajectoryFolder(path))
    batch, header = load_with_header(path)
    facts = {name: header.get(name) for name in ("seed", "provenance", "package_version")}
    return _of_batch(batch, facts)


def _of_batch(batch: TrajectoryBatch[Any, Any], facts: Mapping[str, Any]) -> Source:
    if not len(batch):
        raise DataError("there are no trajectories to export")
    return Source([batch], [(batch.n_trajectories, batch.n_timesteps)], facts)


def _of_folder(folder: TrajectoryFolder[Any, Any]) -> Source:
    if not folder.shards:
        raise DataError(f"there are no trajectories to export: {folder.path} holds none yet")
    if not folder.complete:
        _log.warning("%s is incomplete: what is exported is what is there now", folder.path)
    package_version = folder.package_version
    facts = {"seed": folder.seed, "provenance": dict(folder.provenance), "package_version": package_version}
    files = [folder.path / shard_name(number) for number in range(len(folder.shards))]
    return Source(folder.shards, folder.shard_sizes, facts, files)
