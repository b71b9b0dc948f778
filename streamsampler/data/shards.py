"""The manifest and the shards of a folder: reading both, and checking shards against the manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import streamsampler.data.multi_agent  # noqa: F401 - registers the subclass for `batch_of_fields`
from streamsampler.core.atomic import write_whole
from streamsampler.core.errors import DamagedShardError, StorageError
from streamsampler.core.reading import read_regular
from streamsampler.core.version import __version__
from streamsampler.data import npz as storage
from streamsampler.data.batch import TrajectoryBatch, batch_of_fields
from streamsampler.data.batch_fields import AnyActionsT, AnyObservationsT
from streamsampler.data.json_facts import LARGEST, damage_raised, integer, read_facts
from streamsampler.data.portions import Target
from streamsampler.data.spaces import short
from streamsampler.data.trees import Array


def load(path: str | os.PathLike[str]) -> TrajectoryBatch[AnyObservationsT, AnyActionsT]:
    """Load a batch from a file.

    Args:
        path: The file; `.npz` is appended if the name alone does not exist.

    Returns:
        A batch equal to the saved batch, with `stats` None and `worker_numbers` -1.

    Raises:
        StorageError: The file holds no batch, is damaged or truncated, has a newer format, or holds pickles.
        FileNotFoundError: The file does not exist.
    """
    return load_with_header(path)[0]


def load_with_header(path: str | os.PathLike[str]) -> tuple[TrajectoryBatch[Any, Any], dict[str, Any]]:
    return storage.load_with_header(path, batch_of_fields)


# The manifest has each shard's range of trajectory indices and all arguments that affect the data, but no times or
# hosts: the same arguments give the same manifest, byte for byte. It is replaced atomically after each shard.
MANIFEST = "manifest.json"
_FORMAT = "streamsampler.TrajectoryFolder"
_VERSION = 1


def shard_name(number: int) -> str:
    return f"shard-{number:06}.npz"


@dataclass(frozen=True)
class Shard:
    """A file of a folder: its trajectories and timesteps, its first index, and the number of dropped indices."""

    first_trajectory: int
    trajectories: int
    timesteps: int
    dropped: int = 0

    @property
    def stop(self) -> int:
        return self.first_trajectory + self.trajectories + self.dropped


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The planned and the present contents of a folder.

    Attributes:
        seed: The sampler's seed.
        shard_size: The least number of timesteps in a shard.
        wanted: The planned size: a number by "timesteps" or "trajectories".
        provenance: Everything else that determines the data, as JSON.
        package_version: The version of this package at the folder's creation.
        complete: Whether all shards are written.
        shards: The listed shards, in order.
        fingerprints: The fingerprints of the workers, known only with the first shard; see `TrajectoryBatch`.
    """

    seed: int
    shard_size: int
    wanted: Mapping[str, int]
    provenance: Mapping[str, Any]
    package_version: str = __version__
    complete: bool = False
    shards: tuple[Shard, ...] = field(default=(), repr=False)
    fingerprints: frozenset[str] = frozenset()

    @property
    def target(self) -> Target:
        ((unit, number),) = self.wanted.items()
        return Target(unit, number)

    @property
    def n_trajectories(self) -> int:
        return sum(shard.trajectories for shard in self.shards)

    @property
    def drops(self) -> bool:
        return self.provenance.get("on_failure") == "drop"

    @property
    def n_timesteps(self) -> int:
        return sum(shard.timesteps for shard in self.shards)

    def decides(self) -> dict[str, Any]:
        """Return everything that determines the data, by name; folders with equal values become equal.

        Versions of libraries are left out: a folder may be resumed with later versions.
        """
        return {
            "agent_version": 1,  # the default; the provenance may have another
            **{name: value for name, value in self.provenance.items() if name != "versions"},
            "wanted": dict(self.wanted),
            "shard_size": self.shard_size,
            "seed": self.seed,
            "package_version": self.package_version,
        }


def write_manifest(folder: Path, manifest: Manifest) -> None:
    text = _as_json(manifest)
    write_whole(folder / MANIFEST, lambda file: file.write(text.encode("ascii")))


def _as_json(manifest: Manifest) -> str:
    head = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "package_version": manifest.package_version,
        "provenance": dict(manifest.provenance),
        "seed": manifest.seed,
        "shard_size": manifest.shard_size,
        "wanted": dict(manifest.wanted),
        "fingerprints": sorted(manifest.fingerprints),
        "complete": manifest.complete,
        "trajectories": manifest.n_trajectories,
        "timesteps": manifest.n_timesteps,
    }
    lines = [json.dumps({"file": shard_name(i), **_facts(shard)}) for i, shard in enumerate(manifest.shards)]
    rows = "\n    " + ",\n    ".join(lines) + "\n  " if lines else ""
    return f'{json.dumps(head, indent=2)[:-2]},\n  "shards": [{rows}]\n}}\n'


def _facts(shard: Shard) -> dict[str, int]:
    return {name: number for name, number in vars(shard).items() if number or name != "dropped"}


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest; raise a `StorageError` if it is missing, damaged, or has a newer format."""
    path = folder / MANIFEST
    try:
        data = read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        if not folder.exists():
            raise
        raise StorageError(f"{folder} is no folder of trajectories: it has no {MANIFEST}") from None
    facts = read_facts(path, data, "manifest of trajectories", _FORMAT, _VERSION)
    with damage_raised(path):
        return _checked(facts)


def _checked(facts: dict[str, Any]) -> Manifest:
    kinds = {"seed": int, "package_version": str, "provenance": dict, "complete": bool}
    for name, kind in kinds.items():
        if type(facts[name]) is not kind:
            raise TypeError(f"{name} is {short(facts[name])}, and should be a {kind.__name__}")
    fingerprints = facts.get("fingerprints", [])
    if not isinstance(fingerprints, list) or not all(isinstance(found, str) for found in fingerprints):
        raise TypeError(f"fingerprints are {short(fingerprints)}")
    manifest = Manifest(
        **{name: facts[name] for name in kinds},
        shard_size=integer(facts, "shard_size", 1),
        wanted=_wanted(facts),
        shards=_shards(facts["shards"]),
        fingerprints=frozenset(fingerprints),
    )
    target = manifest.target
    for name, number in {"trajectories": manifest.n_trajectories, "timesteps": manifest.n_timesteps}.items():
        if integer(facts, name) != number:
            raise ValueError(f"its total is {facts[name]} {name}, but its shards have {number}")
    if manifest.complete and (missing := target.missing(manifest.n_trajectories, manifest.n_timesteps)):
        raise ValueError(f"it is marked as complete, but {missing} {target.unit} are missing")
    return manifest


def _wanted(facts: dict[str, Any]) -> dict[str, int]:
    (unit,) = facts["wanted"].keys()
    if unit not in ("timesteps", "trajectories"):
        raise ValueError(f"wanted should count timesteps or trajectories, not {short(unit)}")
    return {unit: integer(facts["wanted"], unit, 1)}


def _shards(entries: Any) -> tuple[Shard, ...]:
    shards: list[Shard] = []
    following = 0
    for number, entry in enumerate(entries):
        if entry["file"] != shard_name(number):
            raise ValueError(f"shard {number} should be {shard_name(number)}, not {entry['file']!r:.80}")
        if surprises := entry.keys() - {"file", *Shard.__dataclass_fields__}:
            raise ValueError(f"shard {number} has the unknown key {short(min(surprises))}")
        shard = Shard(
            integer(entry, "first_trajectory"),
            integer(entry, "trajectories", 1),
            integer(entry, "timesteps", 1),
            integer({"dropped": 0, **entry}, "dropped"),
        )
        if shard.first_trajectory != following:
            raise ValueError(
                f"shard {number} starts at trajectory {shard.first_trajectory}, but should start at {following}"
            )
        following = shard.stop
        shards.append(shard)
    if following >= LARGEST:
        raise ValueError(f"{following} trajectories are more than the format allows")
    return tuple(shards)


T = TypeVar("T")


class ShardFiles:
    """The shards of a folder.

    Each reading method raises `DamagedShardError` if a shard is missing, damaged, or does not match the manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest

    def survey(self, look: Callable[[int], object]) -> dict[int, DamagedShardError]:
        """Call `look` with each shard's number, and return its `DamagedShardError`s by number."""
        damaged: dict[int, DamagedShardError] = {}
        for number in range(len(self._manifest.shards)):
            try:
                look(number)
            except DamagedShardError as error:
                damaged[number] = error
        return damaged

    def path(self, number: int) -> Path:
        return self._folder / shard_name(number)

    def header(self, number: int) -> dict[str, Any]:
        path = self.path(number)
        header = _whole(path, lambda: storage.read(path))[1]
        self._check_origin(path, header)
        return header

    def read(self, number: int, *names: str) -> dict[str, Array]:
        """Return some arrays of a shard, with its indices and lengths."""
        path = self.path(number)
        arrays, header = _whole(path, lambda: storage.read(path, "indices", "lengths", *names))
        self._check_origin(path, header)
        check_shard(path, self._manifest.shards[number], arrays["indices"], arrays["lengths"])
        return arrays

    def load(self, number: int) -> TrajectoryBatch:
        path = self.path(number)
        batch, header = _whole(path, lambda: load_with_header(path))
        self._check_origin(path, header)
        check_shard(path, self._manifest.shards[number], batch.indices, batch.lengths)
        return batch

    def _check_origin(self, path: Path, header: dict[str, Any]) -> None:
        for name in ("seed", "package_version", "provenance"):
            here, listed = header.get(name), getattr(self._manifest, name)
            if here != listed:
                raise DamagedShardError(
                    f"{path} belongs to another run: its {name} is {here!r:.200}, but {listed!r:.200} in the folder's "
                    f"{MANIFEST}"
                )


def _whole(path: Path, read: Callable[[], T]) -> T:
    """Turn the errors of a damaged or missing file into `DamagedShardError`."""
    try:
        return read()
    except FileNotFoundError:
        raise DamagedShardError(f"{path} is missing, but the folder's {MANIFEST} lists it") from None
    except StorageError as error:
        raise DamagedShardError(str(error)) from error.__cause__


def check_shard(path: Path, shard: Shard, indices: Array, lengths: Array) -> None:
    """Raise `DamagedShardError` unless a file's contents match the manifest's entry."""
    for name, array in (("indices", indices), ("lengths", lengths)):
        if array.dtype != np.int64 or array.ndim != 1 or not ((array >= 0) & (array < LARGEST)).all():
            raise DamagedShardError(f"{path} is damaged: its {name} are {array.dtype} of shape {array.shape}")
    first, last = shard.first_trajectory, shard.stop - 1
    # Rising from first to last, in the expected number: without gaps, unless some were dropped.
    rising = len(indices) > 0 and indices[0] >= first and indices[-1] == last and bool((np.diff(indices) > 0).all())
    fit = rising and len(indices) == len(lengths) == shard.trajectories and lengths.min() > 0
    if not fit or lengths.sum() != shard.timesteps:
        but = f" (without {shard.dropped} dropped)" if shard.dropped else ""
        raise DamagedShardError(
            f"{path} should hold trajectories {first} to {last}{but} with {shard.timesteps} timesteps, "
            f"but holds {len(indices)} from {indices[0] if len(indices) else None} on with {lengths.sum()}"
        )
