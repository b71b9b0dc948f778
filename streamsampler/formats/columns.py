"""Columns for the formats of other libraries: their types, and their values in each shard.

A column's type is decided once, over all shards of a source, so it does not depend on how files divide the
trajectories. A column holds numbers of equal dtype and shape, or text, or else JSON
(`streamsampler/docs/storage-and-formats.md`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.progress import Display
from streamsampler.core.version import __version__
from streamsampler.data import npz as storage
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import INFOS, replaced
from streamsampler.data.codec import encode
from streamsampler.data.folder import TrajectoryFolder
from streamsampler.data.info_columns import KeyPath
from streamsampler.data.infos import Infos, columns_of
from streamsampler.data.leaves import Leaves
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.data.shards import load_with_header
from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.data.trees import Array

_ERRNO = re.compile(r"errno = (\d+)")
"""The system's error number in messages of HDF5."""
_UNFINISHED = ".export.tmp"


def check_out(out: Path) -> None:
    """Raise a `UsageError` unless a new folder can be created."""
    if not out.parent.is_dir():
        raise UsageError(f"there is no directory {str(out.parent)!r}")
    if out.is_dir():
        names = os.listdir(out)
        if names == [_UNFINISHED]:
            raise UsageError(
                f"{str(out)!r} holds an export that was killed or is still running: remove the folder, or name another"
            )
        if names:
            raise UsageError(f"{str(out)!r} is not empty: it holds {min(names)!r}; name a new or empty folder")
    elif out.exists() or out.is_symlink():
        raise UsageError(f"{str(out)!r} is a file, but this format needs a folder")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Create the folder `out`, yield an empty folder inside it, and move its files up at the end.

    An error removes `out`; a killed process leaves no file that looks finished. If the system refuses to write, an
    `OSError` names `out`, even if a library raised another error.
    """
    out.mkdir(exist_ok=True)
    # Inside `out`: the parent directory may be another file system, or read-only.
    unfinished = out.absolute() / _UNFINISHED  # absolute: Minari resolves relative paths against the wrong directory
    try:
        unfinished.mkdir()
        yield unfinished
        for name in sorted(os.listdir(unfinished)):
            (unfinished / name).rename(out / name)
        unfinished.rmdir()
    except BaseException as error:
        shutil.rmtree(out)
        number = _ERRNO.search(str(error))
        if number is not None and getattr(error, "errno", None) is None:
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(out)) from error
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(out)
        raise


def allocate(path: Path, start: int, n_bytes: int) -> None:
    """Reserve disk space for a file, from a position on, if the system supports it."""
    if hasattr(os, "posix_fallocate"):
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), start, n_bytes)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise


_NUMBERS = frozenset("biuf")
_OBJECT = np.dtype(object)


@dataclass(frozen=True)
class Column:
    """The type of a column: the dtype and shape of its numbers, or Python strings; `always` excludes missing rows."""

    kind: Literal["numbers", "text", "json"]
    dtype: np.dtype[Any] = _OBJECT
    shape: tuple[int, ...] = ()
    always: bool = True


class ColumnRows(NamedTuple):
    """The rows of a column in a shard, by path from the outermost key inwards.

    Missing rows have any value, and are false in `present`, (N,) bool, which is None if no row is missing.
    """

    path: KeyPath
    column: Column
    rows: Array
    present: NDArray[np.bool_] | None = None


class _InfoSurvey:
    """Collects the columns of infos."""

    def __init__(self) -> None:
        self._found: defaultdict[KeyPath, list[tuple[Column, int, int]]] = defaultdict(list)
        self._length = 0

    def look_at(self, infos: Infos, length: int, name: str) -> None:
        self._length += length
        for path, column in columns_of(infos, length, name).columns.items():
            rows = column.values
            self._found[path].append((_column_of(rows), _largest_integer(rows), len(rows)))

    def columns(self) -> dict[KeyPath, Column]:
        """Return the columns that fit all shards, by path."""
        columns = {}
        for path, found in self._found.items():
            common = _common({column for column, _, _ in found}, max(largest for _, largest, _ in found))
            columns[path] = replace(common, always=sum(n for _, _, n in found) == self._length)
        return columns


def _column_of(values: Array) -> Column:
    if values.dtype.kind in _NUMBERS and values.dtype.itemsize <= 8:
        return Column("numbers", values.dtype.newbyteorder("="), values.shape[1:])
    is_text = values.dtype.kind == "U" and values.ndim == 1
    is_text = is_text or (values.dtype == _OBJECT and all(isinstance(value, str) for value in values))
    return Column("text" if is_text else "json")


def _largest_integer(values: Array) -> int:
    if values.dtype.kind not in "iu" or not values.size:
        return 0
    return max(abs(int(values.min())), abs(int(values.max())))


def _common(kinds: set[Column], largest: int) -> Column:
    """Return the column that fits several columns; JSON if it would change an integer."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if any(column.kind != "numbers" for column in kinds) or len({column.shape for column in kinds}) > 1:
        return Column("json")
    dtype = np.result_type(*sorted((column.dtype for column in kinds), key=lambda dtype: dtype.str))
    if dtype.kind == "f" and largest > 2 ** (np.finfo(dtype).nmant + 1):
        return Column("json")
    return Column("numbers", dtype, next(iter(kinds)).shape)


def info_rows(
    infos: Infos, length: int, columns: Mapping[KeyPath, Column], name: str, root: KeyPath = ()
) -> Iterator[ColumnRows]:
    """Yield the rows of each column, even if these infos lack it, under paths prefixed by `root`."""
    found = columns_of(infos, length, name).columns
    for path, column in columns.items():
        name_of_key = f"{name}{''.join(f'[{key!r}]' for key in path)}"
        info = found.get(path)
        if info is not None and info.steps is None:
            yield ColumnRows((*root, *path), column, leaf_values(column, info.values, name_of_key))
            continue
        rows = np.full((length, *column.shape), 0 if column.kind == "numbers" else None, column.dtype)
        present = np.zeros(length, np.bool_)
        if info is not None:
            rows[info.steps] = leaf_values(column, info.values, name_of_key)
            present[info.steps] = True
        yield ColumnRows((*root, *path), column, rows, present)


def leaf_column(space: AnySpace) -> Column:
    shape, dtype = row_spec(space)
    if dtype.kind in _NUMBERS and dtype.itemsize <= 8:
        return Column("numbers", dtype.newbyteorder("="), shape)
    return Column("text" if isinstance(space, gym_spaces.Text) else "json")


def leaf_values(column: Column, rows: Array, path: str) -> Array:
    """Convert rows to their column's type; a `StorageError` names a value without JSON."""
    if column.kind == "numbers":
        return rows.astype(column.dtype, copy=False)
    values = np.empty(len(rows), _OBJECT)
    plain = rows.ndim == 1 and rows.dtype.kind in _NUMBERS and rows.dtype.itemsize <= 8
    for i, value in enumerate(rows.tolist() if plain else rows):
        values[i] = str(value) if column.kind == "text" else json.dumps(encode(value, f"{path}[{i}]"))
    return values


def space_columns(space: AnySpace, tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], AnySpace, Any]]:
    """Yield the path, space and rows of each leaf; rows are None without a tree."""
    if isinstance(space, gym_spaces.Dict):
        for key, child in space.spaces.items():
            yield from space_columns(child, None if tree is None else tree[key], (*path, str(key)))
    elif isinstance(space, gym_spaces.Tuple):
        for position, child in enumerate(space.spaces):
            yield from space_columns(child, None if tree is None else tree[position], (*path, str(position)))
    else:
        yield path, space, tree


_log = logging.getLogger("streamsampler")


class Source:
    """Trajectories to export, with a single shard in memory at a time.

    Args:
        shards: The shards, each loaded when it is indexed.
        sizes: Trajectories and timesteps of each shard.
        facts: Their origin: seed, provenance and version of the package.
        files: The files of the shards, if any.
        leaves: The leaves to export.
    """

    def __init__(
        self,
        shards: Sequence[TrajectoryBatch[Any, Any]],
        sizes: Sequence[tuple[int, int]],
        facts: Mapping[str, Any],
        files: Sequence[Path] = (),
        leaves: Leaves | None = None,
    ) -> None:
        self._shards, self._sizes, self._files = shards, sizes, files
        self._leaves = Leaves()
        self.n_trajectories = sum(trajectories for trajectories, _ in sizes)
        self.n_timesteps = sum(timesteps for _, timesteps in sizes)
        self.facts = facts
        self.provenance: dict[str, Any] = dict(facts.get("provenance") or {})
        first = shards[0]
        if isinstance(first, MultiAgentBatch):
            raise UsageError(
                "cannot export episodes of several agents together: select a policy with policy=NAME, or --policy NAME "
                f"on the command line, among {', '.join(map(repr, first.policies))}"
            )
        self.observation_space, self.action_space = first.observation_space, first.action_space
        if leaves:
            self._select(leaves)

    def _select(self, leaves: Leaves) -> None:
        """Restrict the export to these leaves."""
        named = [name for name in INFOS if name in leaves.roots]
        found = self.survey()[0] if named else {}
        spaces = {"observations": self.observation_space, "actions": self.action_space}
        leaves.check(spaces, {name: [*found.get(name, ())] for name in INFOS})
        self._leaves = leaves
        self.observation_space = leaves.space("observations", self.observation_space)
        self.action_space = leaves.space("actions", self.action_space)

    def _selected(self, batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
        if not (leaves := self._leaves):
            return batch
        kept: TrajectoryBatch[Any, Any] = replaced(
            batch,
            observation_space=self.observation_space,
            action_space=self.action_space,
            observations=leaves.tree("observations", batch.observations),
            last_observations=leaves.tree("observations", batch.last_observations),
            actions=leaves.tree("actions", batch.actions),
            **{name: leaves.infos(name, getattr(batch, name)) for name in INFOS},
        )
        return kept

    def leaf_spaces(self) -> Iterator[tuple[KeyPath, AnySpace]]:
        """Yield the path and space of each leaf."""
        for name, of in (("observations", self.observation_space), ("actions", self.action_space)):
            for path, space, _ in space_columns(of, None, (name,)):
                yield path, space

    def shards(self, shown: Display | None = None) -> Iterator[tuple[int, TrajectoryBatch[Any, Any]]]:
        """Yield each shard, with the number of trajectories before it; a `StorageError` names a damaged file."""
        timesteps = trajectories = 0
        for number, (n_trajectories, n_timesteps) in enumerate(self._sizes):
            yield (
                trajectories,
                self._selected(self._shards[number].unfiltered()),
            )  # filtered data may not fit the spaces
            timesteps += n_timesteps
            trajectories += n_trajectories
            if shown is not None:
                shown.update(lambda: (timesteps, trajectories), complete=False)  # noqa: B023 - called immediately

    def survey(self) -> tuple[dict[str, dict[KeyPath, Column]], bool]:
        """Read the infos and seeds of all shards.

        Return the columns of each field of infos, and under "all_env_infos" those of env_infos and episode_infos
        together; and whether all seeds of trajectories are 64-bit integers.
        """
        surveys = {name: _InfoSurvey() for name in (*INFOS, "all_env_infos")}
        seeds_fit = True
        for number, (n_trajectories, n_timesteps) in enumerate(self._sizes):
            infos, seeds = self._infos_and_seeds(number)
            seeds_fit = seeds_fit and all(-(2**63) <= seed < 2**63 for seed in seeds)
            for name in INFOS:
                length = n_trajectories if name == "episode_infos" else n_timesteps
                for survey in (name,) if name == "agent_infos" else (name, "all_env_infos"):
                    surveys[survey].look_at(infos[name], length, name)
        return {name: survey.columns() for name, survey in surveys.items()}, seeds_fit

    def _infos_and_seeds(self, number: int) -> tuple[dict[str, Any], Sequence[int]]:
        if self._files:
            infos, header = storage.read_trees(self._files[number], *INFOS)
            seeds = header["seeds"]
        else:
            shard = self._shards[number]
            infos, seeds = {name: getattr(shard, name) for name in INFOS}, shard.seeds
        return {name: self._leaves.infos(name, infos[name]) for name in INFOS}, seeds


class _OfPolicy(Sequence[TrajectoryBatch[Any, Any]]):
    """A policy's batches; `played` has the number of each shard in which it played, and of the episodes before it."""

    def __init__(self, shards: Sequence[Any], played: Sequence[tuple[int, int]], policy: str) -> None:
        self._shards, self._played, self._policy = shards, played, policy

    def __len__(self) -> int:
        return len(self._played)

    def __getitem__(self, index: Any) -> Any:
        number, first = self._played[index]
        batch = self._shards[number][self._policy]
        return replace(batch, agents=batch.agents._replace(episodes=batch.agents.episodes + first))


Sourced = TrajectoryBatch[Any, Any] | TrajectoryFolder[Any, Any] | Source | str | os.PathLike[str]
"""The possible sources of an export."""


def open_source(source: Sourced, leaves: Leaves | None = None, policy: str | None = None) -> Source:
    """Open a batch, a folder, or the path of either; return a `Source` unchanged.

    Raises:
        UsageError: The source is anything else, or the policy or a leaf does not exist.
        DataError: The source has no trajectories.
        StorageError: The file or folder is damaged.
    """
    if isinstance(source, Source):
        return source
    if not isinstance(source, TrajectoryBatch | TrajectoryFolder | str | os.PathLike):
        raise UsageError(
            "can export only a batch, a folder or a path (several folders as TrajectoryFolder(first, second)), not "
            f"{source!r:.80}"
        )
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        source = TrajectoryFolder(source)
    if isinstance(source, TrajectoryFolder):
        return _of_folder(source, leaves, policy)
    facts: Mapping[str, Any] = {"seed": None, "provenance": {}, "package_version": __version__}
    if isinstance(source, TrajectoryBatch):
        facts = {**facts, "seed": source.seed}
    else:
        source, header = load_with_header(source)
        facts = {name: header.get(name) for name in facts}
    if not len(source):
        raise DataError("there are no trajectories to export")
    return _source([source], [(source.n_trajectories, source.n_timesteps)], facts, (), leaves, policy)


def _source(
    shards: Sequence[TrajectoryBatch[Any, Any]], sizes: Sequence[tuple[int, int]], facts: Mapping[str, Any],
    files: Sequence[Path], leaves: Leaves | None, policy: str | None,
) -> Source:  # fmt: skip
    if policy is None:
        return Source(shards, sizes, facts, files, leaves)
    played: dict[tuple[int, int], tuple[int, int]] = {}
    names = set[str]()
    n_episodes = 0
    for number, shard in enumerate(shards):
        if not isinstance(shard, MultiAgentBatch):
            raise UsageError(f"the batch has a single agent, so no policy {policy!r}: leave policy out")
        names |= shard.policies.keys()
        if (batch := shard.policies.get(policy)) is not None:
            played[number, n_episodes] = batch.n_trajectories, batch.n_timesteps
        n_episodes += len(shard)
    if not played:
        raise UsageError(f"policy {policy!r} acted for no agent, only {', '.join(map(repr, sorted(names)))}")
    return Source(_OfPolicy(shards, [*played], policy), [*played.values()], facts, leaves=leaves)


def _of_folder(folder: TrajectoryFolder[Any, Any], leaves: Leaves | None, policy: str | None) -> Source:
    if not folder.shards:
        raise DataError("there are no trajectories to export: the folder has none yet")
    if not folder.complete:
        _log.warning("%r is incomplete: only its present shards are exported", folder)
    package_version = folder.package_version
    facts = {"seed": folder.seed, "provenance": dict(folder.provenance), "package_version": package_version}
    return _source(folder.shards, folder.shard_sizes, facts, folder.files, leaves, policy)
