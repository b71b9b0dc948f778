"""Trajectory batches as files: `.npz`, read without pickle, written whole or not at all.

In Python, `streamsampler.load` reads them, and `numpy.load(path, allow_pickle=False)` gives each array under its
name. The rest of this text is for readers in other languages. It describes version 1 of both formats.

A file
------

A file is a zip archive, with zip64 fields where sizes need them. Its members are stored or deflated, have no date,
and are called `<entry>.npy`. Each is an array in NumPy's `.npy` format (versions 1.0 to 3.0) in C or Fortran order,
of numbers, booleans or strings; none holds pickles. An array's own header has at most 16,384 bytes; JSON in an array
at most 268,435,456 bytes, or 32 times what it is packed into, or 1,024 for each value. With N trajectories and T
timesteps in all, the entries are:

| entry | dtype, shape | content |
|---|---|---|
| `header` | uint8, (n,) | JSON in ASCII; see below |
| `rewards` | float64, (T,) | the rewards, trajectory after trajectory |
| `lengths` | int64, (N,) | timesteps of each, at least 1: a trajectory begins at the sum of those before it |
| `terminated` | bool, (N,) | whether the environment terminated it |
| `truncated` | bool, (N,) | whether it was truncated; at least one of the two is true |
| `indices` | int64, (N,) | trajectory indices |
| `agent_versions` | int64, (N,) | the version of the agent that made it |
| other names |  | the leaves of what `structure` in the header describes |

The header is an object with these keys:

- `format`: "streamsampler.TrajectoryBatch". `format_version`: 1. `package_version`: a string.
- `seed`: the sampler's seed, an integer of any size, or null. `seeds`: N integers; what each `env.reset` was seeded
  with.
- `provenance`: an object with whatever the writer said of the data's origin; the command writes its options. It may
  hold `NaN` and `Infinity`, as Python writes them, where a user put them there.
- `spaces`: an object with `observation_space` and `action_space`; see "Spaces".
- `structure`: an object with a structure each for `observations` (T rows), `last_observations` (N rows: what followed
  each trajectory's last action), `actions` (T), `env_infos` (T), `agent_infos` (T) and `episode_infos` (N). Only where
  the trajectories are of fragments, `fragments` (N): whether each was `continued` or `cut`, of which environment it is
  (`env_numbers`), and the timesteps and the sum of raw rewards of its episode in earlier calls (`earlier_lengths`,
  int64, and `earlier_returns`, float64).
  Where there were filters, what the environment said as well, as far as it differs: `raw_observations` (T),
  `raw_last_observations` (N) and `raw_rewards` (T); then those are of the observation space. Where nothing differs, as
  in a first batch, before there are statistics, `raw_rewards` alone.

Only where several agents took part, `policies`: an object with an object for each policy that played, by its name. The
trajectories of the file are episodes then, their rewards are those of all agents, summed up, and there are neither
observations nor actions. Each of these objects has

- `agent_ids`: the names of all agents that may take part; with `agents_are_open` of those that did, because the
  environment does not say beforehand which may.
- `spaces`: as above.
- `structure`: an object with a structure for each of `rewards`, `lengths` and so on, as the entries above, for N
  trajectories of agents, of T timesteps in all; for `observations` and so on, as above; and for `agents`, a `dict` of
  `numbers` (N: which of the agents each is of), `episodes` (N, never falling: the position of its episode in the file)
  and `env_timesteps` (T: the step of the environment). The seed of each is its episode's.

A file of what one policy did, alone, has `agent_ids` in the header, and `agents` in `structure`.

In `episode_infos` of episodes, `(agents)` has by agent its `return` in each episode, and the infos of its `reset` and
`last` step.

A structure is one of:

- `{"array": entry}`: the entry's array. Its first axis is the rows.
- `{"objects": entry, "length": n}`: a column of n rows that are no arrays of one shape. The entry, of uint8, holds n
  lines of JSON, separated by newline bytes; each is a value (see "Values"). With n = 0 it is empty.
- `{"dict": {key: structure}}` and `{"tuple": [structure]}`: as Dict and Tuple spaces, and infos, nest.

Entries are called by their path, such as `observations.camera` or `env_infos.x.y`, but only `structure` is to be
relied on: other characters than letters, digits, `_`, `-` and `.` become `_`, and `~2` and so on keeps apart what
would be called the same. In infos, a boolean array `_key` next to an array `key` is its mask: false where the info
was not there, and where `key` holds zeros, false or null. A key without a mask was there in every row.

Values
------

null, booleans, integers (of any size), finite floats, strings and lists are themselves. Else a value is an object
whose key `$` names its kind:

- `{"$": "float", "bits": hex}`: NaN or an infinity; the 8 bytes of the double, big-endian, in hexadecimal digits.
- `{"$": "bytes", "base64": text}`. `{"$": "tuple", "items": [value]}`. `{"$": "dict", "items": [[key, value]]}`.
- `{"$": "array", "dtype": descr, "shape": [int], "base64": text}`: in C order; `descr` is NumPy's, such as `"<f4"`.
  `{"$": "scalar", ...}` is the same with an empty shape.
- `{"$": "graph", "parts": [nodes, edges, edge links]}`: a value of a Graph space.

Spaces
------

A space is an object whose key `space` names its kind:

- `Box`: `low`, `high` (arrays, as values; their dtype and shape are the space's).
- `Discrete`: `n`, `start`, `dtype`. `MultiDiscrete`: `nvec`, `start` (arrays), `dtype`. `MultiBinary`: `n` (an
  integer or a list). `Text`: `lengths` (`[least, most]`), `characters`.
- `Dict`: `spaces`, pairs `[key, space]`. `Tuple`, `OneOf`: `spaces`. `Sequence`: `of` (a space), `stack` (a boolean).
  `Graph`: `nodes`, `edges` (spaces; `edges` may be null).
- `custom`: any other. `class`: its name in Python. `shape`, `dtype`: or null. `attributes`: an object of values, in
  which `{"$": "space", "description": space}` is a space and `{"$": "unwritten", "type": class, "name": name or
  null}` stands for what JSON cannot hold, such as a function. Python reads it as a
  `streamsampler.data.codec.OpaqueSpace` where its class is not there, or not all of it could be written.

Leaves of Box, Discrete, MultiDiscrete and MultiBinary are arrays of the space's dtype; those of all others are
columns of values: a string for Text, a tuple or an array for Sequence, a tuple of position and value for OneOf.

A folder
--------

`streamsampler sample --shard-size` writes a folder of files `shard-000000.npz`, `shard-000001.npz`, and so on, each
as above, and `manifest.json`: UTF-8 JSON, an object with these keys:

- `format`: "streamsampler.TrajectoryFolder". `format_version`: 1. `package_version`, `provenance`, `seed`: as in each
  shard.
- `shard_size`: timesteps that each shard but the last has at least. `wanted`: `{"timesteps": n}` or `{"trajectories":
  n}`.
- `fingerprints`: how the workers computed, a list of strings such as "numpy=0c3f19d2e4aa torch=77ab02c3d1ef": digests
  of the same arithmetic in these libraries. One that agrees with one in the list, as far as both name a library, is not
  added.
- `complete`: whether all of it is there. `trajectories`, `timesteps`: of the shards that are listed, together.
- `shards`: for each shard `file`, `first_trajectory` (the index of its first trajectory, or of one left out before
  it), `trajectories`, `timesteps` and, where trajectories were left out because they raised, `dropped`: how many.

A shard is listed when it is whole. Names that begin with a dot and end with `.tmp` are files that were being written
when the process was killed.
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
from streamsampler.core.version import __version__
from streamsampler.data.agent_rows import ARRAYS_OF_AGENTS, AgentRows
from streamsampler.data.archive import opened_npz
from streamsampler.data.batch_fields import RawRows, value_of
from streamsampler.data.claims import check_claims, entries_of
from streamsampler.data.codec import damage_raised, decode, decode_space, encode, encode_space, read_facts
from streamsampler.data.kept_infos import InfosArgument, KeptInfos, policies_of, unwritable_infos
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
    """Write a batch to a file, all of it except `stats` and `worker_numbers`, which depend on timing.

    The file appears under its name only when it is complete and on the disk; a file of that name is replaced. Equal
    batches make equal files, byte for byte.

    Args:
        batch: A `TrajectoryBatch` to write.
        path: Where to. Like NumPy, appends `.npz` to a name that does not end with it.
        provenance: What the header is to have under `provenance`: anything that JSON can hold.
        compress: Compress the arrays; much slower.
        infos: True for all infos, False for none, or the names of the outermost keys that are written, whichever of
            `env_infos`, `agent_infos` and `episode_infos` have them.

    Returns:
        The path written.

    Raises:
        UsageError: `infos` names an info that is not there.
        UnwritableInfoError: Infos hold objects that no file can hold; names these infos.
        StorageError: Objects, spaces or a provenance that cannot be written and read back exactly; names the field.
        OSError: The file cannot be written.
    """
    target = _with_suffix(Path(path))
    batch = KeptInfos.of(infos).of_batch(batch)
    try:
        entries = _entries(batch, provenance)
    except StorageError:
        unwritable_infos(batch)  # which names all of them, and the way out
        raise
    write_whole(target, lambda file: _write(file, entries, compress))
    return target


def _with_suffix(path: Path) -> Path:
    return path if path.name.endswith(".npz") else path.with_name(f"{path.name}.npz")


def _write(file: BinaryIO, entries: dict[str, Array], compress: bool) -> None:
    write = cast(Any, np.savez_compressed if compress else np.savez)
    # In one memory layout, whatever the batch's: equal batches are equal files. No entry has a time, either.
    write(file, **{name: np.ascontiguousarray(array) for name, array in entries.items()})


def _entries(batch: Any, provenance: Mapping[str, Any] | None) -> dict[str, Array]:
    entries: dict[str, Array] = {name: getattr(batch, name) for name in _ARRAYS}
    # Claimed now, so that no column takes the name.
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
    if batch.agents is not None:  # of what one policy did
        header |= _known(batch.agents)
        agents = {field: getattr(batch.agents, field) for field in _AGENTS}
        header["structure"]["agents"] = _store(agents, "agents", "agents", entries)
    if policies := policies_of(batch):
        header["policies"] = {name: _policy(name, each, entries) for name, each in policies.items()}
    entries["header"] = _to_bytes([_dumps(header, "provenance")])
    return entries


def _known(rows: AgentRows) -> dict[str, Any]:
    """Return what a header says of the agents that may take part."""
    return {"agent_ids": list(rows.known), **({"agents_are_open": True} if rows.is_open else {})}


def _policy(name: str, batch: Any, entries: dict[str, Array]) -> dict[str, Any]:
    """Add the arrays of what one policy did to the entries; returns what the header says of it."""
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


def _fields_of(said: Mapping[str, Any], entries: dict[str, Array]) -> dict[str, Any]:
    """Return the fields of a batch that a header says of it, or of what one policy did."""
    structure = said["structure"]
    fields = {name: _restore(each, entries) for name, each in structure.items() if not name.startswith("raw_")}
    fields |= {name: entries[name] for name in _ARRAYS if name not in structure}
    fields["raw"] = _raw(fields, structure, entries)
    if "agents" in structure:
        fields["agents"] = AgentRows(tuple(said["agent_ids"]), **fields["agents"], is_open="agents_are_open" in said)
    return fields | {name: decode_space(said["spaces"][name]) for name in _SPACES}


def _fields_of_policy(said: Mapping[str, Any], joint: Mapping[str, Any], entries: dict[str, Array]) -> dict[str, Any]:
    fields = _fields_of(said, entries)
    seeds = tuple(joint["seeds"][episode] for episode in fields["agents"].episodes.tolist())
    return {**fields, "seeds": seeds, "seed": joint["seed"]}


def _trees_of(batch: Any) -> tuple[str, ...]:
    fragments = ("fragments",) if batch.fragments else ()
    return (*_TREES, *fragments, *_raw_of(batch))


def _raw_of(batch: Any) -> list[str]:
    """Return the names of raw data to write: those that differ, or the rewards, which say that there were filters."""
    if batch.raw is None:
        return []
    return [f"raw_{name}" for name in _RAW if getattr(batch.raw, name) is not getattr(batch, name)] or ["raw_rewards"]


def _raw(fields: Mapping[str, Any], structure: Mapping[str, Any], entries: dict[str, Array]) -> RawRows | None:
    """Return the raw data of a file; None where nothing was filtered."""
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
    """Add a tree's arrays to the entries; returns its structure, with names in the places of arrays."""
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
    # savez gives `file` a meaning of its own, but no entry is called that: each starts with its field's name.
    while free in entries:
        number += 1
        free = f"{plain}~{number}"
    return free


def load_with_header(path: str | os.PathLike[str], make: Callable[[dict[str, Any]], Any]) -> tuple[Any, dict[str, Any]]:
    """Read a batch that `save` wrote, and the header of its file; see `streamsampler.data.shards`.

    Args:
        path: The file; `.npz` is appended where there is none of that name.
        make: Makes a batch of its fields; those of what one policy did are made first.
    """
    path = _existing(Path(path))
    entries, header = _read(path)
    with damage_raised(path, "is damaged: its parts do not fit together ({})"):
        fields = _fields_of(header, entries) | {"seeds": tuple(header["seeds"]), "seed": _seed(header["seed"])}
        if "policies" in header:
            said = header["policies"].items()
            fields["policies"] = {name: make(_fields_of_policy(each, fields, entries)) for name, each in said}
        return make(fields), header


def _seed(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise ValueError(f"the seed is {short(value)}")
    return value


def read(path: str | os.PathLike[str], *names: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read some of a file's arrays, and its header.

    Args:
        path: As `load` takes it.
        names: Names of arrays of `TrajectoryBatch`, such as `rewards`. The others are not read.

    Returns:
        The arrays by name; and the header, with `format_version`, `package_version`, `seed`, `seeds` and `provenance`.

    Raises:
        StorageError: As `load`, and where there is no such array.
        FileNotFoundError: There is no such file.
    """
    return _read(_existing(Path(path)), names)


def read_trees(path: str | os.PathLike[str], *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read some of a file's trees, and its header; see `read`.

    Args:
        path: As `load` takes it.
        names: Names of trees, such as `env_infos`. The others are not read.
    """
    path = _existing(Path(path))
    header = _read(path, ())[1]
    with damage_raised(path, "is damaged: its parts do not fit together ({})"):
        structures = {name: header["structure"][name] for name in names}
        entries = _read(path, [entry for structure in structures.values() for entry in entries_of(structure)])[0]
        return {name: _restore(structure, entries) for name, structure in structures.items()}, header


def _existing(path: Path) -> Path:
    return path if path.exists() else (_with_suffix(path) if _with_suffix(path).exists() else path)


def _read(path: Path, names: Sequence[str] | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
    with opened_npz(path) as archive:
        if "header" not in archive.names:
            raise StorageError(f"{path} is no trajectory batch: it has no entry `header`, only {short(archive.names)}")
        header = read_facts(path, archive.read_text("header"), "trajectory batch", _FORMAT, _VERSION)
        if names is None or names:
            with damage_raised(path, "is damaged: its parts do not fit together ({})"):
                names = _entries_of_header(header) if names is None else names
                check_claims(archive, header, frozenset(names))
        return {name: archive.read(name) for name in names}, header


def _entries_of_header(header: Mapping[str, Any]) -> list[str]:
    """Return the names of all arrays that a batch is made of."""
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
        raise ValueError(f"{structure['objects']} has {len(lines)} lines, and should have {structure['length']}")
    return object_array([decode(json.loads(line)) for line in lines])
