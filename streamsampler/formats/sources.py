"""The source of an export: trajectories of a batch, a file or a folder, with a single shard in memory at a time."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.progress import Display
from streamsampler.core.version import __version__
from streamsampler.data import npz as storage
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import INFOS, replaced
from streamsampler.data.folder import TrajectoryFolder
from streamsampler.data.info_columns import KeyPath
from streamsampler.data.leaf_selection import LeafSelection
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.data.shards import load_with_header
from streamsampler.data.spaces import AnySpace
from streamsampler.formats.columns import Column, InfoSurvey, space_columns

_log = logging.getLogger("streamsampler")


class Source:
    """Trajectories to export, with a single shard in memory at a time.

    Args:
        shards: The shards, each loaded when it is indexed.
        sizes: Trajectories and timesteps of each shard.
        facts: Their origin: seed, provenance and version of the package.
        files: The files of the shards, if any.
        leaves: The leaves to export.
    """

    def __init__(
        self,
        shards: Sequence[TrajectoryBatch[Any, Any]],
        sizes: Sequence[tuple[int, int]],
        facts: Mapping[str, Any],
        files: Sequence[Path] = (),
        leaves: LeafSelection | None = None,
    ) -> None:
        self._shards, self._sizes, self._files = shards, sizes, files
        self._leaves = LeafSelection()
        self.n_trajectories = sum(trajectories for trajectories, _ in sizes)
        self.n_timesteps = sum(timesteps for _, timesteps in sizes)
        self.facts = facts
        self.provenance: dict[str, Any] = dict(facts.get("provenance") or {})
        first = shards[0]
        if isinstance(first, MultiAgentBatch):
            raise UsageError(
                "cannot export episodes of several agents together: select a policy with policy=NAME, or --policy NAME "
                f"on the command line, among {', '.join(map(repr, first.policies))}"
            )
        self.observation_space, self.action_space = first.observation_space, first.action_space
        if leaves:
            self._select(leaves)

    def _select(self, leaves: LeafSelection) -> None:
        """Restrict the export to these leaves."""
        named = [name for name in INFOS if name in leaves.roots]
        found = self.survey()[0] if named else {}
        spaces = {"observations": self.observation_space, "actions": self.action_space}
        leaves.check(spaces, {name: [*found.get(name, ())] for name in INFOS})
        self._leaves = leaves
        self.observation_space = leaves.space("observations", self.observation_space)
        self.action_space = leaves.space("actions", self.action_space)

    def _selected(self, batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
        if not (leaves := self._leaves):
            return batch
        kept: TrajectoryBatch[Any, Any] = replaced(
            batch,
            observation_space=self.observation_space,
            action_space=self.action_space,
            observations=leaves.tree("observations", batch.observations),
            last_observations=leaves.tree("observations", batch.last_observations),
            actions=leaves.tree("actions", batch.actions),
            **{name: leaves.infos(name, getattr(batch, name)) for name in INFOS},
        )
        return kept

    def leaf_spaces(self) -> Iterator[tuple[KeyPath, AnySpace]]:
        """Yield the path and space of each leaf."""
        for name, of in (("observations", self.observation_space), ("actions", self.action_space)):
            for path, space, _ in space_columns(of, None, (name,)):
                yield path, space

    def shards(self, shown: Display | None = None) -> Iterator[tuple[int, TrajectoryBatch[Any, Any]]]:
        """Yield each shard, with the number of trajectories before it; a `StorageError` names a damaged file."""
        timesteps = trajectories = 0
        for number, (n_trajectories, n_timesteps) in enumerate(self._sizes):
            yield (
                trajectories,
                self._selected(self._shards[number].unfiltered()),
            )  # filtered data may not fit the spaces
            timesteps += n_timesteps
            trajectories += n_trajectories
            if shown is not None:
                shown.update(lambda: (timesteps, trajectories), complete=False)  # noqa: B023 - called immediately

    def survey(self) -> tuple[dict[str, dict[KeyPath, Column]], bool]:
        """Read the infos and seeds of all shards.

        Return the columns of each field of infos, and under "all_env_infos" those of env_infos and episode_infos
        together; and whether all seeds of trajectories are 64-bit integers.
        """
        surveys = {name: InfoSurvey() for name in (*INFOS, "all_env_infos")}
        seeds_fit = True
        for number, (n_trajectories, n_timesteps) in enumerate(self._sizes):
            infos, seeds = self._infos_and_seeds(number)
            seeds_fit = seeds_fit and all(-(2**63) <= seed < 2**63 for seed in seeds)
            for name in INFOS:
                length = n_trajectories if name == "episode_infos" else n_timesteps
                for survey in (name,) if name == "agent_infos" else (name, "all_env_infos"):
                    surveys[survey].add(infos[name], length, name)
        return {name: survey.columns() for name, survey in surveys.items()}, seeds_fit

    def _infos_and_seeds(self, number: int) -> tuple[dict[str, Any], Sequence[int]]:
        if self._files:
            infos, header = storage.read_trees(self._files[number], *INFOS)
            seeds = header["seeds"]
        else:
            shard = self._shards[number]
            infos, seeds = {name: getattr(shard, name) for name in INFOS}, shard.seeds
        return {name: self._leaves.infos(name, infos[name]) for name in INFOS}, seeds


class _OfPolicy(Sequence[TrajectoryBatch[Any, Any]]):
    """A policy's batches; `played` has the number of each shard in which it played, and of the episodes before it."""

    def __init__(self, shards: Sequence[Any], played: Sequence[tuple[int, int]], policy: str) -> None:
        self._shards, self._played, self._policy = shards, played, policy

    def __len__(self) -> int:
        return len(self._played)

    def __getitem__(self, index: Any) -> Any:
        number, first = self._played[index]
        batch = self._shards[number][self._policy]
        return replace(batch, agents=batch.agents._replace(episodes=batch.agents.episodes + first))


Sourced = TrajectoryBatch[Any, Any] | TrajectoryFolder[Any, Any] | Source | str | os.PathLike[str]
"""The possible sources of an export."""


def open_source(source: Sourced, leaves: LeafSelection | None = None, policy: str | None = None) -> Source:
    """Open a batch, a folder, or the path of either; return a `Source` unchanged.

    Raises:
        UsageError: The source is anything else, or the policy or a leaf does not exist.
        DataError: The source has no trajectories.
        StorageError: The file or folder is damaged.
    """
    if isinstance(source, Source):
        return source
    if not isinstance(source, TrajectoryBatch | TrajectoryFolder | str | os.PathLike):
        raise UsageError(
            "can export only a batch, a folder or a path (several folders as TrajectoryFolder(first, second)), not "
            f"{source!r:.80}"
        )
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        source = TrajectoryFolder(source)
    if isinstance(source, TrajectoryFolder):
        return _of_folder(source, leaves, policy)
    facts: Mapping[str, Any] = {"seed": None, "provenance": {}, "package_version": __version__}
    if isinstance(source, TrajectoryBatch):
        facts = {**facts, "seed": source.seed}
    else:
        source, header = load_with_header(source)
        facts = {name: header.get(name) for name in facts}
    if not len(source):
        raise DataError("there are no trajectories to export")
    return _source([source], [(source.n_trajectories, source.n_timesteps)], facts, (), leaves, policy)


def _source(
    shards: Sequence[TrajectoryBatch[Any, Any]], sizes: Sequence[tuple[int, int]], facts: Mapping[str, Any],
    files: Sequence[Path], leaves: LeafSelection | None, policy: str | None,
) -> Source:  # fmt: skip
    if policy is None:
        return Source(shards, sizes, facts, files, leaves)
    played: dict[tuple[int, int], tuple[int, int]] = {}
    names = set[str]()
    n_episodes = 0
    for number, shard in enumerate(shards):
        if not isinstance(shard, MultiAgentBatch):
            raise UsageError(f"the batch has a single agent, so no policy {policy!r}: leave policy out")
        names |= shard.policies.keys()
        if (batch := shard.policies.get(policy)) is not None:
            played[number, n_episodes] = batch.n_trajectories, batch.n_timesteps
        n_episodes += len(shard)
    if not played:
        raise UsageError(f"policy {policy!r} acted for no agent, only {', '.join(map(repr, sorted(names)))}")
    return Source(_OfPolicy(shards, [*played], policy), [*played.values()], facts, leaves=leaves)


def _of_folder(folder: TrajectoryFolder[Any, Any], leaves: LeafSelection | None, policy: str | None) -> Source:
    if not folder.shards:
        raise DataError("there are no trajectories to export: the folder has none yet")
    if not folder.complete:
        _log.warning("%r is incomplete: only its present shards are exported", folder)
    package_version = folder.package_version
    facts = {"seed": folder.seed, "provenance": dict(folder.provenance), "package_version": package_version}
    return _source(folder.shards, folder.shard_sizes, facts, folder.files, leaves, policy)
