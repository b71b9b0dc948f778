"""Select leaves of observations, actions and infos by paths such as `observations.image` or `env_infos.lap`.

A path is the name of the batch's array and the keys of Dict spaces, positions in Tuple spaces, or keys of nested infos,
joined by dots. The path of an inner node stands for all leaves below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gymnasium import spaces as gym_spaces

from streamsampler.core.errors import UsageError
from streamsampler.data.spaces import AnySpace


class LeafSelection:
    """A selection of leaves: `fields` are paths to keep (None for all), `without` paths to omit.

    A tree not named in `fields` is kept whole. `roots` has the names of the mentioned trees, in order.
    """

    def __init__(self, fields: Sequence[str] | None = None, without: Sequence[str] = ()) -> None:
        self._fields, self._without = _checked("fields", fields or ()), _checked("without", without)
        if fields is not None and not self._fields:
            raise UsageError("fields is empty: name the paths to keep, such as observations, or use None for all")
        self._named = {_root(path) for path in self._fields}
        self.roots = tuple(dict.fromkeys(map(_root, (*self._fields, *self._without))))

    def __bool__(self) -> bool:
        return bool(self.roots)

    def check(self, spaces: Mapping[str, AnySpace], infos: Mapping[str, Sequence[Sequence[str]] | None]) -> None:
        """Raise a `UsageError` unless all paths exist and each space keeps a leaf.

        `infos` has the paths of the leaves of infos by tree name, or None if they vary.
        """
        for path in (*self._fields, *self._without):
            root = _root(path)
            if root not in spaces and root not in infos:
                raise UsageError(f"there is no {path!r}: paths start with {', '.join([*spaces, *infos])}")
            if root in spaces:
                known = [".".join((root, *names)) for names in _paths(spaces[root])]
            elif (listed := infos[root]) is not None:
                known = [".".join((root, *names)) for names in listed]
            else:
                continue
            if path != root and not any(_is_in(leaf, path) for leaf in known):
                there = f"its leaves are {', '.join(known)}" if known != [root] else f"{root} is one array"
                raise UsageError(f"there is no {path!r}: {there}")
        for root, space in spaces.items():
            if self.space(root, space) is None:
                raise UsageError(
                    f"nothing of {root} would remain: keep at least one of {', '.join(leaf_paths(root, space))}"
                )

    def space(self, path: str, space: AnySpace) -> Any:
        if isinstance(space, gym_spaces.Dict):
            children = {key: self.space(f"{path}.{key}", child) for key, child in space.spaces.items()}
            kept = {key: child for key, child in children.items() if child is not None}
            return gym_spaces.Dict(list(kept.items())) if kept else None
        if isinstance(space, gym_spaces.Tuple):
            parts = [self.space(f"{path}.{position}", child) for position, child in enumerate(space.spaces)]
            parts = [part for part in parts if part is not None]
            return gym_spaces.Tuple(parts) if parts else None
        return space if self._keeps(path) else None

    def tree(self, path: str, tree: Any) -> Any:
        if isinstance(tree, dict):
            children = {key: self.tree(f"{path}.{key}", child) for key, child in tree.items()}
            return {key: child for key, child in children.items() if child is not None} or None
        if isinstance(tree, tuple):
            parts = (self.tree(f"{path}.{position}", child) for position, child in enumerate(tree))
            return tuple(part for part in parts if part is not None) or None
        return tree if self._keeps(path) else None

    def infos(self, path: str, infos: Mapping[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in infos.items():
            is_mask = key.startswith("_") and key[1:] in infos
            if isinstance(value, dict):
                if inner := self.infos(f"{path}.{key}", value):
                    kept[key] = inner
            elif is_mask or self._keeps(f"{path}.{key}"):
                kept[key] = value
        return {key: value for key, value in kept.items() if not _is_stray_mask(key, infos, kept)}

    def _keeps(self, path: str) -> bool:
        if any(_is_in(path, each) for each in self._without):
            return False
        return _root(path) not in self._named or any(_is_in(path, each) for each in self._fields)


def leaf_paths(root: str, space: AnySpace) -> list[str]:
    return [".".join((root, *names)) for names in _paths(space)]


def way_out(path: Sequence[str]) -> str:
    """Return advice on how to omit a leaf, given by its names; empty for a whole tree."""
    name = ".".join(path)
    return f": omit it with without=({name!r},), or --without {name} on the command line" if len(path) > 1 else ""


def _checked(name: str, paths: Any) -> tuple[str, ...]:
    if isinstance(paths, str) or not isinstance(paths, Sequence) or not all(isinstance(path, str) for path in paths):
        raise UsageError(f"{name} must be a list of paths, such as ['observations.image'], not {paths!r:.80}")
    return tuple(paths)


def _root(path: str) -> str:
    return path.partition(".")[0]


def _is_in(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.")


def _paths(space: AnySpace) -> Iterator[tuple[str, ...]]:
    if isinstance(space, gym_spaces.Dict):
        children: Any = space.spaces.items()
    elif isinstance(space, gym_spaces.Tuple):
        children = enumerate(space.spaces)
    else:
        yield ()
        return
    for key, child in children:
        for names in _paths(child):
            yield str(key), *names


def _is_stray_mask(key: str, infos: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    return key.startswith("_") and key[1:] in infos and key[1:] not in kept
