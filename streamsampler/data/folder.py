"""Folders of shards, for more than fits into memory, read a shard at a time.

Shards are written whole or not at all; the manifest names them. `streamsampler.load` reads files and folders,
`TrajectoryFolder.torch_dataset` feeds a `DataLoader`. The guide is `streamsampler/docs/storage-and-formats.md`.
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
from streamsampler.data.codec import damage_raised, decode_space
from streamsampler.data.shards import ShardFiles, read_manifest
from streamsampler.data.shards import load as load_file
from streamsampler.data.spaces import same_space

if TYPE_CHECKING:
    from streamsampler.data.sequences import SequenceDataset


@suggesting()
def load(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> TrajectoryBatch[AnyObservationsT, AnyActionsT]:
    """Read a file as a `TrajectoryBatch`, or folders of shards lazily, as a `TrajectoryFolder`.

    Type checkers take the result for a batch; `TrajectoryFolder(path)` does the same for a folder with its own type.

    Args:
        path: The file or the folder; `.npz` is appended where there is none of that name.
        more: Further folders of the same spaces, whose trajectories follow.

    Raises:
        StorageError: The file holds no trajectories, is damaged or cut short, or is of a newer format.
        FileNotFoundError: There is no such file or folder.
        DataError: The folders have different spaces.
        UsageError: A folder is given twice, or a list.
    """
    if isinstance(path, list | tuple):
        raise UsageError("load takes several folders one by one: load(*paths)")
    if not more and not Path(path).is_dir():
        return load_file(path)
    # Most code needs only what a folder and a batch have in common.
    return cast("TrajectoryBatch[Any, Any]", TrajectoryFolder(path, *more))


@suggesting()
class TrajectoryFolder(Generic[ObservationsT, ActionsT]):
    """The trajectories of a folder that `sample_to_folder` or the command wrote, read shard by shard.

    Like a `TrajectoryBatch` it has a length, `folder[i]`, slices, arrays of integers and boolean masks, which give
    batches in memory of their own, and an iterator over trajectories. Only the shard that was used
    last stays in memory, so iterate in order, or shard by shard.

    Several folders, such as those of runs with other seeds on other machines, are read one after the other, as one.

    Args:
        path: The folder. Of an incomplete one, the shards are those that were there when it was opened.
        more: Further folders, of the same spaces.

    Attributes:
        paths: The folders.
        files: The file of each shard.
        shards: A sequence that loads each shard as a `TrajectoryBatch` when it is indexed.
        complete: Whether all folders are complete.
        seed: The sampler's seed; None where it differs between folders.
        provenance: What else decided about the data, as far as all folders agree.
        package_version: The version of this package that began the folder; None where it differs.
        shard_sizes: The trajectories and timesteps of each shard.

    Raises:
        StorageError: The folder has no manifest, or it or a shard is damaged or missing; names the file.
        FileNotFoundError: There is no such folder.
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
            UsageError: There are several.
        """
        if len(self.paths) > 1:
            raise UsageError(f"this takes one folder, and there are {len(self.paths)}: take one of them")
        return self.paths[0]

    @property
    def n_trajectories(self) -> int:
        """How many trajectories there are."""
        return int(self._bounds[-1])

    @property
    def n_timesteps(self) -> int:
        """How many timesteps all of them have."""
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
        """The trajectories that an index, a slice, an array of integers or a boolean mask selects, as a batch.

        Raises:
            IndexError: There is no such trajectory.
            DataError: There are no shards, and so nothing is known of the spaces.
        """
        selected = np.arange(self.n_trajectories)[cast("Any", index)]
        if selected.ndim > 1:
            raise IndexError(f"a folder has one axis, its trajectories; the index has the shape {selected.shape}")
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
        """All trajectories as one batch, which must fit into memory; its size, and one shard more on the way.

        Raises:
            DataError: There are no shards.
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
        """Return an `IterableDataset` of PyTorch with sequences of timesteps, for a `DataLoader`.

        Each trajectory is cut into sequences of `sequence_length` timesteps; the last one is filled up with zeros,
        where its mask is false. Loader workers (`num_workers`) share the shards: together they yield each sequence
        exactly once, and each has one shard in memory. With fewer shards than loader workers all of them read all
        shards.

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
            sequence_length: Timesteps of each sequence, S; None for whole trajectories, each as long as it is: a
                `DataLoader` then needs `batch_size=None` or 1, or a `collate_fn` of your own.
            shuffle: Whether shards come in a random order, and sequences in a random order within their shard, so that
                neighbours in the order are of the same shard. The order is the same for the same seed, epoch
                (`dataset.set_epoch`) and number of loader workers.
            seed: Of the shuffle.
            fields: What each sequence holds: some of observations, next_observations, actions, rewards, terminated,
                truncated, step_types, env_infos and agent_infos, or of their leaves by path, such as
                `"observations.image"` (see `streamsampler.data.leaves`). The infos of sequences may have different
                keys; they need a `collate_fn` of your own then.
            without: Which leaves of these are left out, such as text: `["observations.mission"]`.

        Returns:
            A dataset of dicts: the fields, tensors (S, ...) nested as their spaces; `terminated` and `truncated` are
            true only at a trajectory's last timestep; `mask`, (S,) bool; `trajectory`, its position in this folder, or
            in these folders together, as in `folder[trajectory]`; `index`, its trajectory index, which trajectories of
            different folders may share; and `timestep`, that of the first. Its `n_sequences` is how many there are. It
            has no length: each loader worker fills batches of its own, so that their number depends on the workers.

        Raises:
            ImportError: PyTorch is not there.
            UsageError: An argument cannot work. Iteration raises `DataError` where a field is no numbers.
        """
        needed("torch", "torch_dataset", "torch")
        from streamsampler.data.sequences import SequenceDataset

        header = storage.read(self.files[0])[1] if self.shards else {}
        if "policies" in header:
            raise UsageError(f"{self.files[0]} has episodes of several agents: load() it, and use what one policy did")
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
    """Check that no folder is given twice, also under another name: its trajectories would count twice."""
    resolved = [path.resolve() for path in paths]
    for path, real in zip(paths, resolved, strict=True):
        if resolved.count(real) > 1:
            raise UsageError(f"{str(path)!r} is given twice: its trajectories would be in the data twice")


def _check_same_spaces(folders: Sequence[ShardFiles]) -> None:
    """Check that the first shards of folders have the same spaces."""
    said: list[tuple[Path, Any]] = [(folder.path(0), folder.header(0).get("spaces")) for folder in folders]
    for path, its in said[1:]:
        if its == said[0][1]:  # which is nearly always so, and takes no decoding
            continue
        for name in ("observation_space", "action_space"):
            found = []
            for each, spaces in (said[0], (path, its)):
                with damage_raised(each):
                    found.append(decode_space(spaces[name]))
            if not same_space(found[0], found[1]):
                raise DataError(
                    f"{name} differs: {found[0]} in {said[0][0].parent}, {found[1]} in {path.parent}; open folders of "
                    "different spaces one by one"
                )


T = TypeVar("T")


def _common(values: Sequence[T]) -> T | None:
    """Return the value that all of some values are; None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None


class _Shards(Sequence[TrajectoryBatch[Any, Any]]):
    """The shards of folders, loaded one at a time.

    Args:
        places: Of each shard its folder, and its number among the files there.
    """

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
            raise TypeError("shards are loaded one at a time: ask for one")
        number = range(len(self))[index]
        last = self._last
        if last is None or last[0] != number:
            self._last = last = None  # gives its memory back before the next one needs it
            files, own_number = self._places[number]
            self._last = last = number, files.load(own_number)
        return last[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}
