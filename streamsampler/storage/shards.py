"""Writing a folder of shards, such that whatever ends the process, another one can go on.

A shard appears under its name when it is on the disk as a whole. The folder's own descriptor carries the lock that
keeps a second process out: a lock that ends with its process, and leaves no file.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.trees import Array
from streamsampler.data.words import count
from streamsampler.errors import DamagedShardError, StorageError, UsageError
from streamsampler.storage import npz as storage
from streamsampler.storage.atomic import is_leftover, sync_directory
from streamsampler.storage.lock import check_locks, lock_folder, unlock_folder
from streamsampler.storage.manifest import MANIFEST, Manifest, Shard, read_manifest, shard_name, write_manifest
from streamsampler.storage.shard_files import all_shards, check_shard, read_shard, unlisted_shard, verify_shard

__all__ = ["ShardWriter", "check_folder"]

_LISTED_LATE = 64
"""The manifest is written again when one shard in so many is not listed: for n shards it is written about 64 times for
each doubling of n, and not n times."""

_SHARD = re.compile(r"shard-\d{6,}\.npz")


def check_folder(path: Path, *, resume: bool) -> None:
    """Check that a folder is what it must be to write shards into it.

    Args:
        path: The folder; it need not exist.
        resume: Whether to go on with what is there.

    Raises:
        UsageError: It is none; or something is there that is not to be gone on with, or cannot be.
        StorageError: Its manifest is damaged.
        OSError: It cannot be read.
    """
    if not path.exists():
        if not path.parent.is_dir():
            raise UsageError(f"there is no directory {str(path.parent)!r}")
        return
    if not path.is_dir():
        raise UsageError(f"{str(path)!r} is a file, and shards need a folder")
    names = [name for name in os.listdir(path) if not is_leftover(name)]
    if MANIFEST in names:
        manifest = read_manifest(path)
        if not resume:
            n, state = len(_shard_names(path)), "complete" if manifest.complete else "incomplete"
            hint = "name another folder" if manifest.complete else "--resume goes on with them"
            raise UsageError(f"{str(path)!r} holds trajectories already ({count(n, 'shard')}, {state}): {hint}")
    elif names:
        raise UsageError(f"{str(path)!r} holds something else, such as {min(names)!r}: name a new or empty folder")


def _shard_names(path: Path) -> set[str]:
    return {name for name in os.listdir(path) if _SHARD.fullmatch(name)}


class ShardWriter:
    """Writes the shards of a folder, from the first one that is not there on.

    A context manager; the folder is locked until it is left.

    Args:
        path: The folder; it is made where there is none.
        resume: Whether to go on with what is there.
        repair: Whether to go on with it even if shards are damaged, missing or of another run. Then all of each shard
            is read. Those that the manifest lists are to be written again, by `replace`; of the others, the first such
            one and all that follow it are removed, to be written as if they had never been there.

    Attributes:
        manifest: What the folder is to hold; None in a new one, until `begin`. Its shards may lag behind.
        n_shards: How many shards there are.
        n_trajectories: How many trajectories they have.
        next_trajectory: The index behind those of their trajectories.
        n_timesteps: How many timesteps they have.
        damaged: Which of the shards are to be written again, and why.
        removed: The names of the files that `begin` removes, and why.

    Raises:
        UsageError: See `check_folder`.
        DamagedShardError: A shard is damaged or missing, and `repair` is false; names the file.
        StorageError: The system has no locks on folders; another process writes there; the manifest is damaged.
        OSError: It cannot be made or read.
    """

    def __init__(self, path: Path, *, resume: bool = False, repair: bool = False) -> None:
        resume = resume or repair
        check_locks()
        check_folder(path, resume=resume)
        if not path.exists():
            path.mkdir(exist_ok=True)
            sync_directory(path.parent)
        self._path = path
        self._descriptor: int | None = lock_folder(path)
        try:
            check_folder(path, resume=resume)  # once more: now it is certain
            self._shards: list[Shard] = []
            self.damaged: dict[int, str] = {}
            self.removed: dict[str, str] = {}
            self.manifest = self._recover(repair=repair)
            self._n_trajectories = sum(shard.trajectories for shard in self._shards)
            self.n_timesteps = sum(shard.timesteps for shard in self._shards)
        except BaseException:
            self.close()
            raise
        # A forked worker would share the lock, and may live a moment longer than this process.
        reference = weakref.WeakMethod(self._let_go)
        os.register_at_fork(after_in_child=lambda: _call(reference))

    def _recover(self, *, repair: bool) -> Manifest | None:
        for name in os.listdir(self._path):
            if is_leftover(name):
                (self._path / name).unlink()
        if not (self._path / MANIFEST).exists():
            return None
        manifest = read_manifest(self._path)
        self._shards = self._find_damage(manifest) if repair else all_shards(self._path, manifest)
        there = _shard_names(self._path) - set(self.removed)
        expected = [shard_name(number) for number in range(len(self._shards))]
        gaps = [name for number, name in enumerate(expected) if name not in there and number not in self.damaged]
        if gaps:
            raise DamagedShardError(f"{self._path / gaps[0]} is missing, and the folder's {MANIFEST} lists it")
        if behind := there - set(expected):
            raise DamagedShardError(f"{self._path / min(behind)} does not follow on {len(expected)} shards")
        return manifest

    def _find_damage(self, manifest: Manifest) -> list[Shard]:
        """Fill `damaged` and `removed`, and return the shards that stay."""
        for number, shard in enumerate(manifest.shards):
            try:
                verify_shard(self._path, number, shard, manifest)
            except DamagedShardError as error:
                self.damaged[number] = str(error)
        listed, reason = {shard_name(number) for number in range(len(manifest.shards))}, ""
        shards = list(manifest.shards)
        unlisted = sorted(_shard_names(self._path) - listed, key=lambda name: (len(name), name))
        for number, name in enumerate(unlisted, len(shards)):
            reason = reason or self._misfit(number, name, shards, manifest)
            if reason:
                self.removed[name] = reason
        return shards

    def _misfit(self, number: int, name: str, shards: list[Shard], manifest: Manifest) -> str:
        """Return why a file is not the shard `number` that follows `shards`; if it is, add it to them."""
        if manifest.complete or name != shard_name(number):
            return f"{self._path / name} does not follow on {number} shards"
        try:
            shard = unlisted_shard(self._path, manifest, shards)
            verify_shard(self._path, number, shard, manifest)
        except DamagedShardError as error:
            return str(error)
        shards.append(shard)
        return ""

    def begin(self, manifest: Manifest) -> None:
        """Begin a folder, or go on with one that is to hold the same.

        Raises:
            UsageError: The folder is to hold something else; says what.
            OSError: The manifest cannot be written.
        """
        if self.manifest is None:
            write_manifest(self._path, manifest)
            self.manifest = manifest
            return
        there, wanted = self.manifest.decides(), manifest.decides()
        differences = [
            f"{name} is {there.get(name)!r} there, and {wanted.get(name)!r} here"
            for name in dict.fromkeys([*there, *wanted])
            if there.get(name) != wanted.get(name)
        ]
        if differences:
            raise UsageError(f"{str(self._path)!r} was begun with other arguments: {'; '.join(differences)}")
        for name in self.removed:
            (self._path / name).unlink()

    @property
    def n_shards(self) -> int:
        """How many shards there are."""
        return len(self._shards)

    @property
    def n_trajectories(self) -> int:
        """How many trajectories they have."""
        return self._n_trajectories

    @property
    def next_trajectory(self) -> int:
        """The index behind those of their trajectories."""
        return self._shards[-1].stop if self._shards else 0

    @property
    def intact(self) -> tuple[int, int]:
        """How many trajectories and timesteps there are in shards that are not damaged."""
        shards = [shard for number, shard in enumerate(self._shards) if number not in self.damaged]
        return sum(shard.trajectories for shard in shards), sum(shard.timesteps for shard in shards)

    def contents(self) -> Iterator[tuple[Array, Array]]:
        """For each shard that is there and not damaged, the lengths and the returns of its trajectories.

        Raises:
            DamagedShardError: A shard is damaged or missing, and `repair` was false; names it.
        """
        for number, shard in enumerate(self._shards):
            if number not in self.damaged:
                arrays = read_shard(self._path, number, shard, self._begun(), "rewards")
                lengths = arrays["lengths"]
                yield lengths, np.add.reduceat(arrays["rewards"], np.cumsum(lengths) - lengths)

    def before(self, number: int) -> tuple[int, int, int]:
        """The index that shard `number` begins with, and the trajectories and timesteps of those before it."""
        shards = self._shards[:number]
        following = shards[-1].stop if shards else 0
        return following, sum(shard.trajectories for shard in shards), sum(shard.timesteps for shard in shards)

    def replace(self, number: int, batch: TrajectoryBatch) -> None:
        """Write a damaged shard again.

        Raises:
            StorageError: The batch is not what the manifest says of the shard; or as `write`.
            OSError: It cannot be written; what was there is still there.
        """
        path = self._path / shard_name(number)
        try:
            check_shard(path, self._shards[number], batch.indices, batch.lengths)
        except DamagedShardError as error:
            raise StorageError(f"sampled again, it is not what it was; has the environment changed? {error}") from None
        storage.save(batch, path, provenance=self._begun().provenance)
        del self.damaged[number]

    def write(self, batch: TrajectoryBatch[Any, Any]) -> None:
        """Write the next shard.

        Raises:
            StorageError: It cannot be written and read back exactly.
            OSError: It cannot be written; what was there is still there.
        """
        manifest = self._begun()
        path = self._path / shard_name(len(self._shards))
        storage.save(batch, path, provenance=manifest.provenance)
        first = self.next_trajectory
        n_dropped = int(batch.indices[-1]) + 1 - first - batch.n_trajectories
        self._shards.append(Shard(first, batch.n_trajectories, batch.n_timesteps, n_dropped))
        self._n_trajectories += batch.n_trajectories
        self.n_timesteps += batch.n_timesteps
        unlisted = len(self._shards) - len(manifest.shards)
        if unlisted * _LISTED_LATE > len(self._shards):
            self._list()

    def finish(self) -> None:
        """Note that all is there.

        Raises:
            OSError: The manifest cannot be written.
        """
        if not self._begun().complete:
            self._list(complete=True)

    def _list(self, *, complete: bool = False) -> None:
        manifest = replace(self._begun(), shards=tuple(self._shards), complete=complete)
        write_manifest(self._path, manifest)
        self.manifest = manifest

    def _begun(self) -> Manifest:
        if self.manifest is None:
            raise UsageError("a folder must be begun before shards are written to it")
        return self.manifest

    def close(self) -> None:
        """Unlock the folder; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            unlock_folder(descriptor)

    def _let_go(self) -> None:
        """Close a forked process's copy of the descriptor, and leave the lock to the one that holds it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _call(reference: weakref.WeakMethod[Any]) -> None:
    method = reference()
    if method is not None:
        method()
