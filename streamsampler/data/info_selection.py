"""Select the infos for a file, and find infos that no file can hold before hours of sampling are wasted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from streamsampler.core.errors import StorageError, UnwritableInfoError, UsageError
from streamsampler.data.agent_rows import OF_AGENTS
from streamsampler.data.batch_fields import INFOS, PER_TIMESTEP, replaced
from streamsampler.data.codec import encode
from streamsampler.data.info_columns import InfoColumns, KeyPath, name_of
from streamsampler.data.infos import Infos, columns_of, is_mask

# Python's complex numbers become NumPy's, which can be written, when their column's dtype is decided.
_WRITABLE = (bool, int, float, str, complex, type(None))


@dataclass(frozen=True)
class InfoSelection:
    """The infos for a file, by their outermost keys: `names` (None for all), but not those in `without`."""

    names: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    @staticmethod
    def of(infos: InfosArgument) -> InfoSelection:
        """Interpret an argument `infos`: True for all, False for none, or the names to keep."""
        if isinstance(infos, InfoSelection):
            return infos
        if isinstance(infos, bool):
            return InfoSelection() if infos else InfoSelection(frozenset())
        names = None if isinstance(infos, str) or not isinstance(infos, Iterable) else list(infos)
        if names is None or not all(isinstance(name, str) for name in names):
            raise UsageError(f'infos must be True, False, or the names to keep, such as ["x", "y"], got {infos!r}')
        return InfoSelection(frozenset(names))

    @property
    def is_all(self) -> bool:
        return self.names is None and not self.without

    def keeps(self, name: str) -> bool:
        return (self.names is None or name in self.names) and name not in self.without

    @property
    def mentioned(self) -> frozenset[str]:
        return self.without | (self.names or frozenset())

    def facts(self) -> dict[str, Any]:
        """Return the entry for a file's provenance; empty if all infos are kept."""
        if self.is_all:
            return {}
        return {"infos": {"without": sorted(self.without)} if self.names is None else sorted(self.names)}

    def of_batch(self, batch: Any) -> Any:
        """Return a batch with only the kept infos; raise a `UsageError` if a named info is absent."""
        if self.is_all:
            return batch
        several = policies_of(batch)
        known = {name for each in (batch, *several.values()) for tree in INFOS for name in _names(getattr(each, tree))}
        if unknown := self.mentioned - known:
            there = f"only {', '.join(map(repr, sorted(known)))}" if known else "and no other info"
            raise UsageError(f"the batch has no info {' or '.join(map(repr, sorted(unknown)))}, {there}")
        kept = self._of_one(batch)
        if not several:
            return kept
        return replaced(kept, policies={name: self._of_one(each) for name, each in several.items()})

    def _of_one(self, batch: Any) -> Any:
        kept: dict[str, Any] = {name: self._of_infos(getattr(batch, name)) for name in INFOS}
        return replaced(batch, **kept)

    def _of_infos(self, infos: Infos) -> Infos:
        kept = {key: value for key, value in infos.items() if self.keeps(key[1:] if is_mask(key, infos) else key)}
        if OF_AGENTS in infos:
            kept[OF_AGENTS] = {agent: self._of_agent(about) for agent, about in infos[OF_AGENTS].items()}
        return kept

    def _of_agent(self, about: Infos) -> Infos:
        """Select an agent's infos; its return is no info, and always kept."""
        return {key: self._of_infos(value) if isinstance(value, dict) else value for key, value in about.items()}

    def of_columns(self, columns: InfoColumns) -> InfoColumns:
        kept = {key: it for key, it in columns.columns.items() if (name := info_name(key)) is None or self.keeps(name)}
        return InfoColumns(columns.length, kept)


InfosArgument: TypeAlias = bool | Iterable[str] | InfoSelection
"""True for all infos, False for none, or the names to keep."""


def policies_of(batch: Any) -> dict[str, Any]:
    return getattr(batch, "policies", {})


def unwritable_infos(batch: Any) -> None:
    """Raise an `UnwritableInfoError` with all infos no file can hold."""
    pieces = []
    for each in (batch, *policies_of(batch).values()):
        for name in INFOS:
            columns = columns_of(getattr(each, name), each.n_timesteps if name in PER_TIMESTEP else len(each), name)
            pieces.append((name, (columns, 0, columns.length)))
    check_pieces(pieces)


def info_name(path: KeyPath) -> str | None:
    """Return the name by which an info is kept or omitted; None for data always kept."""
    if path[0] != OF_AGENTS:
        return path[0]
    return path[3] if len(path) > 3 else None  # (OF_AGENTS, agent, "reset" or "last", name)


def _names(infos: Infos) -> set[str]:
    names = {key for key in infos if not is_mask(key, infos)} - {OF_AGENTS}
    for about in infos.get(OF_AGENTS, {}).values():
        names |= {name for part in about.values() if isinstance(part, dict) for name in _names(part)}
    return names


def check_pieces(pieces: Iterable[tuple[str, tuple[InfoColumns, int, int]]]) -> None:
    """Raise an `UnwritableInfoError` for pieces of columns, by batch field, if no file can hold them."""
    found: dict[str, str] = {}
    others: dict[str, None] = {}
    for tree, (columns, start, stop) in pieces:
        for path, column in columns.columns.items():
            name = info_name(path) or path[0]
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
    """Return why a file cannot hold the values, or None."""
    for value in values:
        if type(value) not in _WRITABLE:
            try:
                encode(value, name)
            except StorageError as error:
                return str(error)
    return None
