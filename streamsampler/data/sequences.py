"""Sequences of timesteps from a folder, as a PyTorch `IterableDataset`; see `TrajectoryFolder.torch_dataset`.

This module needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from streamsampler.core.errors import DataError, UsageError, positive
from streamsampler.data import npz as storage
from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.infos import take_infos
from streamsampler.data.leaf_selection import LeafSelection
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array

FIELDS = (
    *("observations", "next_observations", "actions", "rewards", "terminated", "truncated", "step_types"),
    *("env_infos", "agent_infos"),
)
"""The possible fields of a sequence, besides its mask and its place."""

_ENDS = ("terminated", "truncated")
_INFOS = ("env_infos", "agent_infos")


class SequenceDataset(IterableDataset):  # type: ignore[misc]
    """Yields sequences of timesteps; see `TrajectoryFolder.torch_dataset`.

    `firsts` has for each shard the position of its first trajectory among those of all shards.

    Attributes:
        sequence_length: Timesteps of each sequence; None for whole trajectories.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        files: Sequence[Path],
        shards: Sequence[TrajectoryBatch[Any, Any]],
        firsts: Sequence[int],
        sequence_length: int | None,
        *,
        shuffle: bool,
        seed: int,
        fields: Sequence[str],
        without: Sequence[str] = (),
        spaces: tuple[AnySpace, AnySpace] | None = None,
    ) -> None:
        super().__init__()
        if sequence_length is not None:
            positive("sequence_length", sequence_length)
        self._leaves = leaves = LeafSelection(fields)
        self._fields = leaves.roots
        if unknown := sorted(set(self._fields) - set(FIELDS)):
            raise UsageError(f"sequences cannot hold {' or '.join(unknown)}, only {', '.join(FIELDS)}")
        self._leaves = LeafSelection(fields, without)
        self._check_leaves(spaces)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise UsageError(f"seed should be an integer of at least 0, not {seed!r}")
        self.sequence_length = sequence_length
        self._files, self._shards, self._firsts = files, shards, firsts
        self._shuffle, self._seed = shuffle, int(seed)
        # In shared memory, so that persistent loader workers see the next epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def _check_leaves(self, spaces: tuple[AnySpace, AnySpace] | None) -> None:
        if self._leaves.roots != self._fields:
            others = ", ".join(name for name in self._leaves.roots if name not in self._fields)
            raise UsageError(f"without names {others}, but fields does not, so sequences do not hold it")
        if spaces is not None:
            of = dict(zip(("observations", "next_observations", "actions"), (spaces[0], *spaces), strict=True))
            plain = [name for name in FIELDS if name not in of and name not in _INFOS]
            self._leaves.check(
                {name: space for name, space in of.items() if name in self._fields},
                {name: None if name in _INFOS else [()] for name in self._fields if name in _INFOS or name in plain},
            )

    @property
    def n_sequences(self) -> int:
        """The number of sequences from all loader workers together; reads the lengths of all trajectories."""
        return sum(len(self._places(storage.read(path, "lengths")[0]["lengths"])) for path in self._files)

    def set_epoch(self, epoch: int) -> None:
        """Select another shuffle of the same seed; without a call each iteration has the same order."""
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        worker, n_workers = (0, 1) if info is None else (info.id, info.num_workers)
        n_shards = len(self._shards)
        order = np.arange(n_shards)
        entropy = (self._seed, int(self._epoch))
        if self._shuffle:
            np.random.default_rng(entropy).shuffle(order)
        # Each loader worker reads its own shards; with fewer shards than workers, all read every shard.
        share_shards = n_shards >= n_workers
        for number in order[worker::n_workers] if share_shards else order:
            shard, before = self._shards[int(number)], self._firsts[int(number)]
            places = self._places(shard.lengths)
            if self._shuffle:
                np.random.default_rng((*entropy, int(number))).shuffle(places)
            for trajectory, first, stop in places if share_shards else places[worker::n_workers]:
                sequence = self._sequence(shard, int(trajectory), int(first), int(stop))
                yield sequence | {"trajectory": torch.tensor(before + int(trajectory))}

    def _places(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (n, 3) integers: each sequence's trajectory, first timestep, and the timestep after its last."""
        if self.sequence_length is None:
            return np.stack([np.arange(len(lengths)), np.zeros_like(lengths), lengths], axis=1)
        size = self.sequence_length
        counts = -(-lengths // size)
        owners = np.repeat(np.arange(len(lengths)), counts)
        starts = (np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)) * size
        return np.stack([owners, starts, np.minimum(starts + size, lengths[owners])], axis=1)

    def _sequence(self, shard: TrajectoryBatch[Any, Any], trajectory: int, first: int, stop: int) -> dict[str, Any]:
        begin = int(shard.starts[trajectory])
        rows = slice(begin + first, begin + stop)
        length = self.sequence_length or stop - first
        at_end = stop == shard.lengths[trajectory]
        found: dict[str, Any] = {}
        for name in self._fields:
            if name in _ENDS:
                found[name] = np.zeros(length, np.bool_)
                found[name][stop - first - 1] = at_end and getattr(shard, name)[trajectory]
            else:
                tree = _rows_of(shard, name, trajectory, rows, at_end=bool(at_end))
                kept = self._leaves.infos(name, tree) if name in _INFOS else self._leaves.tree(name, tree)
                found[name] = _padded_tree(kept, length, (name,))
        found["mask"] = np.arange(length) < stop - first
        found["index"] = np.array(shard.indices[trajectory])
        found["timestep"] = np.array(first)
        return trees.map_tree(torch.from_numpy, found)


def _rows_of(shard: TrajectoryBatch[Any, Any], name: str, trajectory: int, rows: slice, *, at_end: bool) -> Any:
    if name in _INFOS:
        return take_infos(getattr(shard, name), rows)
    if name == "next_observations":
        following = trees.take(shard.observations, slice(rows.start + 1, rows.stop + (not at_end)))
        last = trees.take(shard.last_observations, slice(trajectory, trajectory + at_end))
        return trees.concatenate([following, last])
    return trees.take(getattr(shard, name), rows)


def _padded_tree(tree: Any, length: int, path: tuple[str, ...]) -> Any:
    if isinstance(tree, dict):
        return {key: _padded_tree(child, length, (*path, str(key))) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_padded_tree(child, length, (*path, str(position))) for position, child in enumerate(tree))
    return _padded(tree, length, path)


def _padded(rows: Array, length: int, path: tuple[str, ...]) -> Array:
    """Return rows padded with zeros, in new memory."""
    if rows.dtype.kind not in "biufc" or rows.dtype.itemsize > 16:
        name = ".".join(path)
        way = f"omit it with without=({name!r},)" if len(path) > 1 else f"leave {name} out of fields"
        raise DataError(f"{name} has the dtype {rows.dtype}, which PyTorch lacks: {way}")
    padded = np.zeros((length, *rows.shape[1:]), rows.dtype.newbyteorder("="))
    padded[: len(rows)] = rows
    return padded
