"""What is exported: the trajectories of a batch, of a file or of a folder, with one shard in memory at a time."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.info_columns import KeyPath
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.errors import DataError, UsageError
from streamsampler.formats.columns import Column, InfoSurvey
from streamsampler.storage import npz as storage
from streamsampler.storage.folder import TrajectoryFolder
from streamsampler.storage.manifest import shard_name
from streamsampler.version import __version__

__all__ = ["Source", "Sourced", "open_source"]

_log = logging.getLogger("streamsampler")
_INFOS = ("env_infos", "agent_infos", "episode_infos")


class Source:
    """Trajectories that are exported, shard by shard.

    Args:
        shards: The shards, each loaded when it is indexed; at least one.
        sizes: Trajectories and timesteps of each shard.
        facts: What is known of their origin: seed, provenance and version of the package.
        files: The shards' files; none where they are in memory.

    Attributes:
        n_trajectories: How many trajectories there are.
        n_timesteps: How many timesteps.
        observation_space: The environment's.
        action_space: The environment's.
        has_fragments: Whether trajectories may be parts of episodes.
        of_agents: Whether trajectories are of agents, of which an environment has several.
        facts: See above.
    """

    def __init__(
        self,
        shards: Sequence[TrajectoryBatch[Any, Any]],
        sizes: Sequence[tuple[int, int]],
        facts: Mapping[str, Any],
        files: Sequence[Path] = (),
    ) -> None:
        self._shards, self._sizes, self._files = shards, sizes, files
        self.n_trajectories = sum(trajectories for trajectories, _ in sizes)
        self.n_timesteps = sum(timesteps for _, timesteps in sizes)
        self.facts = facts
        first = shards[0]
        if isinstance(first, MultiAgentBatch):
            raise UsageError(
                "these are episodes of several agents: export what one policy did, batch['name'], with "
                f"batch = streamsampler.load(…); there are {', '.join(map(repr, first.policies))}"
            )
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self.of_agents = first.agents is not None
        self.has_fragments = bool(first.fragments)  # of a batch alone: a folder has whole trajectories

    def __len__(self) -> int:
        return len(self._shards)

    def shards(self, first: int = 0) -> Iterator[tuple[int, TrajectoryBatch[Any, Any]]]:
        """Yield each shard from a number on, with the trajectories that come before it.

        Raises:
            StorageError: A shard is damaged; names its file.
        """
        before = sum(trajectories for trajectories, _ in self._sizes[:first])
        for number in range(first, len(self._shards)):
            yield before, self._shards[number].unfiltered()  # whose data are of the spaces
            before += self._sizes[number][0]

    def size_before(self, number: int) -> tuple[int, int]:
        """Return how many timesteps and trajectories the shards before one have."""
        sizes = self._sizes[:number]
        return sum(timesteps for _, timesteps in sizes), sum(trajectories for trajectories, _ in sizes)

    def identity(self) -> Any | None:
        """Return what tells these files from others and from what they become when they are changed; None without."""
        if not self._files:
            return None
        stats = [os.stat(path) for path in self._files]
        files = [[path.name, stat.st_size, stat.st_mtime_ns] for path, stat in zip(self._files, stats, strict=True)]
        return {**self.facts, "files": files}

    def survey(self) -> dict[str, dict[KeyPath, Column]]:
        """Return the columns of env_infos, agent_infos and episode_infos over all shards, and of "all_env_infos".

        The last are those of env_infos and episode_infos together: what `env.reset` and `env.step` returned.
        """
        surveys = {name: InfoSurvey(name) for name in (*_INFOS, "all_env_infos")}
        for number, (n_trajectories, n_timesteps) in enumerate(self._sizes):
            infos = self._infos(number)
            for name in _INFOS:
                length = n_trajectories if name == "episode_infos" else n_timesteps
                surveys[name].add(infos[name], length)
                if name != "agent_infos":
                    surveys["all_env_infos"].add(infos[name], length)
        return {name: survey.columns() for name, survey in surveys.items()}

    def _infos(self, number: int) -> dict[str, Any]:
        if self._files and len(self) > 1:
            return storage.read_trees(self._files[number], *_INFOS)[0]
        return {name: getattr(self._shards[number], name) for name in _INFOS}

    def seeds_fit(self) -> bool:
        """Return whether all seeds of trajectories are 64-bit integers."""
        limits = np.iinfo(np.int64)
        return all(limits.min <= seed <= limits.max for number in range(len(self)) for seed in self._seeds(number))

    def _seeds(self, number: int) -> Sequence[int]:
        if self._files and len(self) > 1:
            seeds: list[int] = storage.read(self._files[number])[1]["seeds"]
            return seeds
        return self._shards[number].seeds


Sourced = TrajectoryBatch[Any, Any] | TrajectoryFolder[Any, Any] | Source | str | os.PathLike[str]
"""What trajectories can be exported from."""


def open_source(source: Sourced) -> Source:
    """Open what is to be exported.

    Args:
        source: A batch, a folder, the path of a file or of a folder, or what this function returned.

    Raises:
        UsageError: It is something else.
        DataError: There are no trajectories.
        StorageError: The file or the folder is damaged, or is none.
        FileNotFoundError: There is no such file or folder.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, TrajectoryBatch):
        return _of_batch(source, {"seed": source.seed, "provenance": {}, "package_version": __version__}, ())
    if isinstance(source, TrajectoryFolder):
        return _of_folder(source)
    if not isinstance(source, str | os.PathLike):
        raise UsageError(f"trajectories are exported from a batch, a folder or a path, not from {source!r:.80}")
    path = Path(source)
    if path.is_dir():
        return _of_folder(TrajectoryFolder(path))
    batch, header = storage.load_with_header(path)
    file = path if path.exists() else path.with_name(f"{path.name}.npz")
    facts = {name: header.get(name) for name in ("seed", "provenance", "package_version")}
    return _of_batch(batch, facts, (file,))


def _of_batch(batch: TrajectoryBatch[Any, Any], facts: Mapping[str, Any], files: Sequence[Path]) -> Source:
    if not len(batch):
        raise DataError("there are no trajectories to export")
    return Source([batch], [(batch.n_trajectories, batch.n_timesteps)], facts, files)


def _of_folder(folder: TrajectoryFolder[Any, Any]) -> Source:
    if not folder.shards:
        raise DataError(f"there are no trajectories to export: {folder.path} holds none yet")
    if not folder.complete:
        _log.warning("%s is incomplete: what is exported is what is there now", folder.path)
    package_version = folder.package_version
    facts = {"seed": folder.seed, "provenance": dict(folder.provenance), "package_version": package_version}
    files = [folder.path / shard_name(number) for number in range(len(folder.shards))]
    return Source(folder.shards, folder.shard_sizes, facts, files)
