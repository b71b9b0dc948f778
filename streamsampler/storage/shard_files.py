"""Read the shards of a folder, and check that each is what the manifest says of it."""

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

__all__ = ["ShardFiles", "check_shard"]

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
        """Look at the shards that the manifest lists, and at those that were written since.

        Args:
            look: Called with the number of each shard and what is known of it; may raise `DamagedShardError`.

        Returns:
            The shards, and what is wrong with some of them, by number. A damaged shard that the manifest does not list
            is not among the shards, nor are those after it: what they hold is unknown.
        """
        shards, damaged = list(self._manifest.shards), {}
        number = 0
        while number < len(shards) or (not self._manifest.complete and self.path(number).exists()):
            try:
                if number < len(shards):
                    look(number, shards[number])
                else:
                    shard = self._unlisted(shards)
                    look(number, shard)
                    shards.append(shard)
            except DamagedShardError as error:
                damaged[number] = error
                if number == len(shards):
                    break
            number += 1
        return shards, damaged

    def path(self, number: int) -> Path:
        """Return the file of a shard."""
        return self._folder / shard_name(number)

    def read(self, number: int, shard: Shard, *names: str) -> dict[str, Array]:
        """Return some arrays of a shard, its indices and its lengths."""
        arrays = self._arrays(number, "indices", "lengths", *names)
        check_shard(self.path(number), shard, arrays["indices"], arrays["lengths"])
        return arrays

    def load(self, number: int, shard: Shard) -> TrajectoryBatch:
        """Return a shard."""
        path = self.path(number)
        batch, header = _whole(path, lambda: storage.load_with_header(path))
        self._check_origin(path, header)
        check_shard(path, shard, batch.indices, batch.lengths)
        return batch

    def _unlisted(self, before: list[Shard]) -> Shard:
        """Return what the shard that follows `before` says of itself."""
        following = before[-1].stop if before else self._manifest.first_trajectory
        arrays = self._arrays(len(before), "indices", "lengths")
        indices, lengths = arrays["indices"], arrays["lengths"]
        may_drop = self._manifest.drops and len(indices)
        shard = Shard(
            following,
            len(lengths),
            int(lengths.sum()),
            int(indices[-1]) + 1 - following - len(indices) if may_drop else 0,
        )
        check_shard(self.path(len(before)), shard, indices, lengths)
        return shard

    def _arrays(self, number: int, *names: str) -> dict[str, Array]:
        path = self.path(number)
        arrays, header = _whole(path, lambda: storage.read(path, *names))
        self._check_origin(path, header)
        return arrays

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
