"""Write a folder of shards, such that another process can continue after whatever ended this one.

A shard appears under its name when it is on the disk as a whole. The folder's own descriptor carries the lock that
keeps a second process out: a lock that ends with its process, and leaves no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from streamsampler.core.atomic import FolderLock, check_locks, is_leftover, sync_directory
from streamsampler.core.errors import DamagedShardError, StorageError, UsageError
from streamsampler.core.words import count
from streamsampler.data import npz as storage
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.codec import LARGEST
from streamsampler.data.files import load_with_header
from streamsampler.data.manifest import MANIFEST, Manifest, Shard, read_manifest, shard_name, write_manifest
from streamsampler.data.trees import Array
from streamsampler.protocol.messages import agree

# ----------------------------------------------------------------------
# Read the shards of a folder, and check that each is what the manifest says of it.


T = TypeVar("T")


class ShardFiles:
    """The shards of a folder. What reads a shard raises `DamagedShardError` if it is missing, damaged or another one.

    Args:
        folder: The folder.
        manifest: Its manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest

    def survey(self, look: Callable[[int, Shard], object]) -> tuple[list[Shard], dict[int, DamagedShardError]]:
        """Look at all shards.

        Args:
            look: Called with the number of each shard and what is known of it; may raise `DamagedShardError`.

        Returns:
            The shards, and what is wrong with some of them, by number.
        """
        shards, damaged = list(self._manifest.shards), {}
        for number, shard in enumerate(shards):
            try:
                look(number, shard)
            except DamagedShardError as error:
                damaged[number] = error
        return shards, damaged

    def path(self, number: int) -> Path:
        """Return the file of a shard."""
        return self._folder / shard_name(number)

    def read(self, number: int, shard: Shard, *names: str) -> dict[str, Array]:
        """Return some arrays of a shard, its indices and its lengths."""
        path = self.path(number)
        arrays, header = _whole(path, lambda: storage.read(path, "indices", "lengths", *names))
        self._check_origin(path, header)
        check_shard(path, shard, arrays["indices"], arrays["lengths"])
        return arrays

    def load(self, number: int, shard: Shard) -> TrajectoryBatch:
        """Return a shard."""
        path = self.path(number)
        batch, header = _whole(path, lambda: load_with_header(path))
        self._check_origin(path, header)
        check_shard(path, shard, batch.indices, batch.lengths)
        return batch

    def _check_origin(self, path: Path, header: dict[str, Any]) -> None:
        """Compare what a shard and the manifest say of the run."""
        for name in ("seed", "package_version", "provenance"):
            here, listed = header.get(name), getattr(self._manifest, name)
            if here != listed:
                raise DamagedShardError(
                    f"{path} is of another run: its {name} is {here!r:.200}, and the folder's {MANIFEST} says "
                    f"{listed!r:.200}"
                )


def _whole(path: Path, read: Callable[[], T]) -> T:
    """Return what `read` returns; a file that is damaged or missing is a damaged shard."""
    try:
        return read()
    except FileNotFoundError:
        raise DamagedShardError(f"{path} is missing, and the folder's {MANIFEST} lists it") from None
    except StorageError as error:
        raise DamagedShardError(str(error)) from error.__cause__


def check_shard(path: Path, shard: Shard, indices: Array, lengths: Array) -> None:
    """Compare a file's contents with what is known of the shard.

    Raises:
        DamagedShardError: They differ.
    """
    for name, array in (("indices", indices), ("lengths", lengths)):
        if array.dtype != np.int64 or array.ndim != 1 or not ((array >= 0) & (array < LARGEST)).all():
            raise DamagedShardError(f"{path} is damaged: its {name} are {array.dtype} of shape {array.shape}")
    first, last = shard.first_trajectory, shard.stop - 1
    # Rising from first to last, and as many as there are indices: without gaps, unless some were dropped.
    rising = len(indices) > 0 and indices[0] >= first and indices[-1] == last and bool((np.diff(indices) > 0).all())
    fit = rising and len(indices) == len(lengths) == shard.trajectories and lengths.min() > 0
    if not fit or lengths.sum() != shard.timesteps:
        but = f" but {shard.dropped}" if shard.dropped else ""
        raise DamagedShardError(
            f"{path} should hold trajectories {first} to {last}{but} with {shard.timesteps} timesteps, "
            f"and holds {len(indices)} from {indices[0] if len(indices) else None} on with {lengths.sum()}"
        )


# ----------------------------------------------------------------------


_SHARD = re.compile(r"shard-\d{6,}\.npz")


def check_folder(path: Path, *, resume: bool) -> None:
    """Check that shards can be written into a folder.

    Args:
        path: The folder; it need not exist.
        resume: Whether to continue with what is there.

    Raises:
        UsageError: It is no folder, holds something else, or holds trajectories and `resume` is false.
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
            hint = "name another folder" if manifest.complete else "resume it or name another folder"
            raise UsageError(f"{str(path)!r} holds trajectories already ({count(n, 'shard')}, {state}): {hint}")
    elif names:
        raise UsageError(f"{str(path)!r} holds something else, such as {min(names)!r}: name a new or empty folder")


def _shard_names(path: Path) -> set[str]:
    return {name for name in os.listdir(path) if _SHARD.fullmatch(name)}


class ShardWriter:
    """Write the shards of a folder, from the first missing one on.

    A context manager; the folder is locked until it is left.

    Args:
        path: The folder; it is made where there is none.
        resume: Whether to continue with the shards that are there.

    Attributes:
        manifest: What the folder is to hold, and holds; None in a new one, until `begin`.
        n_trajectories: How many trajectories the shards have.
        n_timesteps: How many timesteps the shards have.

    Raises:
        UsageError: See `check_folder`.
        DamagedShardError: A shard is damaged, missing or of another run; names the file.
        StorageError: The system has no locks on folders; another process writes there; the manifest is damaged.
        OSError: The folder cannot be made or read.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        check_locks()
        check_folder(path, resume=resume)
        if not path.exists():
            path.mkdir(exist_ok=True)
            sync_directory(path.parent)
        self._path = path
        self._lock = FolderLock(path)
        try:
            check_folder(path, resume=resume)  # again, because only now no other process writes there
            self._shards: list[Shard] = []
            self.manifest = self._recover()
        except BaseException:
            self.close()
            raise
        self.n_trajectories = sum(shard.trajectories for shard in self._shards)
        self.n_timesteps = sum(shard.timesteps for shard in self._shards)

    def _recover(self) -> Manifest | None:
        """Find the shards that are there; return the manifest, if there is one."""
        for name in os.listdir(self._path):
            if is_leftover(name):
                (self._path / name).unlink()
        if not (self._path / MANIFEST).exists():
            return None
        manifest = read_manifest(self._path)
        files = ShardFiles(self._path, manifest)
        self._shards, damaged = files.survey(lambda number, shard: files.read(number, shard, "rewards"))
        if damaged:
            raise next(iter(damaged.values()))
        # The next one may have been written, and not been listed any more: then it is written again.
        known = {shard_name(number) for number in range(len(self._shards) + 1)}
        if others := _shard_names(self._path) - known:
            first = min(others, key=lambda name: (len(name), name))
            raise DamagedShardError(f"{self._path / first} does not follow on {len(self._shards)} shards")
        return manifest

    def begin(self, manifest: Manifest) -> None:
        """Begin a folder, or continue one that is to hold the same.

        Raises:
            UsageError: The folder is to hold something else; names the differences.
            OSError: The manifest cannot be written.
        """
        if self.manifest is None:
            write_manifest(self._path, manifest)
            self.manifest = manifest
            return
        there, here = self.manifest.decides(), manifest.decides()
        differences = [
            f"{name} is {there.get(name)!r} there, and {here.get(name)!r} here"
            for name in dict.fromkeys([*there, *here])
            if there.get(name) != here.get(name)
        ]
        if differences:
            raise UsageError(f"{str(self._path)!r} was begun with other arguments: {'; '.join(differences)}")

    @property
    def n_shards(self) -> int:
        """How many shards there are."""
        return len(self._shards)

    @property
    def following(self) -> int:
        """The index that the next shard begins with."""
        return self._shards[-1].stop if self._shards else 0

    def write(self, batch: TrajectoryBatch[Any, Any]) -> None:
        """Write the next shard.

        Raises:
            StorageError: It cannot be written and read back exactly.
            OSError: It cannot be written; what was there is still there.
        """
        self._note_fingerprints(batch.fingerprints)
        manifest = self._begun()
        storage.save(batch, self._path / shard_name(len(self._shards)), provenance=manifest.provenance)
        first = self.following
        n_dropped = int(batch.indices[-1]) + 1 - first - batch.n_trajectories
        self._shards.append(Shard(first, batch.n_trajectories, batch.n_timesteps, n_dropped))
        self.n_trajectories += batch.n_trajectories
        self.n_timesteps += batch.n_timesteps
        self._list()

    def finish(self) -> None:
        """Mark the folder as complete.

        Raises:
            OSError: The manifest cannot be written.
        """
        if not self._begun().complete:
            self._list(complete=True)

    def take_back(self) -> None:
        """Remove the manifest of a folder without shards, which is as it was before `begin`."""
        if not self._shards:
            (self._path / MANIFEST).unlink(missing_ok=True)
            self.manifest = None

    def _note_fingerprints(self, found: Iterable[str]) -> None:
        """List the fingerprints that agree with none of those that are listed, before there are shards of them."""
        listed = set(self._begun().fingerprints)
        for bits in sorted(found, key=len, reverse=True):  # first those of more libraries
            if not any(agree(bits, other) for other in listed):
                listed.add(bits)
        if listed != self._begun().fingerprints:
            self.manifest = replace(self._begun(), fingerprints=frozenset(listed))
            self._list()

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
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
