"""Write a folder of shards that another process can resume, however the first process ended.

A shard appears under its name only when it is completely on the disk. The lock against a second writer is on the
folder's file descriptor: it ends with its process, and leaves no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import streamsampler.data.multi_agent  # noqa: F401 - registers the subclass for `batch_of_fields`
from streamsampler.core.atomic import PathLock, check_locks, is_leftover, sync_directory
from streamsampler.core.errors import DamagedShardError, UsageError
from streamsampler.core.fingerprints import agree
from streamsampler.core.words import count
from streamsampler.data import npz as storage
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.portions import Target
from streamsampler.data.shards import MANIFEST, Manifest, Shard, ShardFiles, read_manifest, shard_name, write_manifest

_SHARD = re.compile(r"shard-\d{6,}\.npz")


def check_folder(path: Path, *, resume: bool) -> None:
    """Check a folder, or a new name, before shards are written into it.

    Raises:
        UsageError: It is no folder, holds other files, or holds trajectories and `resume` is false.
        StorageError: Its manifest is damaged.
    """
    if not path.exists():
        if not path.parent.is_dir():
            raise UsageError(f"no such directory: {str(path.parent)!r}")
        return
    if not path.is_dir():
        raise UsageError(f"{str(path)!r} is a file, but shards need a folder")
    names = [name for name in os.listdir(path) if not is_leftover(name)]
    if MANIFEST in names:
        manifest = read_manifest(path)
        if not resume:
            n, state = len(_shard_names(path)), "complete" if manifest.complete else "incomplete"
            hint = "name another folder" if manifest.complete else "resume it or name another folder"
            raise UsageError(f"{str(path)!r} already holds trajectories ({count(n, 'shard')}, {state}): {hint}")
    elif names:
        raise UsageError(f"{str(path)!r} holds other files, such as {min(names)!r}: name a new or empty folder")


def _shard_names(path: Path) -> set[str]:
    return {name for name in os.listdir(path) if _SHARD.fullmatch(name)}


def _decisive(fact: Any) -> Any:
    """Return a fact without the number in flight, which does not affect trajectories."""
    return {name: it for name, it in fact.items() if name != "in_flight"} if isinstance(fact, dict) else fact


class ShardWriter:
    """Writes the shards of a folder, from the first missing shard on; the folder is locked until the context exits.

    Args:
        path: The folder; created if it does not exist.
        resume: Whether to continue after the existing shards.
        compress: Whether to compress the arrays of new shards.

    Attributes:
        manifest: The planned and present contents; None in a new folder, until `begin`.

    Raises:
        UsageError: See `check_folder`.
        DamagedShardError: A shard is damaged, missing or from another run; the message names the file.
        StorageError: The system cannot lock folders, another process is writing to it, or the manifest is damaged.
    """

    def __init__(self, path: Path, *, resume: bool = False, compress: bool = False) -> None:
        check_locks()
        check_folder(path, resume=resume)
        if not path.exists():
            path.mkdir(exist_ok=True)
            sync_directory(path.parent)
        self._path, self._compress = path, compress
        self._lock = PathLock(path)
        try:
            check_folder(path, resume=resume)  # again: another process may have written before the lock
            self.manifest = self._recover()
        except BaseException:
            self.close()
            raise

    def _recover(self) -> Manifest | None:
        """Delete temporary files, check the existing shards, and return the manifest, if any."""
        for name in os.listdir(self._path):
            if is_leftover(name):
                (self._path / name).unlink()
        if not (self._path / MANIFEST).exists():
            return None
        manifest = read_manifest(self._path)
        files = ShardFiles(self._path, manifest)
        for number in range(len(manifest.shards)):
            files.read(number, "rewards")
        # A shard may have been written but not listed before the process ended: it is written again.
        known = {shard_name(number) for number in range(len(manifest.shards) + 1)}
        if others := _shard_names(self._path) - known:
            first = min(others, key=lambda name: (len(name), name))
            raise DamagedShardError(
                f"{self._path / first} is not listed in {MANIFEST}, which has {len(manifest.shards)} shards"
            )
        return manifest

    def begin(self, manifest: Manifest) -> None:
        """Create a folder, or continue an equal folder; if more data are requested, extend it.

        Raises:
            UsageError: The folder was created with other arguments; the message names the differences.
        """
        if self.manifest is None:
            write_manifest(self._path, manifest)
            self.manifest = manifest
            return
        there, here = self.manifest.decides(), manifest.decides()
        differences = [
            f"{name} was {there.get(name)!r}, now {here.get(name)!r}"
            for name in dict.fromkeys([*there, *here])
            if _decisive(there.get(name)) != _decisive(here.get(name)) and name != "wanted"
        ]
        if differences:
            new = there.get("agent_version") != here.get("agent_version")
            raise UsageError(
                f"{str(self._path)!r} was created with other arguments: {'; '.join(differences)}"
                + (". The agent version counts a sampler's calls: make a new sampler with the same seed" if new else "")
            )
        if there["wanted"] != here["wanted"]:
            self._extend(manifest.target)

    def _extend(self, target: Target) -> None:
        """Raise the planned size. A last shard cut short by the old size is written again."""
        before = self.begun.target
        if target.unit != before.unit or target.number < before.number:
            nouns = {"timesteps": "timestep", "trajectories": "trajectory"}
            then, now = (count(each.number, nouns[each.unit]) for each in (before, target))
            raise UsageError(
                f"{str(self._path)!r} was created for {then}, not for {now}: resume it with n_{before.unit} of "
                f"{before.number} or more, or name another folder"
            )
        shards = self.shards
        is_short = bool(shards) and shards[-1].timesteps < self.begun.shard_size
        if is_short and target.missing(self.n_trajectories, self.n_timesteps):
            shards = shards[:-1]
        self._list(wanted={target.unit: target.number}, shards=shards, complete=False)

    @property
    def shards(self) -> tuple[Shard, ...]:
        return () if self.manifest is None else self.manifest.shards

    @property
    def n_trajectories(self) -> int:
        return sum(shard.trajectories for shard in self.shards)

    @property
    def n_timesteps(self) -> int:
        return sum(shard.timesteps for shard in self.shards)

    @property
    def missing(self) -> int:
        """How much is missing, in the planned unit."""
        return self.begun.target.missing(self.n_trajectories, self.n_timesteps)

    @property
    def following(self) -> int:
        return self.shards[-1].stop if self.shards else 0

    def write(self, batch: TrajectoryBatch[Any, Any]) -> None:
        """Write the next shard; existing files are unchanged if it fails."""
        self._list_fingerprints(batch.fingerprints)
        path = self._path / shard_name(len(self.shards))
        storage.save(batch, path, provenance=self.begun.provenance, compress=self._compress)
        first = self.following
        n_dropped = int(batch.indices[-1]) + 1 - first - batch.n_trajectories
        self._list(shards=(*self.shards, Shard(first, batch.n_trajectories, batch.n_timesteps, n_dropped)))

    def finish(self) -> None:
        if not self.begun.complete:
            self._list(complete=True)

    def remove_empty_manifest(self) -> None:
        """Remove the manifest of a folder without shards: the inverse of `begin`."""
        if not self.shards:
            (self._path / MANIFEST).unlink(missing_ok=True)
            self.manifest = None

    def _list_fingerprints(self, found: Iterable[str]) -> None:
        """List new fingerprints, unless they agree with a listed fingerprint, before their shards are written."""
        listed = set(self.begun.fingerprints)
        for bits in sorted(found, key=len, reverse=True):  # those covering more libraries first
            if not any(agree(bits, other) for other in listed):
                listed.add(bits)
        if listed != self.begun.fingerprints:
            self._list(fingerprints=frozenset(listed))

    def _list(self, **changes: Any) -> None:
        manifest = replace(self.begun, **changes)
        write_manifest(self._path, manifest)
        self.manifest = manifest

    @property
    def begun(self) -> Manifest:
        if self.manifest is None:
            raise UsageError("call ShardWriter.begin before writing shards")
        return self.manifest

    def close(self) -> None:
        """Unlock the folder; a second call does nothing."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
