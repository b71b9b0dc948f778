"""Say which infos files hold, and find infos that no file can hold, before hours of sampling are lost to them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from streamsampler.data.agent_rows import OF_AGENTS
from streamsampler.data.assembly import info_pieces
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.info_columns import InfoColumns, KeyPath, name_of
from streamsampler.data.infos import Infos, columns_of, is_mask
from streamsampler.data.multi_agent import MultiAgentBatch, segments_of_policies
from streamsampler.data.recorder import Rollouts
from streamsampler.errors import StorageError, UnwritableInfoError, UsageError
from streamsampler.scheduling.result import Segment
from streamsampler.storage.json_codec import encode

__all__ = ["InfosArgument", "InfosOfFiles", "KeptInfos", "unwritable_infos"]

_INFOS = ("env_infos", "agent_infos", "episode_infos")
# Python's complex numbers become those of NumPy when their column is decided, and those can be written.
_WRITABLE = (bool, int, float, str, complex, type(None))
_log = logging.getLogger("streamsampler")


@dataclass(frozen=True)
class KeptInfos:
    """The infos that a file holds, by the names of their outermost keys.

    Attributes:
        names: The names of those that are kept; None for all.
        without: The names of those that are left out all the same.
    """

    names: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    @staticmethod
    def of(infos: InfosArgument) -> KeptInfos:
        """Return what an argument `infos` says.

        Args:
            infos: True for all infos, False for none, or the names of those that are kept.

        Raises:
            UsageError: It is something else.
        """
        if isinstance(infos, KeptInfos):
            return infos
        if isinstance(infos, bool):
            return KeptInfos() if infos else KeptInfos(frozenset())
        names = None if isinstance(infos, str) or not isinstance(infos, Iterable) else list(infos)
        if names is None or not all(isinstance(name, str) for name in names):
            raise UsageError(f'infos must be True, False, or the names to keep, such as ["x", "y"], got {infos!r}')
        return KeptInfos(frozenset(names))

    @property
    def is_all(self) -> bool:
        """Whether all infos are kept."""
        return self.names is None and not self.without

    def keeps(self, name: str) -> bool:
        """Return whether the infos of a name are kept."""
        return (self.names is None or name in self.names) and name not in self.without

    @property
    def mentioned(self) -> frozenset[str]:
        """The names that are said to be kept, or to be left out."""
        return self.without | (self.names or frozenset())

    def facts(self) -> dict[str, Any]:
        """Return what a file's provenance says of it; nothing where all infos are kept."""
        if self.is_all:
            return {}
        return {"infos": {"without": sorted(self.without)} if self.names is None else sorted(self.names)}

    def of_batch(self, batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
        """Return a batch with the infos that are kept.

        Raises:
            UsageError: An info is named that the batch does not have.
        """
        if self.is_all:
            return batch
        several = batch.policies if isinstance(batch, MultiAgentBatch) else {}
        known = {name for each in (batch, *several.values()) for tree in _INFOS for name in _names(getattr(each, tree))}
        if unknown := self.mentioned - known:
            there = f"those there are: {', '.join(map(repr, sorted(known)))}" if known else "there are none"
            raise UsageError(f"there is no info {' or '.join(map(repr, sorted(unknown)))}; {there}")
        kept = self._of_one(batch)
        if not isinstance(kept, MultiAgentBatch):
            return kept
        return dataclasses.replace(kept, policies={name: self._of_one(each) for name, each in several.items()})

    def _of_one(self, batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
        kept: dict[str, Any] = {name: self._of_infos(getattr(batch, name)) for name in _INFOS}
        return dataclasses.replace(batch, **kept)

    def _of_infos(self, infos: Infos) -> Infos:
        kept = {key: value for key, value in infos.items() if self.keeps(key[1:] if is_mask(key, infos) else key)}
        if OF_AGENTS in infos:
            kept[OF_AGENTS] = {agent: self._of_agent(about) for agent, about in infos[OF_AGENTS].items()}
        return kept

    def _of_agent(self, about: Infos) -> Infos:
        """Return what is known of an agent in each episode: its return is no info, and always kept."""
        return {key: self._of_infos(value) if isinstance(value, dict) else value for key, value in about.items()}

    def of_columns(self, columns: InfoColumns) -> InfoColumns:
        """Return the columns of the infos that are kept."""
        kept = {key: it for key, it in columns.columns.items() if (name := _name(key)) is None or self.keeps(name)}
        return InfoColumns(columns.length, kept)


InfosArgument: TypeAlias = bool | Iterable[str] | KeptInfos
"""True for all infos, False for none, or the names of those that are kept."""


class InfosOfFiles:
    """Applies to a sampler's trajectories what is said of the infos of files, while something is said."""

    def __init__(self) -> None:
        self._kept: KeptInfos | None = None
        self._missing: set[str] = set()  # names that no info had so far

    @contextlib.contextmanager
    def entered(self, kept: KeptInfos) -> Iterator[None]:
        """Leave infos out, and check the others, until the context is left; warn of names that no info had."""
        self._kept, self._missing = kept, set(kept.mentioned)
        try:
            yield
            if self._missing:
                _log.warning("there was no info %s", " or ".join(map(repr, sorted(self._missing))))
        finally:
            self._kept = None

    def leave_out(self, rollouts: Rollouts) -> None:
        """Take what is not kept out of a worker's rollouts."""
        if self._kept is None or self._kept.is_all:
            return
        for each in (rollouts, *(it.rollouts for it in rollouts.policies)):
            for name in _INFOS:
                columns: InfoColumns = getattr(each, name)
                if columns.columns:
                    self._missing.difference_update(filter(None, map(_name, columns.columns)))
                    setattr(each, name, self._kept.of_columns(columns))

    def check(self, segments: Sequence[Segment]) -> None:
        """Check that a file can hold the infos of trajectories.

        Raises:
            UnwritableInfoError: It cannot; names all such infos of these trajectories.
        """
        if self._kept is not None and segments:
            each = [segments, *segments_of_policies(segments)]
            _check([(name, piece) for name in _INFOS for part in each for piece in info_pieces(part, name)])


def unwritable_infos(batch: TrajectoryBatch[Any, Any]) -> None:
    """Check that a file can hold the infos of a batch.

    Raises:
        UnwritableInfoError: It cannot; names all such infos.
    """
    pieces = []
    for each in (batch, *(batch.policies.values() if isinstance(batch, MultiAgentBatch) else ())):
        for name in _INFOS:
            columns = columns_of(getattr(each, name), each.n_timesteps if name != _INFOS[-1] else len(each), name)
            pieces.append((name, (columns, 0, columns.length)))
    _check(pieces)


def _name(path: KeyPath) -> str | None:
    """Return the name that an info is kept or left out by; None for what is no info, and always kept."""
    if path[0] != OF_AGENTS:
        return path[0]
    return path[3] if len(path) > 3 else None  # of agents, whose, which, and its name


def _names(infos: Infos) -> set[str]:
    names = {key for key in infos if not is_mask(key, infos)} - {OF_AGENTS}
    for about in infos.get(OF_AGENTS, {}).values():
        names |= {name for part in about.values() if isinstance(part, dict) for name in _names(part)}
    return names


def _check(pieces: Iterable[tuple[str, tuple[InfoColumns, int, int]]]) -> None:
    found: dict[str, str] = {}
    others: dict[str, None] = {}
    for tree, (columns, start, stop) in pieces:
        for path, column in columns.columns.items():
            name = _name(path) or path[0]
            if name in found or column.values.dtype != object:
                others[name] = None
                continue
            if (problem := _problem(column.of_rows(start, stop), name_of(tree, path))) is None:
                others[name] = None
            else:
                found[name] = problem
    if found:
        raise UnwritableInfoError(next(iter(found.values())), sorted(found), sorted(others.keys() - found.keys()))


def _problem(values: Iterable[Any], name: str) -> str | None:
    """Return why a file cannot hold one of the values; None where it can hold all of them."""
    for value in values:
        if type(value) not in _WRITABLE:
            try:
                encode(value, name)
            except StorageError as error:
                return str(error)
    return None
