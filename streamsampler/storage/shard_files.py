"""The files of a folder of shards: whether each is what the manifest says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.trees import Array
from streamsampler.errors import DamagedShardError, StorageError
from streamsampler.storage import npz as storage
from streamsampler.storage.json_facts import LARGEST
from streamsampler.storage.manifest import MANIFEST, Manifest, Shard, shard_name

__all__ = ["all_shards", "check_shard", "load_shard", "read_shard", "unlisted_shard", "verify_shard"]

T = TypeVar("T")


def all_shards(folder: Path, manifest: Manifest) -> list[Shard]:
    """What the manifest lists, and the shards that follow them, which were written since.

    Raises:
        DamagedShardError: One of the latter is damaged or does not fit; names it.
    """
    shards = list(manifest.shards)
    while not manifest.complete and (folder / shard_name(len(shards))).exists():
        shards.append(unlisted_shard(folder, manifest, shards))
    return shards


def unlisted_shard(folder: Path, manifest: Manifest, before: list[Shard]) -> Shard:
    """Return what the shard that follows `before`, and that the manifest does not list, says of itself.

    Raises:
        DamagedShardError: It is damaged or does not fit; names it.
    """
    path = folder / shard_name(len(before))
    following = before[-1].stop if before else 0
    arrays = _arrays(path, manifest, "indices", "lengths")
    indices, lengths = arrays["indices"], arrays["lengths"]
    n_dropped = int(indices[-1]) + 1 - following - len(indices) if manifest.drops and len(indices) else 0
    shard = Shard(following, len(lengths), int(lengths.sum()), n_dropped)
    check_shard(path, shard, indices, lengths)
    return shard


def read_shard(folder: Path, number: int, shard: Shard, manifest: Manifest, *names: str) -> dict[str, Array]:
    """Return some arrays of a shard, after a look at its indices, its lengths, and the run that it is from.

    Raises:
        DamagedShardError: It is missing, damaged, or another one; names it.
    """
    path = folder / shard_name(number)
    arrays = _arrays(path, manifest, "indices", "lengths", *names)
    check_shard(path, shard, arrays["indices"], arrays["lengths"])
    return arrays


def load_shard(folder: Path, number: int, shard: Shard, manifest: Manifest) -> TrajectoryBatch:
    """Return a shard; see `read_shard`."""
    path = folder / shard_name(number)
    batch, header = _whole(path, lambda: storage.load_with_header(path))
    _check_origin(path, header, manifest)
    check_shard(path, shard, batch.indices, batch.lengths)
    return batch


def verify_shard(folder: Path, number: int, shard: Shard, manifest: Manifest) -> None:
    """Read all of a shard, and keep nothing; see `read_shard`."""
    path = folder / shard_name(number)
    _whole(path, lambda: storage.verify(path))
    read_shard(folder, number, shard, manifest)


def _arrays(path: Path, manifest: Manifest, *names: str) -> dict[str, Array]:
    arrays, header = _whole(path, lambda: storage.read_some(path, names))
    _check_origin(path, header, manifest)
    return arrays


def _whole(path: Path, read: Callable[[], T]) -> T:
    """Return what `read` returns; a file that is damaged or not there is a damaged shard."""
    try:
        return read()
    except FileNotFoundError:
        raise DamagedShardError(f"{path} is missing, and the folder's {MANIFEST} lists it") from None
    except StorageError as error:
        raise DamagedShardError(str(error)) from error.__cause__


def _check_origin(path: Path, header: dict[str, Any], manifest: Manifest) -> None:
    """Compare what a shard and the manifest say of the run."""
    there = {name: header.get(name) for name in ("seed", "package_version", "provenance")}
    for name, value in there.items():
        if value != getattr(manifest, name):
            raise DamagedShardError(
                f"{path} is of another run: its {name} is {value!r:.200}, and the folder's {MANIFEST} says "
                f"{getattr(manifest, name)!r:.200}"
            )


def check_shard(path: Path, shard: Shard, indices: Array, lengths: Array) -> None:
    """Compare a file's contents with what is known of it.

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
