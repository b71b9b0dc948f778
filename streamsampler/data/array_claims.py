"""Compare the claimed shapes and dtypes of a file's arrays with one another and with their spaces, before unpacking.

The header's seeds bound the number of trajectories; the trajectories' lengths, unpacked first, bound the number of
timesteps. All other arrays are judged by their headers alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from streamsampler.core.errors import DataError
from streamsampler.data.archive import NpzArchive
from streamsampler.data.space_codec import decode_space
from streamsampler.data.spaces import validate
from streamsampler.data.trees import leaves

_ARRAYS = ("rewards", "terminated", "truncated", "lengths", "indices", "agent_versions")
_PER_TIMESTEP = {
    *("observations", "actions", "rewards", "env_infos", "agent_infos", "raw_observations", "raw_rewards"),
    "env_timesteps",
}
_COLUMNS = {*_ARRAYS, "raw_rewards", "fragments", "agents"}
"""The fields with a single number in each row."""
_SPACES = {"observations": "observation_space", "last_observations": "observation_space", "actions": "action_space"}


def check_claims(archive: NpzArchive, header: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise a `DataError` unless the arrays `names` fit the header, or any exception if the header is damaged."""
    n_trajectories = len(header["seeds"])
    _check_part(archive, header, names, (n_trajectories, n_trajectories))
    for part in header.get("policies", {}).values():
        _check_part(archive, part, names, (0, n_trajectories * len(part["agent_ids"])))


def _check_part(archive: NpzArchive, part: Mapping[str, Any], names: Collection[str], between: tuple[int, int]) -> None:
    """Check the arrays of the batch or of a policy; `between` bounds the number of trajectories."""
    structure = {name: {"array": name} for name in _ARRAYS} | part["structure"]
    entry = structure["lengths"]["array"]
    claim = archive.claim(entry)
    if len(claim.shape) != 1 or claim.dtype != np.int64 or not between[0] <= claim.shape[0] <= between[1]:
        raise DataError(
            f"{entry} are {claim.dtype} of shape {claim.shape}, but should be int64 of {between[0]} to {between[1]} "
            "trajectories"
        )
    lengths = archive.read(entry)
    n_trajectories, n_timesteps = len(lengths), int(lengths.sum())
    for name, its in structure.items():
        if not any(entry in names for entry in entries_of(its)):
            continue
        claimed = _claimed(archive, its)
        for path, leaf in leaves(claimed):
            own = path.strip("[]'") if name == "agents" else name
            n_rows = n_timesteps if own in _PER_TIMESTEP else n_trajectories
            if leaf.shape[:1] != (n_rows,):
                raise DataError(f"{name}{path} has the shape {leaf.shape}, but should have {n_rows} rows")
            if name in _COLUMNS and (leaf.ndim != 1 or leaf.dtype.kind not in "biuf"):
                raise DataError(f"{name}{path} are {leaf.dtype} {leaf.shape}, but should have one number in each row")
        if name in _SPACES and f"raw_{name}" not in structure:
            space = decode_space(part["spaces"][_SPACES[name]])
            validate(space, claimed, n_timesteps if name in _PER_TIMESTEP else n_trajectories, name)


def entries_of(structure: Mapping[str, Any]) -> list[str]:
    children = [*structure.get("dict", {}).values(), *structure.get("tuple", [])]
    own = [structure[kind] for kind in ("array", "objects") if kind in structure]
    return own + [entry for child in children for entry in entries_of(child)]


def _claimed(archive: NpzArchive, structure: Mapping[str, Any]) -> Any:
    """Return a structure as a tree of stand-in arrays."""
    if "dict" in structure:
        return {key: _claimed(archive, child) for key, child in structure["dict"].items()}
    if "tuple" in structure:
        return tuple(_claimed(archive, child) for child in structure["tuple"])
    if "array" in structure:
        return archive.claim(structure["array"]).stand_in()
    length = structure["length"]
    archive.check_text(structure["objects"], length)
    return np.broadcast_to(np.array(None, dtype=object), (length,))
