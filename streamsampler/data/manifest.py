"""Read and write `manifest.json`: what a folder of shards holds, and what it is to hold.

The manifest has everything that decides about the data, and the range of trajectory indices of each shard. It has no
times, hosts and durations: the same arguments give the same manifest, byte for byte.
It is replaced as a whole after each shard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamsampler.core.atomic import write_whole
from streamsampler.core.errors import StorageError
from streamsampler.core.version import __version__
from streamsampler.data.codec import LARGEST, damage_raised, integer, read_facts
from streamsampler.data.spaces import short
from streamsampler.protocol.plans import Target

MANIFEST = "manifest.json"
_FORMAT = "streamsampler.TrajectoryFolder"
_VERSION = 1


def shard_name(number: int) -> str:
    """The file of a shard, by its number."""
    return f"shard-{number:06}.npz"


@dataclass(frozen=True)
class Shard:
    """One file of a folder.

    Attributes:
        first_trajectory: The index of its first trajectory, or of one that was left out before it.
        trajectories: How many there are.
        timesteps: Their timesteps.
        dropped: How many more indices there are up to its last trajectory's: of those that were left out.
    """

    first_trajectory: int
    trajectories: int
    timesteps: int
    dropped: int = 0

    @property
    def stop(self) -> int:
        """The index after its last trajectory's."""
        return self.first_trajectory + self.trajectories + self.dropped


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a folder is to hold, and what it holds.

    Attributes:
        seed: The sampler's seed.
        shard_size: Timesteps that a shard has at least.
        wanted: How much there is to be: a number, by "timesteps" or "trajectories".
        provenance: What else decides about the data: anything that JSON can hold.
        package_version: The version of this package that began the folder.
        complete: Whether all shards are there.
        shards: The shards that are listed, in order.
        fingerprints: The fingerprints of the workers that sampled them; see `TrajectoryBatch`. They decide about the
            data as well, but are known only when the first shard is there.
    """

    seed: int
    shard_size: int
    wanted: Mapping[str, int]
    provenance: Mapping[str, Any]
    package_version: str = __version__
    complete: bool = False
    shards: tuple[Shard, ...] = field(default=(), repr=False)
    fingerprints: frozenset[str] = frozenset()

    @property
    def target(self) -> Target:
        """How much this folder is to hold."""
        ((unit, number),) = self.wanted.items()
        return Target(unit, number)

    @property
    def n_trajectories(self) -> int:
        """Trajectories of all shards."""
        return sum(shard.trajectories for shard in self.shards)

    @property
    def drops(self) -> bool:
        """Whether trajectories may have been left out."""
        return self.provenance.get("on_failure") == "drop"

    @property
    def n_timesteps(self) -> int:
        """Timesteps of all shards."""
        return sum(shard.timesteps for shard in self.shards)

    def decides(self) -> dict[str, Any]:
        """Everything that decides about the data, by name: two folders that agree in it become the same.

        Versions of libraries are recorded, but do not keep a folder from being resumed with later ones.
        """
        return {
            "agent_version": 1,  # unless the provenance has another one
            **{name: value for name, value in self.provenance.items() if name != "versions"},
            "wanted": dict(self.wanted),
            "shard_size": self.shard_size,
            "seed": self.seed,
            "package_version": self.package_version,
        }


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write or replace a folder's manifest.

    Raises:
        OSError: It cannot be written; then the one before is still there.
    """
    text = _as_json(manifest)
    write_whole(folder / MANIFEST, lambda file: file.write(text.encode("ascii")))


def _as_json(manifest: Manifest) -> str:
    head = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "package_version": manifest.package_version,
        "provenance": dict(manifest.provenance),
        "seed": manifest.seed,
        "shard_size": manifest.shard_size,
        "wanted": dict(manifest.wanted),
        "fingerprints": sorted(manifest.fingerprints),
        "complete": manifest.complete,
        "trajectories": manifest.n_trajectories,
        "timesteps": manifest.n_timesteps,
    }
    lines = [json.dumps({"file": shard_name(i), **_facts(shard)}) for i, shard in enumerate(manifest.shards)]
    rows = "\n    " + ",\n    ".join(lines) + "\n  " if lines else ""
    return f'{json.dumps(head, indent=2)[:-2]},\n  "shards": [{rows}]\n}}\n'


def _facts(shard: Shard) -> dict[str, int]:
    return {name: number for name, number in vars(shard).items() if number or name != "dropped"}


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest.

    Raises:
        StorageError: The folder has no manifest, or it is damaged or of a newer format.
        FileNotFoundError: There is no such folder.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if not folder.exists():
            raise
        raise StorageError(f"{folder} is no folder of trajectories: it has no {MANIFEST}") from None
    facts = read_facts(path, data, "manifest of trajectories", _FORMAT, _VERSION)
    with damage_raised(path):
        return _checked(facts)


def _checked(facts: dict[str, Any]) -> Manifest:
    kinds = {"seed": int, "package_version": str, "provenance": dict, "complete": bool}
    for name, kind in kinds.items():
        if type(facts[name]) is not kind:
            raise TypeError(f"{name} is {short(facts[name])}, and should be a {kind.__name__}")
    fingerprints = facts.get("fingerprints", [])
    if not isinstance(fingerprints, list) or not all(isinstance(found, str) for found in fingerprints):
        raise TypeError(f"fingerprints are {short(fingerprints)}")
    manifest = Manifest(
        **{name: facts[name] for name in kinds},
        shard_size=integer(facts, "shard_size", 1),
        wanted=_wanted(facts),
        shards=_shards(facts["shards"]),
        fingerprints=frozenset(fingerprints),
    )
    target = manifest.target
    for name, number in {"trajectories": manifest.n_trajectories, "timesteps": manifest.n_timesteps}.items():
        if integer(facts, name) != number:
            raise ValueError(f"it says that there are {facts[name]} {name}, and lists {number}")
    if manifest.complete and (missing := target.missing(manifest.n_trajectories, manifest.n_timesteps)):
        raise ValueError(f"it says that it is complete, and {missing} {target.unit} are missing")
    return manifest


def _wanted(facts: dict[str, Any]) -> dict[str, int]:
    (unit,) = facts["wanted"].keys()
    if unit not in ("timesteps", "trajectories"):
        raise ValueError(f"wanted are {short(unit)}")
    return {unit: integer(facts["wanted"], unit, 1)}


def _shards(entries: Any) -> tuple[Shard, ...]:
    shards: list[Shard] = []
    following = 0
    for number, entry in enumerate(entries):
        if entry["file"] != shard_name(number):
            raise ValueError(f"shard {number} is called {entry['file']!r:.80}")
        if surprises := entry.keys() - {"file", *Shard.__dataclass_fields__}:
            raise ValueError(f"shard {number} has {short(min(surprises))}")
        shard = Shard(
            integer(entry, "first_trajectory"),
            integer(entry, "trajectories", 1),
            integer(entry, "timesteps", 1),
            integer({"dropped": 0, **entry}, "dropped"),
        )
        if shard.first_trajectory != following:
            raise ValueError(f"shard {number} begins with {shard.first_trajectory}, and not with {following}")
        following = shard.stop
        shards.append(shard)
    if following >= LARGEST:
        raise ValueError(f"there are {following} trajectories")
    return tuple(shards)
