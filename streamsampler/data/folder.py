"""Folders of shards, for data larger than memory, read shard by shard.

A shard is written completely or not at all; the manifest lists the shards. `streamsampler.load` reads files and
folders, `TrajectoryFolder.torch_dataset` feeds a `DataLoader`. Guide: `streamsampler/docs/storage-and-formats.md`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

import numpy as np

from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.extras import needed
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.data import npz as storage
from streamsampler.data.batch import Index, TrajectoryBatch, brackets
from streamsampler.data.batch_fields import ActionsT, AnyActionsT, AnyObservationsT, ObservationsT
from streamsampler.data.json_facts import damage_raised
from streamsampler.data.shards import ShardFiles, read_manifest
from streamsampler.data.shards import load as load_file
from streamsampler.data.space_codec import decode_space
from streamsampler.data.spaces import same_space

if TYPE_CHECKING:
    from streamsampler.data.sequences import SequenceDataset


@suggesting()
def load(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> TrajectoryBatch[AnyObservationsT, AnyActionsT]:
    """Load a file as a `TrajectoryBatch`, or open folders of shards lazily as a `TrajectoryFolder`.

    For type checkers the result is a batch; `TrajectoryFolder(path)` opens a folder with its own type.

    Args:
        path: The file or the folder; `.npz` is appended if the name alone does not exist.
        more: Further folders with the same spaces; their trajectories follow.

    Raises:
        StorageError: The file holds no trajectories, is damaged or truncated, or has a newer format.
        FileNotFoundError: The file or folder does not exist.
        DataError: The folders have different spaces.
        UsageError: A folder is given twice, or a list is given.
    """
    if isinstance(path, list | tuple):
        raise UsageError("load accepts several folders one by one, not as a list: load(*paths)")
    if not more and not Path(path).is_dir():
        return load_file(path)
    # Most code needs only the members that folders and batches share.
    return cast("TrajectoryBatch[Any, Any]", TrajectoryFolder(path, *more))


@suggesting()
class TrajectoryFolder(Generic[ObservationsT, ActionsT]):
    """The trajectories of a folder written by `sample_to_folder` or the command, read shard by shard.

    Like a `TrajectoryBatch` it has a length, an iterator over trajectories, and `folder[i]`, slices, arrays of integers
    and boolean masks; these return batches in new memory. Only the last used shard stays in memory, so iterate in
    order, or shard by shard.

    Several folders, such as runs with other seeds on other machines, are read in sequence, as a single folder.

    Args:
        path: The folder. An incomplete folder has the shards present when it was opened.
        more: Further folders, with the same spaces.

    Attributes:
        paths: The folders.
        files: The file of each shard.
        shards: A sequence of `TrajectoryBatch`es, each loaded when it is indexed.
        complete: Whether all folders are complete.
        seed: The sampler's seed; None if folders differ.
        provenance: Everything else that determines the data, as far as all folders agree.
        package_version: The version of this package at the folder's creation; None if folders differ.
        shard_sizes: The trajectories and timesteps of each shard.

    Raises:
        StorageError: The manifest is missing, or the manifest or a shard is damaged; the message names the file.
        FileNotFoundError: The folder does not exist.
        DataError: The folders have different spaces.
        UsageError: A folder is given twice.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(brackets)

    def __init__(self, path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> None:
        self.paths = tuple(map(Path, (path, *more)))
        manifests = [read_manifest(folder) for folder in self.paths]
        folders = [ShardFiles(folder, manifest) for folder, manifest in zip(self.paths, manifests, strict=True)]
        places = [
            (folder, number)
            for folder, manifest in zip(folders, manifests, strict=True)
            for number in range(len(manifest.shards))
        ]
        _check_different(self.paths)
        if more:
            _check_same_spaces([folder for folder, number in places if number == 0])
        self.files = [files.path(number) for files, number in places]
        self.shards: Sequence[TrajectoryBatch[ObservationsT, ActionsT]] = _Shards(places)
        self.complete = all(manifest.complete for manifest in manifests)
        self.seed: int | None = _common([manifest.seed for manifest in manifests])
        self.package_version: str | None = _common([manifest.package_version for manifest in manifests])
        first, *others = (manifest.provenance for manifest in manifests)
        self.provenance: Mapping[str, Any] = {
            name: value
            for name, value in first.items()
            if all(name in other and other[name] == value for other in others)
        }
        self.shard_sizes = [(it.trajectories, it.timesteps) for manifest in manifests for it in manifest.shards]
        self._bounds = np.cumsum([0, *(trajectories for trajectories, _ in self.shard_sizes)])
        self._n_timesteps = sum(timesteps for _, timesteps in self.shard_sizes)

    @property
    def path(self) -> Path:
        """The folder.

        Raises:
            UsageError: The object has several.
        """
        if len(self.paths) > 1:
            raise UsageError(f"path needs a single folder, but this has {len(self.paths)}: use paths")
        return self.paths[0]

    @property
    def n_trajectories(self) -> int:
        """The number of trajectories."""
        return int(self._bounds[-1])

    @property
    def n_timesteps(self) -> int:
        """The number of timesteps of all trajectories."""
        return self._n_timesteps

    def __len__(self) -> int:
        return self.n_trajectories

    def __repr__(self) -> str:
        state = "" if self.complete else ", incomplete"
        paths = ", ".join(repr(str(path)) for path in self.paths)
        return (
            f"TrajectoryFolder({paths}, {count(self.n_trajectories, 'trajectory')}, "
            f"{count(self.n_timesteps, 'timestep')}, {count(len(self.shards), 'shard')}{state})"
        )

    def __iter__(self) -> Iterator[TrajectoryBatch[ObservationsT, ActionsT]]:
        for shard in self.shards:
            yield from shard

    def __getitem__(self, index: Index) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return the trajectories selected by an index, a slice, an array of integers or a boolean mask, as a batch.

        Raises:
            IndexError: A trajectory does not exist.
            DataError: The folder has no shards, so its spaces are unknown.
        """
        selected = np.arange(self.n_trajectories)[cast("Any", index)]
        if selected.ndim > 1:
            raise IndexError(f"a folder has one axis, its trajectories, but the index has the shape {selected.shape}")
        self._check_some()
        selected = np.atleast_1d(selected)
        if not len(selected):
            return self.shards[0][:0]
        numbers = np.searchsorted(self._bounds, selected, side="right") - 1
        parts = np.split(selected, np.flatnonzero(np.diff(numbers)) + 1)  # each from one shard
        return TrajectoryBatch.concatenate(self._of_one_shard(part) for part in parts)

    def _of_one_shard(self, selected: Any) -> TrajectoryBatch[ObservationsT, ActionsT]:
        number = int(np.searchsorted(self._bounds, selected[0], side="right")) - 1
        return self.shards[number][selected - self._bounds[number]]

    def to_batch(self) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return all trajectories as a batch, which must fit into memory, with another shard during the copy.

        Raises:
            DataError: The folder has no shards.
        """
        self._check_some()
        return TrajectoryBatch.concatenate(shard[:] for shard in self.shards)

    def torch_dataset(
        self,
        sequence_length: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        fields: Sequence[str] = ("observations", "actions", "rewards", "terminated", "truncated"),
        without: Sequence[str] = (),
    ) -> SequenceDataset:
        """Return a PyTorch `IterableDataset` of sequences of timesteps, for a `DataLoader`.

        Each trajectory is cut into sequences of `sequence_length` timesteps; the last is padded with zeros, where its
        mask is false. Loader workers (`num_workers`) share the shards: together they yield each sequence exactly once,
        and each holds one shard in memory. With fewer shards than loader workers, all of them read all shards.

        Needs PyTorch: `pip install torch`.

        Example:
            ```python
            dataset = TrajectoryFolder("big").torch_dataset(sequence_length=32, shuffle=True, seed=1)
            for epoch in range(3):
                dataset.set_epoch(epoch)
                for sequences in torch.utils.data.DataLoader(dataset, batch_size=64, num_workers=4):
                    sequences["observations"], sequences["mask"]  # (64, 32, ...), (64, 32)
            ```

        Args:
            sequence_length: Timesteps of each sequence, S; None for whole trajectories: a `DataLoader` then needs
                `batch_size=None` or 1, or your own `collate_fn`.
            shuffle: Whether to shuffle shards, and sequences within their shard. The order is determined by the seed,
                the epoch (`dataset.set_epoch`) and the number of loader workers.
            seed: Seed of the shuffle.
            fields: The data of each sequence: some of observations, next_observations, actions, rewards, terminated,
                truncated, step_types, env_infos and agent_infos, or of their leaves by path, such as
                `"observations.image"` (see `streamsampler.data.leaf_selection`). Infos with different keys in each
                sequence need your own `collate_fn`.
            without: Leaves to omit, such as text: `["observations.mission"]`.

        Returns:
            A dataset of dicts: the fields, tensors (S, ...) nested as their spaces; `terminated` and `truncated` are
            true only at a trajectory's last timestep; `mask`, (S,) bool; `trajectory`, its position as in
            `folder[trajectory]`; `index`, its trajectory index, which trajectories of different folders may share; and
            `timestep`, the first timestep. `n_sequences` is the number of sequences. The dataset has no length: the
            number of a loader worker's batches depends on the number of workers.

        Raises:
            ImportError: PyTorch is not installed.
            UsageError: An argument is invalid. Iteration raises `DataError` for a field that is not numeric.
        """
        needed("torch", "torch_dataset", "torch")
        from streamsampler.data.sequences import SequenceDataset

        header = storage.read(self.files[0])[1] if self.shards else {}
        if "policies" in header:
            raise UsageError(f"{self.files[0]} has episodes of several agents: load() it, and use a policy's batch")
        spaces = None
        if self.shards:
            with damage_raised(self.files[0]):
                known = header["spaces"]
                spaces = decode_space(known["observation_space"]), decode_space(known["action_space"])
        return SequenceDataset(
            self.files, self.shards, self._bounds.tolist(), sequence_length, shuffle=shuffle, seed=seed, fields=fields,
            without=without, spaces=spaces,
        )  # fmt: skip

    def _check_some(self) -> None:
        if not self.shards:
            raise DataError(f"{' and '.join(map(str, self.paths))} holds no trajectories yet")


def _check_different(paths: Sequence[Path]) -> None:
    """Check that no folder is given twice, even by another name."""
    resolved = [path.resolve() for path in paths]
    for path, real in zip(paths, resolved, strict=True):
        if resolved.count(real) > 1:
            raise UsageError(f"{str(path)!r} is given twice: its trajectories would count twice")


def _check_same_spaces(folders: Sequence[ShardFiles]) -> None:
    stored: list[tuple[Path, Any]] = [(folder.path(0), folder.header(0).get("spaces")) for folder in folders]
    for path, own in stored[1:]:
        if own == stored[0][1]:  # nearly always, and without decoding
            continue
        for name in ("observation_space", "action_space"):
            found = []
            for each, spaces in (stored[0], (path, own)):
                with damage_raised(each):
                    found.append(decode_space(spaces[name]))
            if not same_space(found[0], found[1]):
                raise DataError(
                    f"{name} differs: {found[0]} in {stored[0][0].parent}, {found[1]} in {path.parent}; open folders "
                    "with different spaces separately"
                )


T = TypeVar("T")


def _common(values: Sequence[T]) -> T | None:
    return values[0] if all(value == values[0] for value in values) else None


class _Shards(Sequence[TrajectoryBatch[Any, Any]]):
    """The shards of folders, loaded one at a time; `places` has each shard's folder and number."""

    def __init__(self, places: Sequence[tuple[ShardFiles, int]]) -> None:
        self._places = places
        self._last: tuple[int, TrajectoryBatch[Any, Any]] | None = None

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> TrajectoryBatch[Any, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TrajectoryBatch[Any, Any]]: ...

    def __getitem__(self, index: int | slice) -> TrajectoryBatch[Any, Any] | Sequence[TrajectoryBatch[Any, Any]]:
        if isinstance(index, slice):
            raise TypeError("shards are loaded one at a time: use an integer index, not a slice")
        number = range(len(self))[index]
        last = self._last
        if last is None or last[0] != number:
            self._last = last = None  # frees its memory before the next shard is loaded
            files, own_number = self._places[number]
            self._last = last = number, files.load(own_number)
        return last[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}
