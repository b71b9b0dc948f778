"""Trajectory batches as `.npz` files, read without pickle and replaced atomically.

`streamsampler.load` loads them, and `numpy.load(path, allow_pickle=False)` gives each array under its name.
`streamsampler/docs/storage-and-formats.md` describes version 1 of the format, for readers in other languages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from streamsampler.core.atomic import write_whole
from streamsampler.core.errors import StorageError
from streamsampler.core.keywords import meant
from streamsampler.core.version import __version__
from streamsampler.data.agent_rows import ARRAYS_OF_AGENTS, AgentRows
from streamsampler.data.archive import opened_npz
from streamsampler.data.array_claims import check_claims, entries_of
from streamsampler.data.batch_fields import RawRows, value_of
from streamsampler.data.codec import decode, encode
from streamsampler.data.info_selection import InfosArgument, InfoSelection, policies_of, unwritable_infos
from streamsampler.data.json_facts import damage_raised, read_facts
from streamsampler.data.space_codec import decode_space, encode_space
from streamsampler.data.spaces import short
from streamsampler.data.trees import Array, object_array

_FORMAT = "streamsampler.TrajectoryBatch"
_VERSION = 1
_TREES = ("observations", "last_observations", "actions", "env_infos", "agent_infos", "episode_infos")
_ARRAYS = ("rewards", "terminated", "truncated", "lengths", "indices", "agent_versions")
_AGENTS = ARRAYS_OF_AGENTS
_RAW = RawRows._fields
_SPACES = ("observation_space", "action_space")


def save(
    batch: Any,
    path: str | os.PathLike[str],
    *,
    provenance: Mapping[str, Any] | None = None,
    compress: bool = False,
    infos: InfosArgument = True,
) -> Path:
    """Write a batch to a file, without `stats`, `worker_numbers` and `fingerprints`: these depend on timing.

    The file appears under its name when it is complete and on the disk; an existing file is replaced. Equal batches
    make equal files, byte for byte.

    Args:
        batch: The `TrajectoryBatch`.
        path: The file. Like NumPy, appends `.npz` to a name without it.
        provenance: The header's `provenance`: any JSON.
        compress: Compress the arrays; slower.
        infos: True for all infos, False for none, or the outermost keys to write.

    Returns:
        The path written.

    Raises:
        UsageError: `infos` names an info that the batch does not have.
        UnwritableInfoError: No file can hold some infos, which the message names.
        StorageError: Objects, spaces or the provenance cannot be written and read back exactly.
        OSError: The file cannot be written.
    """
    target = _with_suffix(Path(path))
    batch = InfoSelection.of(infos).of_batch(batch)
    try:
        entries = _entries(batch, provenance)
    except StorageError:
        unwritable_infos(batch)  # raises the better error: all such infos, and how to omit them
        raise
    write_whole(target, lambda file: _write(file, entries, compress))
    return target


def _with_suffix(path: Path) -> Path:
    return path if path.name.endswith(".npz") else path.with_name(f"{path.name}.npz")


def _write(file: BinaryIO, entries: dict[str, Array], compress: bool) -> None:
    write = cast(Any, np.savez_compressed if compress else np.savez)
    # Contiguous, whatever the batch's layout, and without times: equal batches make equal files.
    write(file, **{name: np.ascontiguousarray(array) for name, array in entries.items()})


def _entries(batch: Any, provenance: Mapping[str, Any] | None) -> dict[str, Array]:
    entries: dict[str, Array] = {name: getattr(batch, name) for name in _ARRAYS}
    # Reserves the name: no column gets it.
    entries["header"] = np.empty(0, np.uint8)
    header: dict[str, Any] = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "package_version": __version__,
        "seed": batch.seed,
        "seeds": list(batch.seeds),
        "provenance": dict(provenance or {}),
        "spaces": {name: encode_space(getattr(batch, name), name) for name in _SPACES},
        "structure": {name: _store(value_of(batch, name), name, name, entries) for name in _trees_of(batch)},
    }
    if batch.agents is not None:  # a policy's batch
        header |= _known(batch.agents)
        agents = {field: getattr(batch.agents, field) for field in _AGENTS}
        header["structure"]["agents"] = _store(agents, "agents", "agents", entries)
    if hasattr(batch, "policies"):  # empty for a fragment in which no agent acted
        header["policies"] = {name: _policy(name, each, entries) for name, each in policies_of(batch).items()}
    entries["header"] = _to_bytes([_dumps(header, "provenance")])
    return entries


def _known(rows: AgentRows) -> dict[str, Any]:
    return {"agent_ids": list(rows.known), **({"agents_are_open": True} if rows.is_open else {})}


def _policy(name: str, batch: Any, entries: dict[str, Array]) -> dict[str, Any]:
    """Add a policy's arrays to the entries; return its part of the header."""
    rows = batch.agents
    assert rows is not None
    trees = {field: getattr(batch, field) for field in (*_ARRAYS, *_trees_of(batch))}
    trees["agents"] = {field: getattr(rows, field) for field in _AGENTS}
    path, prefix = f"policies[{name!r}]", f"policies.{name}"
    return {
        **_known(rows),
        "spaces": {space: encode_space(getattr(batch, space), f"{path}.{space}") for space in _SPACES},
        "structure": {
            field: _store(tree, f"{path}.{field}", f"{prefix}.{field}", entries) for field, tree in trees.items()
        },
    }


def _fields_of(part: Mapping[str, Any], entries: dict[str, Array]) -> dict[str, Any]:
    """Return the fields of a batch from its part of the header."""
    structure = part["structure"]
    fields = {name: _restore(each, entries) for name, each in structure.items() if not name.startswith("raw_")}
    fields |= {name: entries[name] for name in _ARRAYS if name not in structure}
    fields["raw"] = _raw(fields, structure, entries)
    if "agents" in structure:
        fields["agents"] = AgentRows(tuple(part["agent_ids"]), **fields["agents"], is_open="agents_are_open" in part)
    return fields | {name: decode_space(part["spaces"][name]) for name in _SPACES}


def _fields_of_policy(part: Mapping[str, Any], joint: Mapping[str, Any], entries: dict[str, Array]) -> dict[str, Any]:
    fields = _fields_of(part, entries)
    seeds = tuple(joint["seeds"][episode] for episode in fields["agents"].episodes.tolist())
    return {**fields, "seeds": seeds, "seed": joint["seed"]}


def _trees_of(batch: Any) -> tuple[str, ...]:
    fragments = ("fragments",) if batch.fragments else ()
    return (*_TREES, *fragments, *_raw_of(batch))


def _raw_of(batch: Any) -> list[str]:
    """Return the raw data to write: those that differ, or at least the rewards, as a sign of filters."""
    if batch.raw is None:
        return []
    return [f"raw_{name}" for name in _RAW if getattr(batch.raw, name) is not getattr(batch, name)] or ["raw_rewards"]


def _raw(fields: Mapping[str, Any], structure: Mapping[str, Any], entries: dict[str, Array]) -> RawRows | None:
    """Return a file's raw data; None without filters."""
    there = {name: structure[f"raw_{name}"] for name in _RAW if f"raw_{name}" in structure}
    if not there:
        return None
    return RawRows(*(_restore(there[name], entries) if name in there else fields[name] for name in _RAW))


def _dumps(value: Any, path: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as reason:
        raise StorageError(f"{path} cannot be written as JSON: {reason}") from reason


def _to_bytes(lines: list[str]) -> Array:
    return np.frombuffer("\n".join(lines).encode("ascii"), dtype=np.uint8)


def _store(tree: Any, path: str, name: str, entries: dict[str, Array]) -> Any:
    """Add a tree's arrays to the entries; return its structure."""
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, str):
                raise StorageError(f"{path} has the key {key!r}: only strings can be written")
        return {"dict": {key: _store(tree[key], f"{path}[{key!r}]", f"{name}.{key}", entries) for key in tree}}
    if isinstance(tree, tuple):
        return {"tuple": [_store(child, f"{path}[{i}]", f"{name}.{i}", entries) for i, child in enumerate(tree)]}
    entry = _free_name(name, entries)
    if not tree.dtype.hasobject:
        entries[entry] = tree
        return {"array": entry}
    entries[entry] = _to_bytes([_dumps(encode(value, f"{path}[{i}]"), path) for i, value in enumerate(tree)])
    return {"objects": entry, "length": len(tree)}


def _free_name(name: str, entries: dict[str, Array]) -> str:
    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    free, number = plain, 1
    # `savez` has a parameter `file`, but no entry has this name: each starts with its field's name.
    while free in entries:
        number += 1
        free = f"{plain}~{number}"
    return free


def load_with_header(path: str | os.PathLike[str], make: Callable[[dict[str, Any]], Any]) -> tuple[Any, dict[str, Any]]:
    """Load a batch, made by `make` of its fields (the policies' batches first), and the header of its file."""
    path = _existing(Path(path))
    entries, header = _read(path)
    with damage_raised(path, "is damaged: its parts do not fit together ({})"):
        fields = _fields_of(header, entries) | {"seeds": tuple(header["seeds"]), "seed": _seed(header["seed"])}
        if "policies" in header:
            parts = header["policies"].items()
            fields["policies"] = {name: make(_fields_of_policy(each, fields, entries)) for name, each in parts}
        return make(fields), header


def _seed(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise ValueError(f"the seed should be an integer or null, not {short(value)}")
    return value


def read(path: str | os.PathLike[str], *names: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read some of a file's arrays, and its header.

    Args:
        path: As for `load`.
        names: Names of the arrays to read: `rewards`, and for nested data each leaf, such as `observations.image`.

    Returns:
        `(arrays, header)`: the arrays by name; and the header, with `format_version`, `package_version`, `seed`,
        `seeds` and `provenance`.

    Raises:
        StorageError: As for `load`, or an array does not exist.
        FileNotFoundError: The file does not exist.
    """
    return _read(_existing(Path(path)), names)


def read_trees(path: str | os.PathLike[str], *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read some of a file's trees, and its header; see `read`.

    Args:
        path: As for `load`.
        names: Names of the trees to read, such as `env_infos`.

    Returns:
        `(trees, header)`: the trees by name, nested as in a batch; and the header.

    Raises:
        StorageError: As for `load`, or a tree does not exist.
    """
    path = _existing(Path(path))
    header = _read(path, ())[1]
    with damage_raised(path, "is damaged: its parts do not fit together ({})"):
        if unknown := [name for name in names if name not in header["structure"]]:
            arrays = "; read returns arrays" if unknown[0] in _ARRAYS else ""
            trees = ", ".join(header["structure"])
            raise StorageError(f"there is no tree {unknown[0]!r} in {path}, only {trees}{arrays}")
        structures = {name: header["structure"][name] for name in names}
        entries = _read(path, [entry for structure in structures.values() for entry in entries_of(structure)])[0]
        return {name: _restore(structure, entries) for name, structure in structures.items()}, header


def _existing(path: Path) -> Path:
    return path if path.exists() else (_with_suffix(path) if _with_suffix(path).exists() else path)


def _read(path: Path, names: Sequence[str] | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
    with opened_npz(path) as archive:
        if "header" not in archive.names:
            raise StorageError(f"{path} is no trajectory batch: it has no array `header`, only {short(archive.names)}")
        header = read_facts(path, archive.read_text("header"), "trajectory batch", _FORMAT, _VERSION)
        if names is None or names:
            with damage_raised(path, "is damaged: its parts do not fit together ({})"):
                known = _entries_of_header(header)
                names = known if names is None else names
                if unknown := [name for name in names if name not in {*known, *archive.names}]:
                    # A name in the header without its array is damage, and raises below.
                    raise StorageError(
                        f"there is no array {unknown[0]!r} in {path}{_instead(unknown[0], known, header)}"
                    )
                check_claims(archive, header, frozenset(names))
        return {name: archive.read(name) for name in names}, header


def _instead(name: str, known: Sequence[str], header: Mapping[str, Any]) -> str:
    """Return the end of a sentence on where the data of a name are."""
    if name in header:
        return ": it is in the header, the second result"
    if leaves := [leaf for leaf in known if leaf.startswith(f"{name}.")]:
        return f"; there are {', '.join(leaves)}: name these, or use read_trees({name!r})"
    if name in header["structure"]:
        return f": it is empty; read_trees({name!r}) returns it"
    return meant(name, known)


def _entries_of_header(header: Mapping[str, Any]) -> list[str]:
    parts = [header, *header.get("policies", {}).values()]
    own = [name for name in _ARRAYS if name not in header["structure"]]
    return [*own, *(entry for part in parts for tree in part["structure"].values() for entry in entries_of(tree))]


def _restore(structure: dict[str, Any], entries: dict[str, Array]) -> Any:
    if "dict" in structure:
        return {key: _restore(child, entries) for key, child in structure["dict"].items()}
    if "tuple" in structure:
        return tuple(_restore(child, entries) for child in structure["tuple"])
    if "array" in structure:
        return entries[structure["array"]]
    lines = entries[structure["objects"]].tobytes().split(b"\n") if structure["length"] else []
    if len(lines) != structure["length"]:
        raise ValueError(f"{structure['objects']} has {len(lines)} lines, but should have {structure['length']}")
    return object_array([decode(json.loads(line)) for line in lines])
